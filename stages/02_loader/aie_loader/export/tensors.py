"""A graph's weights as the tensors of a file: `architectures/stored.py` and the families' names, run backwards.

    q, k and v apart                 → one matrix, in Phi-3, GPT-2, GPT-NeoX
    gate and up apart                → one matrix, in Phi-3
    rows of q and k of Llama         → rotary pairs side by side in GGUF, half a head apart in safetensors
    q, then k, then v of GPT-NeoX    → head by head in safetensors
    matrices of GPT-2                → [inputs, outputs] in safetensors
    norms of Gemma                   → weight in GGUF, weight − 1 in safetensors

What moves whole rows moves bytes, so blocks stay as they are. A tensor is made when the writer asks for it, and
forgotten once it is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from aie_loader.architectures.naming import NAMES
from aie_loader.config import ModelConfig
from aie_loader.errors import UnsupportedModelError
from aie_loader.formats.safetensors_writer import PendingTensor
from aie_loader.graph import Graph
from aie_loader.precision import convert_matrix, find_precision
from aie_tensor import DType, Matrix

__all__ = ["AsStored", "Layout", "Types", "stored_tensors"]

Layout = Literal["gguf", "safetensors"]
Order = npt.NDArray[np.int64]

_FUSED_QKV = frozenset({"phi3", "gpt2", "gptneox"})
_TRANSPOSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")  # of GPT-2


class Types(Protocol):
    """What type each weight is written in; `WeightConverter` is one, `AsStored` another."""

    def dtype(self, name: str, matrix: Matrix) -> DType: ...

    def convert(self, name: str, matrix: Matrix) -> Matrix: ...


class AsStored:
    """The type that the weight has, where the format can hold it. Else one that holds every number exactly: F32 for
    blocks in safetensors, F16 for FP8 in GGUF. Vectors are F32 in GGUF, whose readers expect that."""

    def __init__(self, layout: Layout) -> None:
        self._is_gguf = layout == "gguf"

    def dtype(self, name: str, matrix: Matrix) -> DType:
        if not self._is_gguf:
            return DType.F32 if matrix.dtype.is_quantized else matrix.dtype
        if len(matrix.shape) == 1:
            return DType.F32
        return DType.F16 if matrix.dtype.block_bytes == 1 else matrix.dtype

    def convert(self, name: str, matrix: Matrix) -> Matrix:
        wanted = self.dtype(name, matrix)
        if wanted is matrix.dtype:
            return matrix
        if len(matrix.shape) == 2:
            return convert_matrix(matrix, find_precision("fp16" if wanted is DType.F16 else "fp32"))
        return Matrix.from_array(matrix.dequantize())


@dataclass(frozen=True, slots=True)
class _Recipe:
    """One tensor of the file: weights one below the other, then in another order of rows, transposed, shifted."""

    parts: tuple[str, ...]
    order: Order | None = None
    transposed: bool = False
    shift: float = 0.0


def stored_tensors(config: ModelConfig, graph: Graph, layout: Layout, types: Types) -> dict[str, PendingTensor]:
    """Name in the file → tensor, in the order of the graph's weights.

    `config` is the model's own: it says in which form the graph has its weights. UnsupportedModelError for a rotation
    that the format has no order of rows for.
    """
    weights = graph.weights
    tensors: dict[str, PendingTensor] = {}
    for name in weights:
        recipe = _recipe(config, name, weights, layout)
        if recipe is None:
            continue  # part of one that was listed before
        shapes = [weights[part].shape for part in recipe.parts]
        shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        tensors[_file_name(config, name, len(recipe.parts), layout)] = PendingTensor(
            shape[::-1] if recipe.transposed else shape,
            partial(_make, recipe, weights, types),
            types.dtype(name, weights[name]),
        )
    return tensors


def _recipe(config: ModelConfig, name: str, weights: Mapping[str, Matrix], layout: Layout) -> _Recipe | None:
    family, (stem, _, kind) = config.architecture, name.rpartition(".")
    before, _, part = stem.rpartition(".")
    parts: tuple[str, ...] = (name,)
    if family in _FUSED_QKV and part in ("attn_q", "attn_k", "attn_v"):
        if part != "attn_q":
            return None
        parts = tuple(f"{before}.{each}.{kind}" for each in ("attn_q", "attn_k", "attn_v"))
        part = "attn_qkv"
    if family == "phi3" and part in ("ffn_gate", "ffn_up"):
        if part != "ffn_gate":
            return None
        parts = (name, f"{before}.ffn_up.{kind}")
    return _Recipe(
        parts,
        order=_order(config, part, weights[name].shape[0], layout),
        transposed=layout == "safetensors" and family == "gpt2" and kind == "weight" and part in _TRANSPOSED,
        shift=_shift(config, part, layout),
    )


def _order(config: ModelConfig, part: str, num_rows: int, layout: Layout) -> Order | None:
    """For each row of the file, the row of the graph; None: the same."""
    family, dim = config.architecture, config.head_dim
    if family in ("llama", "mistral") and part in ("attn_q", "attn_k"):
        if config.rope_interleaved == (layout == "gguf"):
            return None
        if config.rotary_dim is not None:
            raise UnsupportedModelError(
                f"a {family} model that turns only {config.rotary_dim} of {dim} features of a head has no form in "
                "the other format"
            )
        halves = (2, dim // 2) if layout == "gguf" else (dim // 2, 2)
        return np.arange(num_rows).reshape(-1, *halves).swapaxes(1, 2).reshape(-1)
    if family == "gptneox" and part == "attn_qkv" and layout == "safetensors":
        return np.arange(3 * num_rows).reshape(3, config.num_heads, dim).swapaxes(0, 1).reshape(-1)
    return None


def _shift(config: ModelConfig, part: str, layout: Layout) -> float:
    """What is added to the weights of Gemma's norms."""
    if not config.architecture.startswith("gemma") or not part.endswith("norm"):
        return 0.0
    return config.norm_offset - (1.0 if layout == "safetensors" else 0.0)


def _file_name(config: ModelConfig, name: str, num_parts: int, layout: Layout) -> str:
    if num_parts > 1:
        name = name.replace("attn_q.", "attn_qkv.").replace("ffn_gate.", "ffn_up.")
    if layout == "gguf":
        return name
    named = NAMES[config.architecture].in_checkpoint(name)
    return f"transformer.{named}" if config.architecture == "gpt2" and not named.startswith("lm_head") else named


def _make(recipe: _Recipe, weights: Mapping[str, Matrix], types: Types) -> Matrix:
    made = [types.convert(name, weights[name]) for name in recipe.parts]
    matrix = made[0] if len(made) == 1 else _stacked(made)
    if recipe.order is not None:
        rows = matrix.data.reshape(matrix.shape[0], -1)[recipe.order]
        matrix = Matrix(matrix.dtype, matrix.shape, rows.reshape(-1))
    if recipe.transposed:
        matrix = _transposed(matrix)
    if recipe.shift:
        matrix = Matrix.from_array(matrix.dequantize() + np.float32(recipe.shift), matrix.dtype)
    return matrix


def _stacked(parts: list[Matrix]) -> Matrix:
    """One below the other; they came from one tensor, so they have one type."""
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return Matrix(parts[0].dtype, shape, np.concatenate([part.data for part in parts]))


def _transposed(matrix: Matrix) -> Matrix:
    """Of a plain type: the format that wants it has no other."""
    elements = matrix.data.reshape(*matrix.shape, matrix.dtype.block_bytes)
    turned = np.ascontiguousarray(elements.swapaxes(0, 1))
    return Matrix(matrix.dtype, matrix.shape[::-1], turned.reshape(-1))
