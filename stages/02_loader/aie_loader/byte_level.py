"""Byte-level BPE: how text becomes the alphabet that the merges of a GPT-2 style vocabulary are written in.

BPE merges symbols. GPT-2's trick is to take the 256 byte values as the base symbols, so that any text, and any bytes
at all, can be encoded and no "unknown token" is needed. Vocabularies are stored as text, however, and many byte
values are no printable character; so each byte gets a printable stand-in: printable Latin-1 characters stand for
themselves, and the other 68 bytes take the code points from U+0100 on (the space, 0x20, becomes `Ġ`, U+0120). Source:
Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, §2.2.

Before merging, text is cut into pieces that merges never cross. How to cut is not in the vocabulary: GGUF files name
it in `tokenizer.ggml.pre`, and the wrong cut gives plausible but wrong ids. So unknown names are refused, not
guessed.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from aie_loader.errors import TokenizerError

__all__ = ["SUPPORTED_PRE_TOKENIZERS", "byte_level_bpe", "byte_to_char", "char_to_byte", "pre_tokenizer"]

# Split patterns as published in the models' own tokenizer.json files.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_PATTERN = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2_PATTERN = rf"{_WORDS}|\p{{N}}|{_REST}"
SUPPORTED_PRE_TOKENIZERS = ("gpt-2", "gpt2", "llama-bpe", "qwen2", "smollm")


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


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The splitter that `tokenizer.ggml.pre` calls `name`. Raises `TokenizerError` for names of unknown rule."""
    byte_level = pre_tokenizers.ByteLevel
    if name in {"gpt-2", "gpt2"}:
        return byte_level(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, byte_level(add_prefix_space=False, use_regex=True)])
    patterns = {"llama-bpe": _LLAMA3_PATTERN, "qwen2": _QWEN2_PATTERN}
    if name not in patterns:
        supported = ", ".join(SUPPORTED_PRE_TOKENIZERS)
        raise TokenizerError(
            f"pre-tokenizer {name!r} is not supported (supported: {supported})", param="tokenizer.ggml.pre"
        )
    split = pre_tokenizers.Split(Regex(patterns[name]), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, byte_level(add_prefix_space=False, use_regex=False)])


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
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocab[token] != index)
        raise TokenizerError(f"the vocabulary lists the token {twice!r} twice", param="tokenizer.ggml.tokens")
    try:
        # Llama 3 takes a piece that is itself a token without merging; its merge list relies on that.
        model = models.BPE(vocab=vocab, merges=list(merges), ignore_merges=pre == "llama-bpe")
    except Exception as error:  # the library raises bare Exception, for instance for a merge of unknown tokens
        raise TokenizerError(f"the vocabulary and the merges do not fit together: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(
        [AddedToken(tokens[index], special=special, normalized=False) for index, special in sorted(added.items())]
    )
    return tokenizer
