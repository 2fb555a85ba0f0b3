"""SentencePiece vocabularies as `tokenizers` pipelines: BPE by scores, and unigram; and BERT's WordPiece.

SentencePiece treats text as a run of characters in which `▁` (U+2581) stands for the space, so that decoding is
joining. Its BPE has no list of merges: any two neighbours may merge whose union is a piece, the best-scored union
first. So the merges can be listed: each split of each piece into two pieces, in the order of the scores. Its unigram
model takes the segmentation with the greatest sum of scores (log-probabilities). Characters outside the vocabulary
become `<0xNN>` tokens, one for each byte, where the vocabulary has those. Source: Kudo and Richardson,
"SentencePiece", 2018; Kudo, "Subword Regularization", 2018.

WordPiece takes the longest token that begins a word, then the longest that continues it (`##…`), and so on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from aie_loader.errors import TokenizerError
from aie_loader.text.charsmap import check_charsmap
from aie_loader.text.library_errors import library_errors

__all__ = ["PieceType", "SentencePieceModel", "add_added_tokens", "sentencepiece", "wordpiece"]

_SPACE = "▁"


class PieceType(IntEnum):
    """As both the SentencePiece format and GGUF number them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """What a SentencePiece model file, or a GGUF file made from one, says."""

    kind: Literal["bpe", "unigram"]
    pieces: Sequence[str]  # id → text, with ▁ for the space
    scores: Sequence[float]
    types: Sequence[int]  # of `PieceType`
    unknown_id: int | None
    # Where a space is put before the text: nowhere, at its start, or also after each special token in it.
    space_prefix: Literal["never", "first", "always"]
    removes_extra_spaces: bool = False  # at both ends, and of several in a row all but one
    charsmap: bytes | None = None  # SentencePiece's compiled normalization (NFKC and the like)


def sentencepiece(model: SentencePieceModel) -> Tokenizer:
    """A `tokenizers.Tokenizer` that encodes as SentencePiece does. Raises `TokenizerError` for a broken vocabulary."""
    _check_unique(model.pieces)
    if model.charsmap:
        check_charsmap(model.charsmap)
    if model.kind == "unigram" and model.unknown_id is None:
        raise TokenizerError("the vocabulary names no token for unknown text", param="tokenizer.ggml.unknown_token_id")
    with library_errors("the SentencePiece vocabulary cannot be used"):
        tokenizer = Tokenizer(_bpe(model) if model.kind == "bpe" else _unigram(model))
        tokenizer.normalizer = _normalizer(model)
    if model.space_prefix == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="first", split=False)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.space_prefix != "never":
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    tokenizer.decoder = decoders.Sequence(steps)
    add_added_tokens(tokenizer, model.pieces, model.types)
    return tokenizer


def add_added_tokens(tokenizer: Tokenizer, pieces: Sequence[str], types: Sequence[int]) -> None:
    """Have control and user-defined pieces matched whole in the text; the first kind is skipped when decoding."""
    whole = {PieceType.UNKNOWN, PieceType.CONTROL, PieceType.USER_DEFINED}
    tokenizer.add_tokens(
        [
            AddedToken(piece, special=kind != PieceType.USER_DEFINED, normalized=False)
            for piece, kind in zip(pieces, types, strict=True)
            if kind in whole
        ]
    )


def wordpiece(
    tokens: Sequence[str],
    *,
    unknown: str,
    lowercase: bool,
    strips_accents: bool | None,  # None: as lowercase
    splits_chinese: bool = True,
) -> Tokenizer:
    """BERT's tokenizer; `tokens[i]` is the text of id i, `##…` for the continuation of a word.

    Special tokens and what is put around a text are the caller's. Raises `TokenizerError`.
    """
    _check_unique(tokens)
    vocab = {token: index for index, token in enumerate(tokens)}
    if unknown not in vocab:
        raise TokenizerError(f"the vocabulary lacks its token for unknown words, {unknown!r}")
    with library_errors("the vocabulary cannot be used"):
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=splits_chinese, strip_accents=strips_accents, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _bpe(model: SentencePieceModel) -> models.BPE:
    vocab = {piece: index for index, piece in enumerate(model.pieces)}
    unknown = None if model.unknown_id is None else model.pieces[model.unknown_id]
    return models.BPE(
        vocab=vocab,
        merges=_merges(model),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=PieceType.BYTE in model.types,
    )


def _merges(model: SentencePieceModel) -> list[tuple[str, str]]:
    normal = {
        piece: (-score, index)
        for index, (piece, score, kind) in enumerate(zip(model.pieces, model.scores, model.types, strict=True))
        if kind == PieceType.NORMAL
    }
    ranked = [
        (*rank, cut, piece[:cut], piece[cut:])
        for piece, rank in normal.items()
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _unigram(model: SentencePieceModel) -> models.Unigram:
    vocab = list(zip(model.pieces, model.scores, strict=True))
    return models.Unigram(vocab, unk_id=model.unknown_id, byte_fallback=PieceType.BYTE in model.types)


def _normalizer(model: SentencePieceModel) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.removes_extra_spaces:
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if model.space_prefix == "always":
        steps.append(normalizers.Prepend(_SPACE))
    steps.append(normalizers.Replace(" ", _SPACE))
    return normalizers.Sequence(steps)


def _check_unique(tokens: Sequence[str]) -> None:
    if len(set(tokens)) != len(tokens):
        seen: set[str] = set()
        twice = next(token for token in tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
        raise TokenizerError(f"the vocabulary lists the token {twice!r} twice", param="tokenizer.ggml.tokens")
