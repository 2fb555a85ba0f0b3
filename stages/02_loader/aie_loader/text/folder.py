"""The tokenizer of a Hugging Face folder: from tokenizer.json, else rebuilt from the files that came before it.

Those hold a vocabulary, not a pipeline: vocab.txt (WordPiece), vocab.json with merges.txt (byte-level BPE), or
SentencePiece's .model. The rest, such as how text is split, was code in the class that tokenizer_config.json names.
So it is rebuilt only for classes whose code is known; any other is refused, with the way to get a tokenizer.json.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import tokenizers

from aie_loader.errors import TokenizerError
from aie_loader.formats import optional_json_object
from aie_loader.text.byte_level import byte_level_bpe
from aie_loader.text.folder_config import FolderConfig
from aie_loader.text.library_errors import library_errors
from aie_loader.text.pieces import PieceType, SentencePieceModel, sentencepiece, wordpiece
from aie_loader.text.sentencepiece_file import read_sentencepiece
from aie_loader.text.special_tokens import SpecialTokens, post_processor

__all__ = ["folder_backend"]

_SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
# Where tokenizer_config.json names no class: by model_type of config.json.
_CLASS_OF_MODEL = {
    "bert": "BertTokenizer", "distilbert": "DistilBertTokenizer", "roberta": "RobertaTokenizer",
    "gpt2": "GPT2Tokenizer", "gpt_neox": "GPTNeoXTokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer",
    "llama": "LlamaTokenizer", "mistral": "LlamaTokenizer", "phi3": "LlamaTokenizer",
    "gemma": "GemmaTokenizer", "gemma2": "GemmaTokenizer", "gemma3_text": "GemmaTokenizer",
    "t5": "T5Tokenizer", "xlm-roberta": "XLMRobertaTokenizer",
}  # fmt: skip
_WORDPIECE = frozenset({"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"})
_BYTE_LEVEL = {  # class → how text is split
    "GPT2Tokenizer": "gpt-2", "GPTNeoXTokenizer": "gpt-2", "CodeGenTokenizer": "gpt-2",
    "Qwen2Tokenizer": "qwen2", "RobertaTokenizer": "roberta-bpe", "BartTokenizer": "roberta-bpe",
}  # fmt: skip
_T5_EXTRA_IDS, _MAX_EXTRA_IDS = 100, 10_000
_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")


def folder_backend(config: FolderConfig) -> tokenizers.Tokenizer:
    """Raises `TokenizerError` when there is no tokenizer, or none that can be read or rebuilt."""
    folder = config.folder
    path = folder / "tokenizer.json"
    if path.is_file():
        with library_errors(f"{path} is not a tokenizer that can be read"):
            return tokenizers.Tokenizer.from_file(str(path))
    pieces = next((folder / name for name in _SENTENCEPIECE_FILES if (folder / name).is_file()), None)
    try:
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            backend = _byte_level(config)
        elif pieces is not None:
            backend = _sentencepiece(config, pieces)
        elif (folder / "vocab.txt").is_file():
            backend = _wordpiece(config)
        else:
            raise TokenizerError(
                f"{folder} has no tokenizer.json, nor the older files that it can be made from: vocab.txt, "
                f"vocab.json with merges.txt, or {', '.join(_SENTENCEPIECE_FILES)}"
            )
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{folder}: a file of the tokenizer is not UTF-8 text") from error
    return backend


def _class_of(config: FolderConfig, known: Mapping[str, object] | frozenset[str]) -> str:
    """The tokenizer's class, which must be one of `known`."""
    named = config.tokenizer.get("tokenizer_class") or _CLASS_OF_MODEL.get(str(config.model.get("model_type")))
    name = str(named or "").removesuffix("Fast")
    if name in known:
        return name
    what = f"is for the class {name}" if name else "does not say which class it is for"
    raise TokenizerError(
        f"{config.folder} has no tokenizer.json, and its vocabulary {what}; aie rebuilds {', '.join(sorted(known))}. "
        "With transformers, AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes a tokenizer.json"
    )


