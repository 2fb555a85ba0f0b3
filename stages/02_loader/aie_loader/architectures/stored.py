"""Weights that files store in another form than the graph wants them in.

    Phi-3, GPT-2, GPT-NeoX   q, k and v as one matrix          → three, as views of its rows
    Phi-3                    gate and up as one matrix         → two, as views of its rows
    GPT-2 (safetensors)      matrices as [inputs, outputs]     → transposed, a copy
    GPT-NeoX (safetensors)   rows of q, k and v head by head   → q, then k, then v, a copy
    Llama 3.1 … (GGUF)       divisors of the frequencies as a tensor → part of the configuration

Views cost nothing; a copy is made once, in the type that the file has.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, prod

import numpy as np

from aie_loader.architectures.naming import NAMES
from aie_loader.config import ModelConfig, RopeScaling
from aie_loader.errors import MalformedHeaderError, TensorShapeError, UnsupportedTensorTypeError
from aie_tensor import Matrix

__all__ = ["unstored"]

Tensors = Mapping[str, Matrix]
InFile = Callable[[str], str]
_JOINED = re.compile(r"\b(attn_[qkv]|ffn_gate)\b")


def unstored(
    config: ModelConfig, tensors: Tensors, where: str, *, is_gguf: bool
) -> tuple[ModelConfig, Tensors, InFile | None]:
    """Configuration, tensors, and the names under which to find them (None: as in the family's checkpoints)."""
    if is_gguf:
        config, tensors = _stretched(config, dict(tensors), where)
        named: InFile = _same
    else:
        named = NAMES[config.architecture].in_checkpoint
    if config.architecture == "gpt2" and not is_gguf:
        tensors = {name.removeprefix("transformer."): matrix for name, matrix in tensors.items()}
    if config.architecture not in ("phi3", "gpt2", "gptneox"):
        return config, tensors, named if is_gguf else None
    parts = _split(config, tensors, where, named, is_gguf=is_gguf)
    return config, parts, lambda name: name if name in parts else _name_or_same(named, name)


def _same(name: str) -> str:
    return name


def _name_or_same(named: InFile, name: str) -> str:
    """The file's name of the matrix that a tensor is a part of, or else its own; the graph's where there is neither."""
    for asked in (_JOINED.sub(_joined, name), name):
        try:
            return named(asked)
        except KeyError:
            continue
    return name


def _joined(match: re.Match[str]) -> str:
    return "attn_qkv" if match[0].startswith("attn") else "ffn_up"


def _stretched(config: ModelConfig, tensors: dict[str, Matrix], where: str) -> tuple[ModelConfig, Tensors]:
    """GGUF's `rope_freqs.weight` [D/2]: what each frequency is divided by."""
    stored = tensors.pop("rope_freqs.weight", None)
    if stored is None:
        return config, tensors
    pairs = (config.rotary_dim or config.head_dim) // 2
    if prod(stored.shape) != pairs:
        raise TensorShapeError(
            f"{where}: rope_freqs.weight has the shape {list(stored.shape)}; a head has {pairs} rotary pairs"
        )
    factors = tuple(map(float, stored.dequantize().reshape(-1)))
    if not all(0 < factor < inf for factor in factors):
        raise MalformedHeaderError(f"{where}: rope_freqs.weight holds numbers that are not finite and positive")
    return replace(config, rope_scaling=RopeScaling("factors", factors=factors)), tensors


def _split(config: ModelConfig, tensors: Tensors, where: str, named: InFile, *, is_gguf: bool) -> Tensors:
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = dict(tensors)
    for layer in range(config.num_layers):
        for kind in ("weight", "bias"):
            if not is_gguf and config.architecture == "gpt2" and kind == "weight":
                for part in ("attn_qkv", "attn_output", "ffn_up", "ffn_down"):
                    name = named(f"blk.{layer}.{part}.weight")
                    if name in parts:
                        parts[name] = _transposed(parts[name], name, where)
            joined = named(f"blk.{layer}.attn_qkv.{kind}")
            if joined in parts:
                matrix = _whole(parts.pop(joined), joined, q + 2 * kv, where)
                if not is_gguf and config.architecture == "gptneox":
                    matrix = _by_kind(matrix, config.num_heads, where, joined)
                sizes = {"attn_q": q, "attn_k": kv, "attn_v": kv}
                parts |= {f"blk.{layer}.{part}.{kind}": rows for part, rows in _cut(matrix, sizes).items()}
        joined = named(f"blk.{layer}.ffn_up.weight")
        if config.architecture == "phi3" and joined in parts:
            wide = config.intermediate_size
            matrix = _whole(parts.pop(joined), joined, 2 * wide, where)
            cut = _cut(matrix, {"ffn_gate": wide, "ffn_up": wide})
            parts |= {f"blk.{layer}.{part}.weight": rows for part, rows in cut.items()}
    return parts


def _whole(matrix: Matrix, name: str, rows: int, where: str) -> Matrix:
    if not matrix.shape or matrix.shape[0] != rows:
        raise TensorShapeError(f"{where}: tensor {name!r} has the shape {list(matrix.shape)}; it must have {rows} rows")
    return matrix


def _cut(matrix: Matrix, sizes: Mapping[str, int]) -> dict[str, Matrix]:
    """Runs of rows as matrices of their own, on the same bytes."""
    row_bytes = matrix.nbytes // matrix.shape[0]
    parts, begin = {}, 0
    for name, rows in sizes.items():
        data = matrix.data[begin * row_bytes : (begin + rows) * row_bytes]
        parts[name] = Matrix(matrix.dtype, (rows, *matrix.shape[1:]), data)
        begin += rows
    return parts


def _transposed(matrix: Matrix, name: str, where: str) -> Matrix:
    if len(matrix.shape) != 2:
        raise TensorShapeError(f"{where}: tensor {name!r} has the shape {list(matrix.shape)}; it must be a matrix")
    elements = _elements(matrix, name, where)
    return _rebuilt(matrix, np.ascontiguousarray(elements.T))


def _by_kind(matrix: Matrix, num_heads: int, where: str, name: str) -> Matrix:
    """Rows [H, 3, D] → [3, H, D]."""
    elements = _elements(matrix, name, where)
    heads = elements.reshape(num_heads, 3, -1, *elements.shape[1:])
    return _rebuilt(matrix, np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(elements.shape))


def _elements(matrix: Matrix, name: str, where: str) -> np.ndarray:
    """The elements as unsigned integers of their size, so that any plain type can be moved about."""
    size = matrix.dtype.block_bytes
    if matrix.dtype.block_size != 1 or size not in (1, 2, 4, 8):
        raise UnsupportedTensorTypeError(
            f"{where}: tensor {name!r} is {matrix.dtype.name}, whose blocks cannot be transposed or reordered; "
            "convert the model to a plain type first"
        )
    return matrix.data.view(f"<u{size}").reshape(matrix.shape)


def _rebuilt(matrix: Matrix, elements: np.ndarray) -> Matrix:
    return Matrix(matrix.dtype, elements.shape, elements.reshape(-1).view(np.uint8))
