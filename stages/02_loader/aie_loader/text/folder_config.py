"""What a Hugging Face folder says about its tokenizer beside the tokenizer itself: ids, special tokens, batching."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tokenizers

from aie_loader.errors import TokenizerError
from aie_loader.formats import optional_json_object
from aie_loader.text.batch import BatchRules

__all__ = ["FolderConfig", "folder_batch_rules", "folder_token_ids", "token_text"]

_SANE_LENGTH = 1 << 30  # "no limit" is written as 1e30


@dataclass(frozen=True, slots=True)
class FolderConfig:
    """The JSON files that describe a tokenizer, read once; each {} where it is missing."""

    folder: Path
    tokenizer: Mapping[str, object]  # tokenizer_config.json
    special: Mapping[str, object]  # special_tokens_map.json
    added: Mapping[str, object]  # added_tokens.json
    model: Mapping[str, object]  # config.json

    @classmethod
    def read(cls, folder: Path) -> "FolderConfig":
        """Raises `MalformedHeaderError` for a file that is not a JSON object."""
        names = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
        return cls(folder, *(optional_json_object(folder / name) for name in names))

    def token(self, name: str, default: str | None = None) -> str | None:
        """The text of the special token `name`, such as "pad_token"."""
        return token_text(self.tokenizer.get(name)) or token_text(self.special.get(name)) or default

    def flag(self, name: str, default: bool) -> bool:
        value = self.tokenizer.get(name)
        return value if isinstance(value, bool) else default

    def add_tokens_to(self, backend: tokenizers.Tokenizer) -> None:
        """Have special and added tokens matched whole. Raises `TokenizerError` if an id is not the one promised."""
        promised: dict[str, int] = {}
        tokens: dict[str, tokenizers.AddedToken] = {}
        for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
            text = self.token(f"{name}_token")
            if text:
                tokens[text] = tokenizers.AddedToken(text, special=True, normalized=False, lstrip=name == "mask")
        for text, index in self.added.items():
            if isinstance(index, int):
                promised[text] = index
                tokens.setdefault(text, tokenizers.AddedToken(text, special=False, normalized=False))
        described = self.tokenizer.get("added_tokens_decoder")
        for index, token in described.items() if isinstance(described, Mapping) else ():
            if isinstance(token, Mapping) and isinstance(text := token.get("content"), str) and str(index).isdecimal():
                promised[text] = int(index)
                flags = {key: token.get(key) is True for key in ("special", "lstrip", "rstrip", "normalized")}
                tokens[text] = tokenizers.AddedToken(text, **flags)
        vocabulary = backend.get_vocab_size(with_added_tokens=True)
        for text in sorted(tokens, key=lambda text: promised.get(text, vocabulary)):
            backend.add_tokens([tokens[text]])  # one at a time: new ones get the next ids in this order
        for text, index in promised.items():
            if backend.token_to_id(text) != index:
                raise TokenizerError(
                    f"{self.folder}: the token {text!r} has id {backend.token_to_id(text)}, "
                    f"but the files beside the vocabulary say {index}"
                )


def token_text(token: object) -> str | None:
    """A token in these files is a text, or, in older ones, an object: {"content": "</s>", "lstrip": false, …}."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def folder_token_ids(
    config: FolderConfig, token_to_id: Callable[[str], int | None]
) -> tuple[int | None, tuple[int, ...]]:
    """The BOS id and all EOS ids that a model folder names.

    generation_config.json and config.json give ids, tokenizer_config.json gives tokens; instruction-tuned models often
    name the end of a turn in one of them and the end of the text in another, and either ends an answer. Raises
    `MalformedHeaderError` for a file that is not a JSON object.
    """
    bos: list[int] = []
    eos: list[int] = []
    for ids in (optional_json_object(config.folder / "generation_config.json"), config.model):
        bos += _id_list(ids.get("bos_token_id"))
        eos += _id_list(ids.get("eos_token_id"))
    for name, found in (("bos_token", bos), ("eos_token", eos)):
        token = config.token(name)
        index = token_to_id(token) if token is not None else None
        if index is not None:
            found.append(index)
    return (bos[0] if bos else None), tuple(dict.fromkeys(eos))


def folder_batch_rules(config: FolderConfig, backend: tokenizers.Tokenizer) -> BatchRules:
    """How the model wants texts padded and cut. What tokenizer.json itself has switched on is second choice."""
    padding, truncation = backend.padding or {}, backend.truncation or {}
    pad = padding.get("pad_id")
    for token in (config.token("pad_token"), "[PAD]", "<pad>"):  # named, or what most models call it
        index = backend.token_to_id(token) if token is not None else None
        if index is not None:
            pad = index
            break
    sentence = optional_json_object(config.folder / "sentence_bert_config.json")
    lengths = (sentence.get("max_seq_length"), config.tokenizer.get("model_max_length"), truncation.get("max_length"))
    known = (length for length in lengths if isinstance(length, int) and 0 < length < _SANE_LENGTH)
    return BatchRules(
        pad_token_id=pad,
        padding_side=_side(config.tokenizer.get("padding_side"), padding.get("direction")),
        truncation_side=_side(config.tokenizer.get("truncation_side"), truncation.get("direction")),
        max_length=next(known, None),
    )


def _side(*values: object) -> Literal["left", "right"]:
    named = [value for value in values if isinstance(value, str)]
    return "left" if named and named[0].lower() == "left" else "right"


def _id_list(value: object) -> list[int]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, int) and not isinstance(item, bool) and item >= 0]
