"""Byte-level BPE: how text becomes the alphabet that the merges of a GPT-2 style vocabulary are written in.

BPE merges symbols. GPT-2's trick is to take the 256 byte values as the base symbols, so that any text, and any bytes
at all, can be encoded and no "unknown token" is needed. Vocabularies are stored as text, however, and many byte
values are no printable character; so each byte gets a printable stand-in: printable Latin-1 characters stand for
themselves, and the other 68 bytes take the code points from U+0100 on (the space, 0x20, becomes `Ġ`, U+0120). Source:
Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, §2.2.

Before merging, text is cut into pieces that merges never cross; the rules for that are in `splits.py`.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from aie_loader.errors import TokenizerError
from aie_loader.text.splits import pre_tokenizer, split_rule

__all__ = ["byte_level_bpe", "byte_to_char", "char_to_byte"]


@lru_cache(maxsize=1)
def byte_to_char() -> tuple[str, ...]:
    """The printable stand-in of each byte value: a tuple of 256 one-character strings."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    chars, spare = [], 0x100
    for value in range(256):
        if value in printable:
            chars.append(chr(value))
        else:
            chars.append(chr(spare))
            spare += 1
    return tuple(chars)


@lru_cache(maxsize=1)
def char_to_byte() -> Mapping[str, int]:
    """The inverse of `byte_to_char`."""
    return {char: value for value, char in enumerate(byte_to_char())}


def byte_level_bpe(
    tokens: Sequence[str],
    merges: Sequence[tuple[str, str]],
    added: Mapping[int, bool],
    *,
    pre: str,
) -> Tokenizer:
    """A `tokenizers.Tokenizer` from its parts.

    `tokens[i]` is the text of id i in the byte alphabet; `merges` are in order of priority; `added` maps the ids that
    are matched whole in the text, before any splitting, to whether they are special (skipped when decoding).
    """
    rule = split_rule(pre)
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocab[token] != index)
        raise TokenizerError(f"the vocabulary lists the token {twice!r} twice", param="tokenizer.ggml.tokens")
    try:
        # Llama 3's merge list, for one, relies on whole tokens being taken first.
        model = models.BPE(vocab=vocab, merges=list(merges), ignore_merges=rule.takes_whole_tokens)
    except Exception as error:  # the library raises bare Exception, for instance for a merge of unknown tokens
        raise TokenizerError(f"the vocabulary and the merges do not fit together: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(
        [AddedToken(tokens[index], special=special, normalized=False) for index, special in sorted(added.items())]
    )
    return tokenizer
