"""How text is cut before byte-level BPE merges it: the rules behind the names in a GGUF file's `tokenizer.ggml.pre`.

Merges never cross a cut, so the wrong rule gives plausible but wrong ids. A name stands for a list of regular
expressions, which are applied one after the other: each cuts every piece that the ones before have left into its
matches and what lies between them. The patterns are those of the models' published tokenizer.json files, and what a
name means is defined by llama.cpp, the program that GGUF files are written for. A name that is not here is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex, pre_tokenizers

from aie_loader.errors import TokenizerError

__all__ = ["SPLIT_RULES", "SUPPORTED_PRE_TOKENIZERS", "SplitRule", "pre_tokenizer", "split_rule"]


@dataclass(frozen=True, slots=True)
class SplitRule:
    """What a name in `tokenizer.ggml.pre` says about a tokenizer."""

    patterns: tuple[str, ...]  # regular expressions in the syntax of Oniguruma, in order
    takes_whole_tokens: bool = False  # a piece that is itself a token is taken without merging
    adds_bos: bool = False  # where the file does not say: it was written before the key existed
    composes: bool = False  # text is brought into Unicode's form NFC first
    doubles_separator: bool = False  # RoBERTa: <s> first </s></s> second </s>


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"

_LLAMA3 = rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ENGLISH}|{_WORD}|\p{{N}}|{_REST}"
_QWEN35 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"
# A cascade of run lengths in place of \s+: Jais 2 has tokens for runs of 2, 4, 8, … spaces.
_JAIS2 = (
    rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
    + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s{1}"
)

# Words in two cases: capitals first, then small letters, each with what has no case.
_UPPER, _LOWER, _LEAD = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[^\r\n\p{L}\p{N}]?"
_CASED_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
_GPT4O_WORDS = rf"{_LEAD}{_UPPER}*{_LOWER}+{_ENGLISH}?|{_LEAD}{_UPPER}+{_LOWER}*{_ENGLISH}?"
_GPT4O = rf"{_GPT4O_WORDS}|\p{{N}}{{1,3}}|{_CASED_REST}"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_REST}"
_YOUTU_ASIAN = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)

# Letters with case, as listed in DeepSeek LLM's tokenizer.json: an older Unicode's, so no property of today names them.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-"
    "\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _DEEPSEEK_ASIAN,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_ASIAN, r"\p{N}")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACE}",
)

_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED_CODER = rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}"
_EXAONE_MOE = (
    rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)

_RULES: tuple[tuple[tuple[str, ...], SplitRule], ...] = (
    (("default",), SplitRule(_DEFAULT)),
    (
        # Not all are models of OpenAI: each of these splits as GPT-2 does.
        ("gpt-2", "gpt2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum",
         "modern-bert", "mpt", "olmo", "jais", "exaone4", "trillion", "granite-docling"),
        SplitRule((_GPT2,)),
    ),
    (("roberta-bpe", "jina-v1-en", "jina-v2-code"), SplitRule((_GPT2,), doubles_separator=True)),
    (
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        SplitRule((r"\p{N}", _GPT2)),
    ),
    (
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        SplitRule((_LLAMA3,), takes_whole_tokens=True, adds_bos=True),
    ),
    (("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), SplitRule((_LLAMA3,))),
    (("jais-2",), SplitRule((_JAIS2,))),
    (("qwen2", "deepseek-r1-qwen", "megrez"), SplitRule((_QWEN2,), composes=True)),
    (("stablelm2", "hunyuan", "solar-open", "grok-2", "kormo", "f2llmv2"), SplitRule((_QWEN2,))),
    (("qwen35",), SplitRule((_QWEN35,), composes=True)),
    (("tekken",), SplitRule((_TEKKEN,), takes_whole_tokens=True, adds_bos=True)),
    (("gpt-4o", "llama4", "kanana2", "minimax-m2"), SplitRule((_GPT4O,))),
    (("tiny_aya",), SplitRule((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))),
    (("youtu",), SplitRule((_YOUTU_ASIAN, rf"{_GPT4O_WORDS}|\p{{N}}|{_CASED_REST}"), takes_whole_tokens=True)),
    (("deepseek-llm",), SplitRule(_DEEPSEEK_LLM)),
    (("deepseek-coder",), SplitRule(_DEEPSEEK_CODER)),
    (("deepseek-v3", "step35", "hunyuan-dense", "joyai-llm"), SplitRule(_DEEPSEEK3)),
    (("falcon",), SplitRule(_FALCON)),
    (("bloom", "poro-chat", "gpt3-finnish"), SplitRule((_BLOOM,))),
    (("viking",), SplitRule((_BLOOM, r"\p{N}"))),
    (("chameleon",), SplitRule(_CHAMELEON, adds_bos=True)),
    (("bailingmoe", "bailingmoe2", "llada-moe"), SplitRule((_BAILING,))),
    (("seed-coder",), SplitRule((_SEED_CODER,))),
    (("exaone-moe",), SplitRule((_EXAONE_MOE,))),
)  # fmt: skip

SPLIT_RULES: Mapping[str, SplitRule] = MappingProxyType({name: rule for names, rule in _RULES for name in names})
SUPPORTED_PRE_TOKENIZERS = tuple(sorted(SPLIT_RULES))


def split_rule(name: str) -> SplitRule:
    """The rule that `tokenizer.ggml.pre` calls `name`. Raises `TokenizerError`, naming the known ones."""
    rule = SPLIT_RULES.get(name)
    if rule is None:
        supported = ", ".join(SUPPORTED_PRE_TOKENIZERS)
        raise TokenizerError(
            f"pre-tokenizer {name!r} is not supported (supported: {supported})", param="tokenizer.ggml.pre"
        )
    return rule


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The splitter for `name`, which also turns bytes into their stand-ins. Raises `TokenizerError`."""
    patterns = split_rule(name).patterns
    if patterns[-1] == _GPT2:  # built into the library, and many times faster there
        last, patterns = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), patterns[:-1]
    else:
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*map(_split, patterns), last]) if patterns else last


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    if pattern == r"\p{N}":  # what `char::is_numeric` says in the library
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
