"""What is being served: an engine, the text side of its model, and the name under which clients know it."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from aie_engine import EngineClient, InvalidInputError
from aie_server.errors import ModelNotFoundError
from aie_server.leases import Holding, Lease

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

    @property
    def sources(self) -> Mapping[str, str]:
        """The model's templates by name, as they are written."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        template: str | None = None,
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
    """One version of a model behind one name. Never changed: a new version is a new object."""

    name: str
    engine: EngineClient
    text: TextModel
    created: int = field(default_factory=lambda: int(time.time()))
    version: str | None = None  # where models have versions

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
    """The served models by name, in an order whose first is meant when a request names none, or "default".

    The mapping is never changed but replaced as a whole, so whoever looks sees all of it before a change or all of it
    after. Thread-safe. `may_be_empty`: for a server whose models come later.

    beside: names of models of another kind that the same server has, for a message that tells them from typing errors.
    """

    beside: tuple[str, ...] = ()

    def __init__(self, models: Sequence[ServedModel] = (), *, may_be_empty: bool = False) -> None:
        if not models and not may_be_empty:
            raise InvalidInputError("A server needs at least one model.")
        self._lock = threading.Lock()
        self._holdings: Mapping[str, Holding] = {model.name: Holding(model, self._lock) for model in models}
        if len(self._holdings) != len(models):
            raise InvalidInputError("Two models have the same name; give each its own.")

    def __iter__(self) -> Iterator[ServedModel]:
        """For what is known without asking an engine. Who asks one needs a lease."""
        return iter([holding.model for holding in self._holdings.values()])

    def __len__(self) -> int:
        return len(self._holdings)

    @property
    def default(self) -> ServedModel:
        """Raises `ModelNotFoundError` where there is none."""
        return self._find(None).model

    def lease(self, name: str | None) -> Lease:
        """The version that serves `name` now, kept until the lease is closed. Raises `ModelNotFoundError` that lists
        the names there are."""
        with self._lock:  # between finding it and counting, nobody may retire it
            return self._find(name).lease()

    @contextmanager
    def lease_all(self) -> Iterator[list[ServedModel]]:
        """Every version that serves now, kept while the context is open."""
        with self._lock:
            leases = [holding.lease() for holding in self._holdings.values()]
        try:
            yield [lease.model for lease in leases]
        finally:
            for lease in leases:
                lease.close()

    def put(self, model: ServedModel) -> Holding | None:
        """Serve `model` under its name from now on; the first of its name comes last in the order. Gives what served
        before, to be retired."""
        with self._lock:
            before = self._holdings.get(model.name)
            self._holdings = {**self._holdings, model.name: Holding(model, self._lock)}
        return before

    def remove(self, name: str) -> Holding:
        """Serve `name` no longer. Gives what served it, to be retired. Raises `ModelNotFoundError`."""
        with self._lock:
            if name not in self._holdings:
                raise self._not_found(name)
            holdings = dict(self._holdings)
            removed = holdings.pop(name)
            self._holdings = holdings
        return removed

    def _find(self, name: str | None) -> Holding:
        holdings = self._holdings
        if name is not None and name in holdings:
            return holdings[name]
        if holdings and name in (None, "default"):
            return next(iter(holdings.values()))
        raise self._not_found(name)

    def _not_found(self, name: str | None) -> ModelNotFoundError:
        if name in self.beside:
            return ModelNotFoundError(
                f"The model {name!r} answers at once and generates no text; GET / lists what is answered here.",
                param="model",
            )
        if self.beside and not self._holdings and name in (None, "default"):
            return ModelNotFoundError("No model that generates text is served here.", param="model")
        if not self._holdings and not self.beside:
            return ModelNotFoundError("No model is loaded here at the moment.", param="model")
        there = ", ".join((*self._holdings, *self.beside))
        return ModelNotFoundError(
            f"The model {(name or '')[:200]!r} does not exist here; there is {there}.", param="model"
        )
