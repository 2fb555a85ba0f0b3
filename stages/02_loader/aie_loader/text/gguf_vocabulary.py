"""The `tokenizer.ggml.*` keys of a GGUF file, checked, and the tokenizer that they describe.

`tokenizer.ggml.model` names the kind: "gpt2" is byte-level BPE, "llama" SentencePiece's BPE, "t5" its unigram model,
"bert" WordPiece. What a key means where it is missing is as llama.cpp has it, the program the format is made for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers

from aie_loader.errors import TokenizerError
from aie_loader.text.batch import BatchRules
from aie_loader.text.byte_level import byte_level_bpe
from aie_loader.text.pieces import PieceType, SentencePieceModel, add_added_tokens, sentencepiece, wordpiece
from aie_loader.text.special_tokens import SpecialTokens, post_processor
from aie_loader.text.splits import SUPPORTED_PRE_TOKENIZERS, split_rule

__all__ = ["GGUFVocabulary"]

_PREFIX = "tokenizer.ggml."
_KINDS = {"gpt2": "byte-level BPE", "llama": "SentencePiece BPE", "t5": "SentencePiece unigram", "bert": "WordPiece"}
# Keys of ids, the stronger of two later: BERT begins a text with [CLS], for which older files have a key of its own.
# The key of the separator is misspelled in the format.
_KEYS = (
    ("cls", "bos"), ("bos", "bos"), ("eos", "eos"), ("unknown", "unknown"), ("seperator", "separator"),
    ("padding", "padding"),
)  # fmt: skip
# Ids that a kind has where the file names none.
_DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    "gpt2": {},
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
    "bert": {"bos": 101, "unknown": 100, "separator": 102, "padding": 0},
}
# Markers that end a turn; older files name only the token that ends the text.
_END_OF_TURN = frozenset({"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"})


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """The checked keys. `tokens`, `types` and, where there are any, `scores` have one entry per id."""

    kind: str  # of `_KINDS`
    tokens: list[str]
    types: list[int]  # of `PieceType`
    scores: list[float]  # SentencePiece only
    merges: list[tuple[str, str]]  # byte-level BPE only, in order of priority
    pre: str  # byte-level BPE only: how text is split before merging
    ids: Mapping[str, int]  # of bos, eos, unknown, separator, padding: those that are there
    eos_token_ids: tuple[int, ...]  # end of text, of turn, of message: each ends an answer
    flags: Mapping[str, bool]
    charsmap: bytes | None  # SentencePiece's compiled normalization
    max_length: int | None  # the model's context

    @classmethod
    def parse(cls, metadata: Mapping[str, object]) -> "GGUFVocabulary":
        """Raises `TokenizerError` naming the key that is missing, wrong or not supported."""
        kind = metadata.get(f"{_PREFIX}model")
        if kind is None:
            raise TokenizerError(f"the file has no tokenizer ({_PREFIX}model)", param=f"{_PREFIX}model")
        if not isinstance(kind, str) or kind not in _KINDS:
            known = ", ".join(f"{name} ({what})" for name, what in _KINDS.items())
            raise TokenizerError(f"{_PREFIX}model is {kind!r}; supported are {known}", param=f"{_PREFIX}model")
        pre = _pre(metadata) if kind == "gpt2" else ""
        tokens = [text or f"[EMPTY_{index}]" for index, text in enumerate(_strings(metadata, f"{_PREFIX}tokens"))]
        types = _types(metadata, tokens, kind)
        ids = dict(_DEFAULT_IDS[kind])
        for key, name in _KEYS:
            given = _token_id(metadata, f"{_PREFIX}{key}_token_id", len(tokens))
            if given is not None:
                ids[name] = given
        ids = {name: index for name, index in ids.items() if index < len(tokens)}
        eos = [ids.get("eos") if kind != "bert" else None]
        eos += [_token_id(metadata, f"{_PREFIX}{name}_token_id", len(tokens)) for name in ("eot", "eom")]
        if eos[1] is None and kind != "bert":
            control = (index for index, each in enumerate(types) if each == PieceType.CONTROL)
            eos += [index for index in control if tokens[index] in _END_OF_TURN]
        return cls(
            kind=kind,
            tokens=tokens,
            types=types,
            scores=_scores(metadata, tokens) if kind in {"llama", "t5"} else [],
            merges=[_pair(merge) for merge in _strings(metadata, f"{_PREFIX}merges")] if kind == "gpt2" else [],
            pre=pre,
            ids=ids,
            eos_token_ids=tuple(dict.fromkeys(index for index in eos if index is not None)),
            flags=_flags(metadata, kind, pre),
            charsmap=_charsmap(metadata),
            max_length=_max_length(metadata),
        )

    def build(self) -> tokenizers.Tokenizer:
        """The pipeline, with what goes around a text. Raises `TokenizerError` for a vocabulary that does not fit."""
        if self.kind == "gpt2":
            whole = {PieceType.CONTROL, PieceType.USER_DEFINED}
            added = {index: kind == PieceType.CONTROL for index, kind in enumerate(self.types) if kind in whole}
            backend = byte_level_bpe(self.tokens, self.merges, added, pre=self.pre)
        elif self.kind == "bert":
            backend = self._wordpiece()
        else:
            backend = sentencepiece(
                SentencePieceModel(
                    kind="bpe" if self.kind == "llama" else "unigram",
                    pieces=self.tokens,
                    scores=self.scores,
                    types=self.types,
                    unknown_id=self.ids.get("unknown"),
                    space_prefix="always" if self.flags["add_space_prefix"] else "never",
                    removes_extra_spaces=self.flags["remove_extra_whitespaces"],
                    charsmap=self.charsmap,
                )
            )
        processor = post_processor(self._around())
        if processor is not None:
            backend.post_processor = processor
        return backend

    def batch_rules(self) -> BatchRules:
        return BatchRules(pad_token_id=self.ids.get("padding"), max_length=self.max_length)

    def _around(self) -> SpecialTokens:
        def token(name: str, wanted: bool) -> tuple[str, int] | None:
            index = self.ids.get(name)
            return (self.tokens[index], index) if wanted and index is not None else None

        end = "separator" if self.kind == "bert" and "separator" in self.ids else "eos"
        return SpecialTokens(
            start=token("bos", self.flags["add_bos_token"]),
            end=token(end, self.flags["add_eos_token"] or (self.kind == "bert" and self.flags["add_sep_token"])),
            doubles_separator=self.flags["add_sep_token"] and self.kind != "bert",
            starts_second=self.kind in {"gpt2", "llama"} and not self.flags["add_sep_token"],
            second_type=1 if self.kind == "bert" else 0,
        )

    def _wordpiece(self) -> tokenizers.Tokenizer:
        """The format marks what begins a word with ▁; BERT marks what continues one with ##."""
        tokens = []
        for token, kind in zip(self.tokens, self.types, strict=True):
            if kind in {PieceType.CONTROL, PieceType.UNKNOWN} or token.startswith("##"):
                tokens.append(token)
            else:
                tokens.append(token[1:] if token.startswith("▁") and len(token) > 1 else f"##{token}")
        if "unknown" not in self.ids:
            raise TokenizerError("the vocabulary names no token for unknown words", param=f"{_PREFIX}unknown_token_id")
        backend = wordpiece(
            tokens,
            unknown=tokens[self.ids["unknown"]],
            lowercase=self.flags["normalizer.lowercase"],
            strips_accents=self.flags["normalizer.strip_accents"],
        )
        add_added_tokens(backend, tokens, self.types)
        return backend


