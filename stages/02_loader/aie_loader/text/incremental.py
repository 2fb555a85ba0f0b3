"""Token ids into text while they arrive: the part of a tokenizer that streaming needs.

A token is a run of bytes, not of characters: `你` may take two tokens, an emoji three. Decoding each token alone would
show replacement characters, and decoding the whole answer again for every token would cost O(n²). So the decoder keeps
the few bytes that cannot be shown yet, at most three, and everything before them is out: O(1) per token.

Invariant, for all decoders: whatever the ids and however they are cut into pushes, all the pushes' texts and that of
`finish()` joined together equal `Tokenizer.decode` of all the ids. Bytes that can become no character turn into U+FFFD
as soon as that is certain, one for each maximal invalid part (the Unicode Standard, §3.9, "U+FFFD substitution").
"""

import codecs
from collections.abc import Callable, Iterable
from typing import Protocol

__all__ = ["ByteFallbackDecoder", "ByteLevelDecoder", "IncrementalDecoder", "MetaspaceDecoder"]

_REPLACEMENT = "\ufffd"


class IncrementalDecoder(Protocol):
    """One per stream; not thread-safe."""

    def push(self, ids: Iterable[int]) -> str:
        """The text that has become certain with these ids; may be empty, never ends inside a character."""
        ...

    def finish(self) -> str:
        """What is left: "" or replacement characters for an unfinished sequence. The decoder is as new afterwards."""
        ...


class ByteLevelDecoder:
    """For byte-level BPE, where every token has bytes. `bytes_of(id)` is b"" for ids that are skipped."""

    __slots__ = ("_bytes_of", "_utf8")

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        return self._utf8.decode(b"".join(map(self._bytes_of, ids)))

    def finish(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class ByteFallbackDecoder:
    """For SentencePiece vocabularies: text pieces with `▁` for the space, and `<0xNN>` tokens for bytes without a
    piece.

    A run of byte tokens is text only as a whole: if it is not valid UTF-8, every byte of it is replaced. So the run is
    held back until a text piece ends it; it is as long as the longest stretch of characters outside the vocabulary.
    `piece_of(id)` is None for ids that are skipped. `strips_space`: the text's first space is not part of it.
    `has_bytes=False`: a piece `<0xNN>` is text like any other.
    """

    __slots__ = ("_at_start", "_has_bytes", "_piece_of", "_run", "_strips_space")

    def __init__(self, piece_of: Callable[[int], str | None], *, strips_space: bool, has_bytes: bool = True) -> None:
        self._piece_of = piece_of
        self._has_bytes = has_bytes
        self._strips_space = strips_space
        self._run = bytearray()
        self._at_start = True

    def push(self, ids: Iterable[int]) -> str:
        parts: list[str] = []
        for piece in map(self._piece_of, ids):
            if piece is None:
                continue
            if self._has_bytes and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
                self._run.append(int(piece[3:5], 16))
            else:
                parts.append(self._end_run())
                parts.append(piece.replace("▁", " "))
        return self._stripped("".join(parts))

    def finish(self) -> str:
        text = self._stripped(self._end_run())
        self._at_start = True
        return text

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return _REPLACEMENT * len(run)

    def _stripped(self, text: str) -> str:
        if text and self._at_start:
            self._at_start = False
            return text.removeprefix(" ") if self._strips_space else text
        return text


class MetaspaceDecoder:
    """For SentencePiece vocabularies without tokens for bytes: every piece is text, with `▁` for the space.

    `piece_of(id)` is None for ids that are skipped. `strips_space`: the `▁` of the first piece are no text.
    """

    __slots__ = ("_at_start", "_piece_of", "_strips_space")

    def __init__(self, piece_of: Callable[[int], str | None], *, strips_space: bool) -> None:
        self._piece_of = piece_of
        self._strips_space = strips_space
        self._at_start = True

    def push(self, ids: Iterable[int]) -> str:
        parts: list[str] = []
        for piece in map(self._piece_of, ids):
            if piece is not None:
                parts.append(piece.replace("▁", "" if self._at_start and self._strips_space else " "))
                self._at_start = False
        return "".join(parts)

    def finish(self) -> str:
        self._at_start = True
        return ""
