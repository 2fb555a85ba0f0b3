"""A folder's tokenizer as the `tokenizer.ggml.*` keys of a GGUF file.

Two kinds are known: byte-level BPE, and SentencePiece's BPE. Neither is stored in GGUF as it is in tokenizer.json. Of
the first, GGUF has no rule by which text is cut before merging, only the rule's name; so the name is found by cutting a
text full of corner cases with each known rule. Of the second, it has scores instead of merges; a piece's score is the
rank of the first merge that makes it. What comes out is read back and must give the same ids, or the tokenizer is
refused: plausible but wrong ids are worse than none.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from aie_loader.chat.template import ChatTemplate
from aie_loader.errors import TokenizerError
from aie_loader.text.pieces import PieceType
from aie_loader.text.splits import SPLIT_RULES, pre_tokenizer
from aie_loader.text.tokenizer import Tokenizer

__all__ = ["tokenizer_metadata"]

Document = Mapping[str, Any]  # tokenizer.json

_PREFIX = "tokenizer.ggml."
_ENDS = ("eos", "eot", "eom")
_PROBE = (
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
    if document["model"].get("type") != "BPE":
        raise TokenizerError(f"a tokenizer of the kind {document['model'].get('type')} cannot be written as GGUF yet")
    tokens, types = _tokens(document, vocab_size)
    common = {
        f"{_PREFIX}tokens": tokens,
        f"{_PREFIX}token_type": [int(kind) for kind in types],
        **_ids(tokenizer, template, document),
        f"{_PREFIX}add_bos_token": _adds(tokenizer, first=True),
        f"{_PREFIX}add_eos_token": _adds(tokenizer, first=False),
        **_templates(template),
    }
    ways = _sentencepiece(document, tokens, types) if document["model"].get("byte_fallback") else _byte_level(document)
    for way in ways:
        metadata = way | common
        if _gives_the_same(tokenizer, metadata):
            return metadata
    raise TokenizerError("the tokenizer does what GGUF has no keys for: read back from them, it gives other ids")


def _byte_level(document: Document) -> Iterator[dict[str, object]]:
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
    yield {f"{_PREFIX}model": "gpt2", f"{_PREFIX}pre": _rule(document), f"{_PREFIX}merges": merges}


def _sentencepiece(document: Document, tokens: list[str], types: list[PieceType]) -> Iterator[dict[str, object]]:
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(document["model"]["merges"]):
        ranks.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), rank)
    normal = [kind is PieceType.NORMAL for kind in types]
    scores = [
        -float(ranks.get(token, len(ranks) + index)) if is_normal else 0.0
        for index, (token, is_normal) in enumerate(zip(tokens, normal, strict=True))
    ]
    for space in (True, False):
        yield {f"{_PREFIX}model": "llama", f"{_PREFIX}scores": scores, f"{_PREFIX}add_space_prefix": space}


def _tokens(document: Document, vocab_size: int) -> tuple[list[str], list[PieceType]]:
    tokens = [f"[PAD{index}]" for index in range(vocab_size)]
    types = [PieceType.UNUSED] * vocab_size
    has_bytes = bool(document["model"].get("byte_fallback"))
    for token, index in document["model"]["vocab"].items():
        is_byte = has_bytes and len(token) == 6 and token.startswith("<0x")
        tokens[index], types[index] = token, PieceType.BYTE if is_byte else PieceType.NORMAL
    for added in document["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = PieceType.CONTROL if added["special"] else PieceType.USER_DEFINED
        if has_bytes and added["content"] == document["model"].get("unk_token"):
            types[added["id"]] = PieceType.UNKNOWN
    return tokens, types


def _ids(tokenizer: Tokenizer, template: ChatTemplate | None, document: Document) -> dict[str, object]:
    # Byte-level BPE needs no token for what is unknown, but its files may name one, which templates can ask for.
    unknown = document["model"].get("unk_token") or (template.tokens.get("unk_token") if template else None)
    ids = {
        "bos": tokenizer.bos_token_id,
        **dict(zip(_ENDS, tokenizer.eos_token_ids, strict=False)),
        "padding": tokenizer.batch_rules.pad_token_id,
        "unknown": None if unknown is None else document["model"]["vocab"].get(unknown),
    }
    return {f"{_PREFIX}{name}_token_id": index for name, index in ids.items() if index is not None}


def _adds(tokenizer: Tokenizer, *, first: bool) -> bool:
    """Whether something is put before a text, or after it."""
    plain, whole = tokenizer.encode("a"), tokenizer.encode("a", add_special_tokens=True)
    return whole[:1] != plain[:1] if first else whole[-1:] != plain[-1:]


def _templates(template: ChatTemplate | None) -> dict[str, object]:
    sources = {} if template is None else template.sources
    key = "tokenizer.chat_template"
    return {key if name == "default" else f"{key}.{name}": source for name, source in sources.items()}


def _rule(document: Document) -> str:
    """The name of the rule that cuts as this tokenizer does."""
    backend = tokenizers.Tokenizer.from_str(json.dumps(document))
    if backend.pre_tokenizer is not None:
        cuts = backend.pre_tokenizer.pre_tokenize_str(_PROBE)
        composes = (document.get("normalizer") or {}).get("type") == "NFC"
        whole = bool(document["model"].get("ignore_merges"))
        for name, rule in SPLIT_RULES.items():
            fits = (rule.composes, rule.takes_whole_tokens) == (composes, whole)
            if fits and pre_tokenizer(name).pre_tokenize_str(_PROBE) == cuts:
                return name
    raise TokenizerError("the tokenizer cuts text by a rule for which GGUF has no name that aie knows")


def _gives_the_same(tokenizer: Tokenizer, metadata: Mapping[str, object]) -> bool:
    again = Tokenizer.from_gguf(metadata)
    return all(
        again.encode(_PROBE, add_special_tokens=special) == tokenizer.encode(_PROBE, add_special_tokens=special)
        for special in (True, False)
    )