def _pre(metadata: Mapping[str, object]) -> str:
    pre = metadata.get(f"{_PREFIX}pre")
    if not isinstance(pre, str):
        raise TokenizerError(
            f"the file does not say how its tokenizer splits text ({_PREFIX}pre); convert the model again "
            f"with a newer converter (supported: {', '.join(SUPPORTED_PRE_TOKENIZERS)})",
            param=f"{_PREFIX}pre",
        )
    split_rule(pre)
    return pre


def _flags(metadata: Mapping[str, object], kind: str, pre: str) -> dict[str, bool]:
    rule = split_rule(pre) if kind == "gpt2" else None
    lowercase = bool(metadata.get(f"{_PREFIX}normalizer.lowercase", True))
    defaults = {
        # Files of Llama 3 were written before the key existed, and its tokenizer does add the token.
        "add_bos_token": kind in {"llama", "bert"} or (rule is not None and rule.adds_bos),
        "add_eos_token": kind == "t5",
        "add_sep_token": kind == "bert" or (rule is not None and rule.doubles_separator),
        "add_space_prefix": kind == "llama",
        "remove_extra_whitespaces": False,
        "normalizer.lowercase": lowercase,
        "normalizer.strip_accents": lowercase,
    }
    return {name: bool(metadata.get(f"{_PREFIX}{name}", default)) for name, default in defaults.items()}


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
        raise TokenizerError(f"{key} is missing or is not a list of texts", param=key)
    return list(value)


def _types(metadata: Mapping[str, object], tokens: list[str], kind: str) -> list[int]:
    """One type per token; without the key, what the texts of the tokens say."""
    key = f"{_PREFIX}token_type"
    types = metadata.get(key)
    if types is None:
        is_byte = [kind == "llama" and len(token) == 6 and token.startswith("<0x") for token in tokens]
        return [PieceType.BYTE if byte else PieceType.NORMAL for byte in is_byte]
    if (
        not isinstance(types, list | tuple)
        or len(types) != len(tokens)
        or not all(isinstance(each, int) for each in types)
    ):
        raise TokenizerError(f"{key} must have one number per token", param=key)
    return list(types)


def _scores(metadata: Mapping[str, object], tokens: list[str]) -> list[float]:
    key = f"{_PREFIX}scores"
    scores = metadata.get(key)
    if (
        not isinstance(scores, list | tuple)
        or len(scores) != len(tokens)
        or not all(isinstance(score, int | float) and math.isfinite(score) for score in scores)
    ):
        raise TokenizerError(f"{key} is missing or has not one finite number per token", param=key)
    return [float(score) for score in scores]


def _charsmap(metadata: Mapping[str, object]) -> bytes | None:
    key = f"{_PREFIX}precompiled_charsmap"
    value = metadata.get(key)
    if not value:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(item, int) and -128 <= item < 256 for item in value):
        raise TokenizerError(f"{key} is not a list of bytes", param=key)
    return bytes(item & 0xFF for item in value)


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        key = f"{_PREFIX}merges"
        raise TokenizerError(f"{key} has {merge!r}, which is not two tokens", param=key)
    return left, right


def _token_id(metadata: Mapping[str, object], key: str, num_tokens: int) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < num_tokens:
        raise TokenizerError(f"{key} is {value!r}, but the vocabulary has {num_tokens} tokens", param=key)
    return value


def _max_length(metadata: Mapping[str, object]) -> int | None:
    value = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return value if isinstance(value, int) and value > 0 else None