def _wordpiece(config: FolderConfig) -> tokenizers.Tokenizer:
    _class_of(config, _WORDPIECE)
    lines = (config.folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    tokens = [line.rstrip("\r") for line in lines]
    if tokens and not tokens[-1]:
        tokens.pop()
    strips = config.tokenizer.get("strip_accents")
    backend = wordpiece(
        tokens,
        unknown=config.token("unk_token", "[UNK]") or "",
        lowercase=config.flag("do_lower_case", True),
        strips_accents=strips if isinstance(strips, bool) else None,
        splits_chinese=config.flag("tokenize_chinese_chars", True),
    )
    defaults = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    _with_defaults(config, defaults).add_tokens_to(backend)
    return _surrounded(backend, config, SpecialTokens(second_type=1), start="[CLS]", end="[SEP]", as_bert=True)


def _byte_level(config: FolderConfig) -> tokenizers.Tokenizer:
    name = _class_of(config, _BYTE_LEVEL)
    vocab = optional_json_object(config.folder / "vocab.json")
    tokens = sorted(vocab, key=lambda token: _index(config, token, vocab[token]))
    if [vocab[token] for token in tokens] != list(range(len(tokens))):
        raise TokenizerError(f"{config.folder / 'vocab.json'} does not number its tokens from 0 on")
    backend = byte_level_bpe(tokens, _read_merges(config.folder / "merges.txt"), {}, pre=_BYTE_LEVEL[name])
    if config.flag("add_prefix_space", False) and _BYTE_LEVEL[name] != "qwen2":
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    if _BYTE_LEVEL[name] == "roberta-bpe":
        defaults = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        _with_defaults(config, defaults | {"mask_token": "<mask>"}).add_tokens_to(backend)
        around = SpecialTokens(doubles_separator=True)
        return _surrounded(backend, config, around, start="<s>", end="</s>", as_bert=True)
    config.add_tokens_to(backend)
    around = SpecialTokens(starts_second=True)
    start = config.token("bos_token") if config.flag("add_bos_token", False) else None
    return _surrounded(backend, config, around, start=start, end=None)


def _read_merges(path: Path) -> list[tuple[str, str]]:
    merges = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#version"):
            continue
        left, space, right = line.strip("\r").partition(" ")
        if not (left and space and right) or " " in right:
            raise TokenizerError(f"{path} has the line {line!r}, which is not two tokens")
        merges.append((left, right))
    return merges


def _index(config: FolderConfig, token: str, value: object) -> int:
    if not isinstance(value, int):
        raise TokenizerError(f"{config.folder / 'vocab.json'} gives the token {token!r} no number")
    return value


def _sentencepiece(config: FolderConfig, path: Path) -> tokenizers.Tokenizer:
    builders: dict[str, Callable[[FolderConfig, SentencePieceModel], tokenizers.Tokenizer]] = {
        "LlamaTokenizer": _llama, "GemmaTokenizer": _llama, "T5Tokenizer": _t5, "XLMRobertaTokenizer": _xlm_roberta,
    }  # fmt: skip
    name = _class_of(config, builders)
    file = read_sentencepiece(path)
    # The older behaviour, which models were trained with, is what a class does unless told otherwise.
    prefix = "always" if name != "LlamaTokenizer" or config.flag("legacy", True) else "first"
    has_prefix = file.adds_space_prefix and config.flag("add_prefix_space", True)
    model = SentencePieceModel(
        kind="bpe" if file.kind == "bpe" else "unigram",
        pieces=file.pieces,
        scores=file.scores,
        types=file.types,
        unknown_id=file.unknown_id,
        space_prefix=("always" if prefix == "always" else "first") if has_prefix else "never",
        removes_extra_spaces=file.removes_extra_spaces,
        charsmap=file.charsmap,
    )
    return builders[name](config, model)


def _llama(config: FolderConfig, model: SentencePieceModel) -> tokenizers.Tokenizer:
    backend = sentencepiece(model)
    config.add_tokens_to(backend)
    start = config.token("bos_token", "<s>") if config.flag("add_bos_token", True) else None
    end = config.token("eos_token", "</s>") if config.flag("add_eos_token", False) else None
    return _surrounded(backend, config, SpecialTokens(starts_second=True), start=start, end=end)


def _t5(config: FolderConfig, model: SentencePieceModel) -> tokenizers.Tokenizer:
    given = config.tokenizer.get("extra_ids")
    num_extra = given if isinstance(given, int) else _T5_EXTRA_IDS
    if not 0 <= num_extra <= _MAX_EXTRA_IDS:
        raise TokenizerError(f"{config.folder}: extra_ids is {num_extra}; at most {_MAX_EXTRA_IDS} are supported")
    extra = [f"<extra_id_{index}>" for index in reversed(range(num_extra))]
    if extra and extra[0] in model.pieces:
        extra = []
    backend = sentencepiece(
        replace(
            model,
            pieces=[*model.pieces, *extra],
            scores=[*model.scores, *(0.0 for _ in extra)],
            types=[*model.types, *(PieceType.CONTROL for _ in extra)],
        )
    )
    config.add_tokens_to(backend)
    return _surrounded(backend, config, SpecialTokens(), start=None, end="</s>")


def _xlm_roberta(config: FolderConfig, model: SentencePieceModel) -> tokenizers.Tokenizer:
    """Its ids are fairseq's: four tokens in place of SentencePiece's first three, and `<mask>` at the end."""
    control = [PieceType.CONTROL, PieceType.CONTROL, PieceType.CONTROL, PieceType.UNKNOWN]
    backend = sentencepiece(
        replace(
            model,
            pieces=[*_FAIRSEQ, *model.pieces[3:], "<mask>"],
            scores=[0.0] * 4 + list(model.scores[3:]) + [0.0],
            types=[*control, *model.types[3:], PieceType.CONTROL],
            unknown_id=_FAIRSEQ.index("<unk>"),
        )
    )
    config.add_tokens_to(backend)
    return _surrounded(backend, config, SpecialTokens(doubles_separator=True), start="<s>", end="</s>", as_bert=True)


def _with_defaults(config: FolderConfig, tokens: Mapping[str, str]) -> FolderConfig:
    return replace(config, special={**tokens, **config.special})


def _surrounded(
    backend: tokenizers.Tokenizer,
    config: FolderConfig,
    around: SpecialTokens,
    *,
    start: str | None,
    end: str | None,
    as_bert: bool = False,
) -> tokenizers.Tokenizer:
    """`backend` with the tokens that go around a text; with `as_bert` the files may give them other names."""
    if as_bert:
        start, end = config.token("cls_token", start), config.token("sep_token", end)
    processor = post_processor(replace(around, start=_known(backend, start), end=_known(backend, end)))
    if processor is not None:
        backend.post_processor = processor
    return backend


def _known(backend: tokenizers.Tokenizer, token: str | None) -> tuple[str, int] | None:
    if token is None:
        return None
    index = backend.token_to_id(token)
    if index is None:
        raise TokenizerError(f"the tokenizer wants {token!r} around a text, but its vocabulary does not have it")
    return token, index
