"""The files that sentence-transformers puts beside an encoder: how tokens become one vector, how long a text may be.

modules.json                   the steps: Transformer, Pooling, Normalize
1_Pooling/config.json          {"pooling_mode_mean_tokens": true, …}
sentence_bert_config.json      {"max_seq_length": 256}
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from aie_loader.architectures.encoders.heads import Head, PoolKind
from aie_loader.config import Fields
from aie_loader.errors import MalformedHeaderError, UnsupportedModelError
from aie_loader.formats import parse_json, read_json_object
from aie_loader.formats.source import SourceFile

__all__ = ["sentence_head"]

_MODULES = "modules.json"
_MAX_BYTES = 1 << 20
_KINDS: Mapping[str, PoolKind] = {  # in the order in which several are put side by side
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_OTHER_KINDS = ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")


def sentence_head(folder: Path) -> Head | None:
    """What `modules.json` says is done behind the encoder; None where there is no such file or no pooling in it."""
    path = folder / _MODULES
    if not path.is_file():
        return None
    pooling: tuple[PoolKind, ...] = ()
    normalize = False
    for fields in _modules(path):
        kind = fields.text("type", "").rpartition(".")[2]
        if kind == "Pooling" and not pooling:
            pooling = _pooling(folder, fields)
        elif kind == "Normalize" and pooling:
            normalize = True
        elif kind != "Transformer" or pooling:
            raise UnsupportedModelError(
                f"{path}: the step {kind[:60]!r} is not supported there; known are Transformer, Pooling and Normalize, "
                "in this order"
            )
    return Head("pool", pooling, normalize) if pooling else None


def _modules(path: Path) -> list[Fields]:
    with SourceFile(path) as source:
        if source.size_bytes > _MAX_BYTES:
            raise MalformedHeaderError(f"{path} has {source.size_bytes:,} bytes; at most {_MAX_BYTES:,} are accepted")
        steps = parse_json(source.read(0, source.size_bytes), str(path))
    if not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps):
        raise MalformedHeaderError(f"{path} must be a list of objects, the steps of the model")
    return [Fields(step, f"{path}: step {number}") for number, step in enumerate(steps)]


def _pooling(folder: Path, step: Fields) -> tuple[PoolKind, ...]:
    inside = PurePosixPath(step.text("path", ""))
    if inside.is_absolute() or ".." in inside.parts:
        raise step.wrong("path", "a folder inside the model's")
    path = folder.joinpath(*inside.parts, "config.json")
    fields = Fields(read_json_object(path), str(path))
    for key in _OTHER_KINDS:
        if fields.flag(key, False):
            raise UnsupportedModelError(f"{path}: {key} is not supported yet; known are {', '.join(_KINDS)}")
    if fields.get("pooling_mode") is not None:
        return _named(fields)
    return tuple(kind for key, kind in _KINDS.items() if fields.flag(key, False)) or ("mean",)


def _named(fields: Fields) -> tuple[PoolKind, ...]:
    """One word, or a list of words, which are put side by side as they stand."""
    names: Mapping[object, PoolKind] = {"cls": "cls", "max": "max", "mean": "mean", "lasttoken": "last"}
    value = fields.get("pooling_mode")
    words = value if isinstance(value, list) and value else [value]
    if not all(isinstance(word, str) and word in names for word in words):
        raise UnsupportedModelError(
            f"{fields.where}: the pooling {str(value)[:60]!r} is not supported yet; known are cls, max, mean, lasttoken"
        )
    return tuple(names[word] for word in words)
