"""What is being served: an engine, the text side of its model, and the name under which clients know it."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from aie_engine import EngineClient, InvalidInputError
from aie_server.errors import ModelNotFoundError

__all__ = [
    "ChatTemplate",
    "IncrementalDecoder",
    "ModelTable",
    "ServedModel",
    "TextModel",
    "Tokenizer",
    "safe_token_bytes",
]


class IncrementalDecoder(Protocol):
    """Never gives out half a character: bytes of an unfinished UTF-8 sequence wait for the next token."""

    def push(self, ids: Iterable[int]) -> str: ...

    def finish(self) -> str: ...


class Tokenizer(Protocol):
    """The part of a tokenizer that a server needs."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool = False, parse_special: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_text(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def incremental(self, *, skip_special_tokens: bool = True) -> IncrementalDecoder: ...


class ChatTemplate(Protocol):
    """Messages into the one text that the model was trained to continue."""

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **kwargs: object,
    ) -> str: ...


class TextModel(Protocol):
    """What turns text into tokens and back for one model."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> ChatTemplate | None: ...


@dataclass(frozen=True)
class ServedModel:
    """One model behind one name."""

    name: str
    engine: EngineClient
    text: TextModel
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def max_seq_len(self) -> int:
        return self.engine.info.max_seq_len

    @cached_property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes, so a text of n bytes has at least n / this many tokens. Computed when
        first asked."""
        tokenizer = self.text.tokenizer
        return max((len(safe_token_bytes(tokenizer, token)) for token in range(tokenizer.vocab_size)), default=1) or 1


def safe_token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """The bytes of a token; none for an id that is only padding of the model's vocabulary."""
    try:
        return tokenizer.token_bytes(token_id)
    except InvalidInputError:
        return b""


class ModelTable:
    """The served models by name. The first one is meant when a request names none, or "default"."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        if not models:
            raise InvalidInputError("A server needs at least one model.")
        self._models = {model.name: model for model in models}
        if len(self._models) != len(models):
            raise InvalidInputError("Two models have the same name; give each its own.")
        self.default = models[0]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def find(self, name: str | None) -> ServedModel:
        """Raises `ModelNotFoundError` that lists the names there are."""
        if name is None or name in self._models:
            return self.default if name is None else self._models[name]
        if name == "default":
            return self.default
        raise ModelNotFoundError(
            f"The model {name[:200]!r} does not exist here; there is {', '.join(self._models)}.", param="model"
        )
