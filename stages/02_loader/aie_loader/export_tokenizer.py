"""A folder's tokenizer as the `tokenizer.ggml.*` keys of a GGUF file.

A GGUF file does not hold the rule by which text is cut before merging, only its name; so the name is found by cutting
a text full of corner cases with each known rule. What comes out is read back and must give the same ids, or the
tokenizer is refused: plausible but wrong ids are worse than none.
"""

import json
from collections.abc import Mapping
from typing import Any

import tokenizers

from aie_loader.chat import ChatTemplate
from aie_loader.errors import TokenizerError
from aie_loader.tokenizer import Tokenizer
from aie_loader.tokenizer_splits import SPLIT_RULES, pre_tokenizer

__all__ = ["tokenizer_metadata"]

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # of tokenizer.ggml.token_type
_ENDS = ("eos", "eot", "eom")
PROBE = (
    "Don't, WE'LL, I'm; they've it's 'twas. x=1234567890+42; 3.14159 1,000 2nd\n\n\n  def f(a, b):\n\treturn a+b  \n"
    "\r\n  trailing   spaces   \n\n Ünïcödé Straße ΑΒΓ где 東京都は春です。 안녕 하세요 नमस्ते e\u0301 \u00a0"
    "\u2009 — “quotes” … \U0001f389\U0001f469\u200d\U0001f680 "
    "<|x|> [INST] </s> a/b\\c #tag @name $5.00 50% ~/.bashrc http://a.b/c?d=e&f=g CamelCaseWORDS snake_case\t\ttabs "
)


def tokenizer_metadata(tokenizer: Tokenizer, template: ChatTemplate | None, vocab_size: int) -> dict[str, object]:
    """The keys. `vocab_size`: rows of the embedding; ids without a token get a filler, as GGUF wants one for each.

    TokenizerError for a kind of tokenizer that these keys cannot describe.
    """
    document = json.loads(tokenizer.to_json())
    if document["model"].get("type") != "BPE" or document["model"].get("byte_fallback"):
        kind = "SentencePiece BPE" if document["model"].get("byte_fallback") else document["model"].get("type")
        raise TokenizerError(f"a tokenizer of the kind {kind} cannot be written as GGUF yet; only byte-level BPE can")
    tokens, types = _tokens(document, vocab_size)
    ids = {"bos": tokenizer.bos_token_id, **dict(zip(_ENDS, tokenizer.eos_token_ids, strict=False))}
    adds_bos = tokenizer.encode("a", add_special_tokens=True) != tokenizer.encode("a")
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _rule(tokenizers.Tokenizer.from_str(json.dumps(document)), document),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge)
                                  for merge in document["model"]["merges"]],
        **{f"tokenizer.ggml.{name}_token_id": index for name, index in ids.items() if index is not None},
        "tokenizer.ggml.add_bos_token": adds_bos,
        **({} if template is None else {"tokenizer.chat_template": template.source}),
    }  # fmt: skip
    _check(tokenizer, metadata)
    return metadata


def _tokens(document: Mapping[str, Any], vocab_size: int) -> tuple[list[str], list[int]]:
    tokens = [f"[PAD{index}]" for index in range(vocab_size)]
    types = [_UNUSED] * vocab_size
    for token, index in document["model"]["vocab"].items():
        tokens[index], types[index] = token, _NORMAL
    for added in document["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = _CONTROL if added["special"] else _USER_DEFINED
    return tokens, types


def _rule(backend: tokenizers.Tokenizer, document: Mapping[str, Any]) -> str:
    """The name of the rule that cuts as this tokenizer does."""
    cuts = backend.pre_tokenizer.pre_tokenize_str(PROBE)
    composes = (document.get("normalizer") or {}).get("type") == "NFC"
    whole = bool(document["model"].get("ignore_merges"))
    for name, rule in SPLIT_RULES.items():
        if (rule.composes, rule.takes_whole_tokens) == (composes, whole):
            cut = pre_tokenizer(name).pre_tokenize_str(PROBE)
            if cut == cuts:
                return name
    raise TokenizerError("the tokenizer cuts text by a rule for which GGUF has no name that aie knows")


def _check(tokenizer: Tokenizer, metadata: Mapping[str, object]) -> None:
    again = Tokenizer.from_gguf(metadata)
    for special in (True, False):
        if again.encode(PROBE, add_special_tokens=special) != tokenizer.encode(PROBE, add_special_tokens=special):
            raise TokenizerError(
                "the tokenizer does something that GGUF has no keys for: read back, it gives other ids"
            )
