"""What model files say about their tokenizer, checked: GGUF metadata, and the JSON files of a Hugging Face folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aie_loader.byte_level import SUPPORTED_PRE_TOKENIZERS
from aie_loader.errors import TokenizerError
from aie_loader.formats import optional_json_object

__all__ = ["GGUFVocabulary", "folder_token_ids"]

_CONTROL, _USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """The `tokenizer.ggml.*` keys of a byte-level BPE tokenizer."""

    tokens: list[str]  # id → text in the byte alphabet
    merges: list[tuple[str, str]]  # in order of priority
    added: dict[int, bool]  # id matched whole in the text → whether it is a control token
    pre: str  # how text is split before merging
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]  # end of text, of turn, of message: each ends an answer
    adds_bos: bool

    @classmethod
    def parse(cls, metadata: Mapping[str, object]) -> "GGUFVocabulary":
        """Raises `TokenizerError` naming the key that is missing, wrong or not supported."""
        kind = metadata.get("tokenizer.ggml.model")
        if kind is None:
            raise TokenizerError("the file has no tokenizer (tokenizer.ggml.model)", param="tokenizer.ggml.model")
        if kind != "gpt2":
            raise TokenizerError(
                f"tokenizer.ggml.model is {kind!r}; supported is gpt2 (byte-level BPE)", param="tokenizer.ggml.model"
            )
        pre = metadata.get("tokenizer.ggml.pre")
        if not isinstance(pre, str):
            raise TokenizerError(
                "the file does not say how its tokenizer splits text (tokenizer.ggml.pre); convert the model again "
                f"with a newer converter (supported: {', '.join(SUPPORTED_PRE_TOKENIZERS)})",
                param="tokenizer.ggml.pre",
            )
        tokens = _strings(metadata, "tokenizer.ggml.tokens")
        merges = [_pair(merge) for merge in _strings(metadata, "tokenizer.ggml.merges")]
        types = metadata.get("tokenizer.ggml.token_type")
        if types is None:
            types = []
        elif not isinstance(types, list | tuple) or len(types) != len(tokens):
            raise TokenizerError("tokenizer.ggml.token_type must have one number per token")
        eos = (_token_id(metadata, f"tokenizer.ggml.{name}_token_id", len(tokens)) for name in ("eos", "eot", "eom"))
        return cls(
            tokens,
            merges,
            {index: kind == _CONTROL for index, kind in enumerate(types) if kind in {_CONTROL, _USER_DEFINED}},
            pre,
            _token_id(metadata, "tokenizer.ggml.bos_token_id", len(tokens)),
            tuple(dict.fromkeys(index for index in eos if index is not None)),
            # Files of Llama 3 were written before the key existed, and its tokenizer does add the token.
            bool(metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe")),
        )


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
        raise TokenizerError(f"{key} is missing or is not a list of texts", param=key)
    return list(value)


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        raise TokenizerError(
            f"tokenizer.ggml.merges has {merge!r}, which is not two tokens", param="tokenizer.ggml.merges"
        )
    return left, right


def _token_id(metadata: Mapping[str, object], key: str, num_tokens: int) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < num_tokens:
        raise TokenizerError(f"{key} is {value!r}, but the vocabulary has {num_tokens} tokens", param=key)
    return value


def folder_token_ids(folder: Path, token_to_id: Callable[[str], int | None]) -> tuple[int | None, tuple[int, ...]]:
    """The BOS id and all EOS ids that a model folder names.

    generation_config.json and config.json give ids, tokenizer_config.json gives tokens; instruction-tuned models often
    name the end of a turn in one of them and the end of the text in another, and either ends an answer. Raises
    `MalformedHeaderError` for a file that is not a JSON object.
    """
    bos: list[int] = []
    eos: list[int] = []
    for name in ("generation_config.json", "config.json"):
        config = optional_json_object(folder / name)
        bos += _id_list(config.get("bos_token_id"))
        eos += _id_list(config.get("eos_token_id"))
    config = optional_json_object(folder / "tokenizer_config.json")
    for key, ids in (("bos_token", bos), ("eos_token", eos)):
        token = config.get(key)
        if isinstance(token, Mapping):  # older files describe the token: {"content": "</s>", "lstrip": false, …}
            token = token.get("content")
        index = token_to_id(token) if isinstance(token, str) else None
        if index is not None:
            ids.append(index)
    return (bos[0] if bos else None), tuple(dict.fromkeys(eos))


def _id_list(value: object) -> list[int]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, int) and not isinstance(item, bool) and item >= 0]
