"""Which files of a repository on a hub a loader needs. Nothing else is fetched, and above all no code."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from aie_loader.errors import ModelNotFoundError
from aie_loader.fetching.hub_names import HubName, gguf_models, pick_gguf

__all__ = ["HubFile", "choose_files", "is_safe_path", "main_file"]

# Beside the weights: configuration, tokenizers old and new, chat templates, the parts of a sentence encoder.
_BESIDE = frozenset(
    {
        "config.json", "generation_config.json", "preprocessor_config.json",
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
        "chat_template.jinja", "chat_template.json",
        "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
    }
)  # fmt: skip
_IN_FOLDERS = re.compile(r"additional_chat_templates/[^/]+\.jinja|\d+_\w+/(config\.json|model\.safetensors)")
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", r"model-\d+-of-\d+\.safetensors")
_TORCH = ("pytorch_model.bin", "pytorch_model.bin.index.json", r"pytorch_model-\d+-of-\d+\.bin")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file as the hub lists it. One of the digests is there; it is the file's ETag too."""

    name: str  # path in the repository, with /
    size_bytes: int
    sha256: str | None = None  # of files in Git LFS: weights
    git_sha1: str | None = None  # Git's name for the contents of the others


def choose_files(files: Sequence[HubFile], name: HubName) -> list[HubFile]:
    """What to fetch for `name`. Weights as safetensors are preferred, then those of PyTorch, then GGUF.

    Raises `ModelNotFoundError` where there is nothing that a loader reads, or nothing of the kind that was selected.
    """
    by_name = {file.name: file for file in files if is_safe_path(file.name)}
    weights = [] if name.selection is not None else _weights(by_name)
    if weights:
        beside = [other for other in by_name if other in _BESIDE or _IN_FOLDERS.fullmatch(other)]
        return [by_name[other] for other in sorted({*beside, *weights})]
    if gguf_models(by_name):
        return [by_name[other] for other in pick_gguf(by_name, name)]
    kinds = "GGUF" if name.selection is not None else "safetensors, PyTorch (pytorch_model.bin) or GGUF"
    raise ModelNotFoundError(f"{name.repo} holds no weights as {kinds}", param="model")


def _weights(names: Iterable[str]) -> list[str]:
    root = sorted(name for name in names if "/" not in name)
    for single, index, shard in (_SAFETENSORS, _TORCH):
        if single in root:
            return [single]
        shards = [name for name in root if re.fullmatch(shard, name)]
        if shards and index in root:
            return [index, *shards]
    return [name for name in root if name.endswith(".safetensors") and not name.startswith(("consolidated", "adapter"))]


def main_file(names: Iterable[str], name: HubName) -> str | None:
    """What a loader is given of the files that are here: a GGUF file, or None for the whole folder.

    Raises `ModelNotFoundError` where that is not clear.
    """
    names = list(names)
    if name.selection is None and _weights(names):
        return None
    return pick_gguf(names, name)[0]


def is_safe_path(name: str) -> bool:
    """Whether a path from the hub stays inside the folder it is put into, on every system."""
    parts = PurePosixPath(name).parts
    unwanted = {"", ".", ".."}
    return (
        bool(parts)
        and not name.startswith("/")
        and name.isprintable()  # no control characters, no lone surrogates
        and not any(char in name for char in '\\:*?"<>|\0')
        and not unwanted & set(name.split("/"))
        and not any(part.startswith(".") for part in parts)
    )
