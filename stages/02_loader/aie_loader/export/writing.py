"""A loaded decoder back into a file: one GGUF file, or a Hugging Face folder with safetensors.

    tensors.py     the weights, in the names, shapes and orders of the format
    gguf_keys.py        the configuration as GGUF keys        vocabulary.py   the tokenizer as GGUF keys
    config_json.py        the configuration as config.json      check.py       does the file say it all?

Tensors are made and written one at a time, so a model larger than memory can be converted.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from aie_loader.architectures import ARCHITECTURES
from aie_loader.config import ModelConfig, RopeScaling
from aie_loader.errors import UnsupportedModelError
from aie_loader.export.check import check_same_model
from aie_loader.export.config_json import config_json, json_family
from aie_loader.export.gguf_keys import file_type, gguf_family, gguf_metadata, rotary_divisors
from aie_loader.export.tensors import AsStored, Layout, Types, stored_tensors
from aie_loader.export.vocabulary import tokenizer_metadata
from aie_loader.formats.gguf_writer import write_gguf
from aie_loader.formats.safetensors_writer import PendingTensor, write_safetensors
from aie_loader.model import Model
from aie_loader.passes import WeightConverter
from aie_loader.precision import Precision
from aie_tensor import DType, EnvironmentLacksError, InvalidInputError, Matrix

__all__ = ["Progress", "export_gguf", "export_safetensors", "written_tensors"]

Progress = Callable[[int, int], None]
"""Takes bytes of tensors made so far, and bytes in all."""

_KEPT_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model"})  # of a folder's small files: tokenizer, templates …
_MAX_KEPT_BYTES = 64 << 20
_TORCH_NAMES = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16",
                DType.F64: "float64", DType.F8_E4M3: "float8_e4m3fn", DType.F8_E5M2: "float8_e5m2",
                DType.F8_E4M3FNUZ: "float8_e4m3fnuz", DType.F8_E5M2FNUZ: "float8_e5m2fnuz"}  # fmt: skip
_OF_ONE_FILE = ("split.no", "split.count", "split.tensors.count", "general.alignment")


def export_gguf(
    model: Model, path: Path | str, precision: Precision | None = None, *, progress: Progress | None = None
) -> Path:
    """Write one GGUF file, tokenizer and chat template included; it appears complete or not at all.

    precision: of the matrices; None keeps each as it is. UnsupportedModelError, TokenizerError for what the format has
    no way to say. EnvironmentLacksError when the disk is full.
    """
    path = Path(path)
    config = model.config
    tensors = written_tensors(model, "gguf", precision)
    if model.format == "gguf":
        metadata = {key: value for key, value in model.metadata.items() if key not in _OF_ONE_FILE}
        if precision is not None:  # how the blocks were made that are no more
            metadata = {key: value for key, value in metadata.items() if not key.startswith("quantize.")}
    else:
        metadata = gguf_metadata(config, model.name)
        _check_gguf(config, metadata)
        metadata |= tokenizer_metadata(model.tokenizer, model.chat_template, config.vocab_size)
    metadata["general.file_type"] = file_type(_bytes_by_type(tensors))
    return write_gguf(path, metadata, _watched(tensors, progress))


def export_safetensors(
    model: Model, folder: Path | str, precision: Precision | None = None, *, progress: Progress | None = None
) -> Path:
    """Write config.json, model.safetensors, tokenizer.json, tokenizer_config.json and the chat template into `folder`.

    precision: fp32, fp16 or bf16; None keeps plain types and expands blocks to F32, which loses nothing.
    InvalidInputError for block precisions, UnsupportedModelError for what config.json has no way to say,
    EnvironmentLacksError when the disk is full.
    """
    if precision is not None and precision.dtype.is_quantized:
        raise InvalidInputError(
            f"a safetensors folder holds fp32, fp16 or bf16; for {precision.name}, name a .gguf file", param="out"
        )
    folder = Path(folder)
    tensors = written_tensors(model, "safetensors", precision)
    sizes = _bytes_by_type(tensors)
    document = _config_document(model, _TORCH_NAMES[max(sizes, key=lambda dtype: sizes[dtype])])
    write_safetensors(folder / "model.safetensors", _watched(tensors, progress))
    try:
        _write_json(folder / "config.json", document)
        _write_text_files(model, folder)
    except OSError as error:
        raise EnvironmentLacksError(f"{folder} cannot be written: {error}") from error
    return folder


def written_tensors(model: Model, layout: Layout, precision: Precision | None) -> dict[str, PendingTensor]:
    """Name in the file → tensor, as the exports write them."""
    types: Types = AsStored(layout) if precision is None else WeightConverter(model.graph, precision)
    tensors = stored_tensors(model.config, model.graph, layout, types)
    divisors = rotary_divisors(model.config) if layout == "gguf" else None
    if divisors is not None:
        tensors["rope_freqs.weight"] = PendingTensor(divisors.shape, lambda: divisors)
    return tensors


def _bytes_by_type(tensors: Mapping[str, PendingTensor]) -> Mapping[DType, int]:
    sizes: Counter[DType] = Counter()
    for tensor in tensors.values():
        sizes[tensor.dtype] += tensor.nbytes
    return sizes


def _watched(tensors: Mapping[str, PendingTensor], progress: Progress | None) -> Mapping[str, PendingTensor]:
    """The same tensors, with a report after each is made."""
    if progress is None:
        return tensors
    total = sum(tensor.nbytes for tensor in tensors.values())
    made = 0

    def watched(tensor: PendingTensor) -> PendingTensor:
        def make() -> Matrix:
            nonlocal made
            matrix = tensor.matrix()
            made += tensor.nbytes
            progress(made, total)
            return matrix

        return PendingTensor(tensor.shape, make, tensor.dtype)

    return {name: watched(tensor) for name, tensor in tensors.items()}


def _check_gguf(config: ModelConfig, metadata: Mapping[str, object]) -> None:
    from_gguf = ARCHITECTURES[gguf_family(config)].from_gguf
    if from_gguf is None:
        raise UnsupportedModelError(f"GGUF has no name for models of the family {config.architecture}")
    read = from_gguf(metadata, "the GGUF file")
    divisors = rotary_divisors(config)
    if divisors is not None:
        read = replace(read, rope_scaling=RopeScaling("factors", factors=tuple(map(float, divisors.array()))))
    check_same_model(config, read, "GGUF")


def _config_document(model: Model, dtype: str) -> Mapping[str, object]:
    if model.format == "safetensors":
        named = {key: dtype for key in ("dtype", "torch_dtype") if key in model.metadata}
        return {**model.metadata, **(named or {"torch_dtype": dtype})}
    document = config_json(model.config, dtype, model.graph.weights)
    read = ARCHITECTURES[json_family(model.config)].from_json(document, None, "config.json")
    check_same_model(model.config, read, "config.json")
    return document


def _write_text_files(model: Model, folder: Path) -> None:
    """The tokenizer and what belongs to it: copied from a folder, written anew from a GGUF file."""
    if model.format == "safetensors":
        source = model.path if model.path.is_dir() else model.path.parent
        for path in [*source.iterdir(), *source.glob("additional_chat_templates/*")]:
            is_kept = path.suffix in _KEPT_SUFFIXES and not path.name.endswith(".index.json")
            if is_kept and path.name != "config.json" and path.stat().st_size <= _MAX_KEPT_BYTES:
                copy = folder / path.relative_to(source)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)
        return
    tokenizer = model.tokenizer
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    ids = {
        "bos_token": tokenizer.bos_token_id,
        "eos_token": next(iter(tokenizer.eos_token_ids), None),
        "unk_token": model.metadata.get("tokenizer.ggml.unknown_token_id"),
        "pad_token": tokenizer.batch_rules.pad_token_id,
    }
    texts = {name: tokenizer.token_text(index) for name, index in ids.items() if isinstance(index, int)}
    length = tokenizer.batch_rules.max_length
    limit = {} if length is None else {"model_max_length": length}
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **texts, **limit})
    for name, source_text in ({} if model.chat_template is None else model.chat_template.sources).items():
        path = Path("chat_template.jinja") if name == "default" else Path("additional_chat_templates", f"{name}.jinja")
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(source_text, encoding="utf-8")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
