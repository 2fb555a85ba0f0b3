"""A model's tokens as bytes, which is all that a constraint needs to know of a tokenizer.

A grammar speaks of text, a model of tokens, and one token may span several of a grammar's symbols (`":` ends a string
and begins what follows it). The library therefore keeps all tokens in a trie of bytes and walks it along with the
parser; a subtree whose first byte is not allowed is never entered.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Protocol

from aie_engine.constraints.library import load_library
from aie_tensor import InvalidInputError

__all__ = ["TokenSource", "library_tokenizer"]

_MAX_FORCED: Final = 512  # far longer than any token


class TokenSource(Protocol):
    """The part of a tokenizer that constraints need."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_ids(self) -> AbstractSet[int]: ...

    def encode(self, text: str, *, add_special_tokens: bool = False, parse_special: bool = True) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class _Vocabulary:
    """What the library's wrapper asks for."""

    def __init__(self, tokenizer: TokenSource, vocab_size: int, eos_token_id: int) -> None:
        known = min(tokenizer.vocab_size, vocab_size)
        self.tokens = [_bytes_of(tokenizer, token) for token in range(known)] + [b""] * (vocab_size - known)
        self.special_token_ids = sorted(token for token in tokenizer.special_ids if token < vocab_size)
        self.eos_token_id = eos_token_id
        self.bos_token_id: int | None = None
        self._tokenizer = tokenizer
        special = set(self.special_token_ids)
        self._id_of = {text: token for token, text in enumerate(self.tokens) if text and token not in special}
        self._longest = max(map(len, self._id_of), default=1)

    def __call__(self, data: bytes) -> list[int]:
        """How the model writes `data`, where a grammar leaves no choice but that: the beginning of it, since only the
        next token is of interest, and a grammar may leave no choice for very long.

        Some tokenizers write a text that stands by itself differently, with a space before it; what they give is
        taken only if it stands for just these bytes.
        """
        data = _beginning(data)
        try:
            ids = self._tokenizer.encode(data.decode(), parse_special=False)
        except UnicodeDecodeError:
            ids = []
        if all(token < len(self.tokens) for token in ids) and b"".join(self.tokens[token] for token in ids) == data:
            return ids
        return self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        ids: list[int] = []
        begin = 0
        while begin < len(data):
            ends = range(min(len(data), begin + self._longest), begin, -1)
            end = next((end for end in ends if data[begin:end] in self._id_of), None)
            if end is None:  # no token at all begins with this byte
                break
            ids.append(self._id_of[data[begin:end]])
            begin = end
        return ids


def _beginning(data: bytes) -> bytes:
    """At most `_MAX_FORCED` bytes, without a part of a character at their end."""
    if len(data) <= _MAX_FORCED:
        return data
    whole = data[:_MAX_FORCED].decode("utf-8", "ignore").encode()
    return whole if data.startswith(whole) else data[:_MAX_FORCED]


def _bytes_of(tokenizer: TokenSource, token: int) -> bytes:
    try:
        return tokenizer.token_bytes(token)
    except InvalidInputError:  # an id without a token
        return b""


def library_tokenizer(tokenizer: TokenSource, vocab_size: int, eos_token_ids: Sequence[int]) -> Any:
    """The library's own view of `tokenizer`; takes a moment, for it looks at every token.

    vocab_size: of the model, whose logits may be more than the tokenizer has tokens; those never come.
    """
    library = load_library()
    ends = [token for token in eos_token_ids if 0 <= token < vocab_size]
    vocabulary = _Vocabulary(tokenizer, vocab_size, ends[0] if ends else vocab_size - 1)
    return library.LLTokenizer(
        library.TokenizerWrapper(vocabulary), n_vocab=vocab_size, eos_token=ends or [vocabulary.eos_token_id]
    )
