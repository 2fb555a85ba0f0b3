"""From the fused graph to a plan: one method per operator, each appends one entry.

Weights are packed once, on first use, into the layout that the kernels like, and stay in the format of their file; a
type without a kernel is expanded to float32, which changes no value. A table of embeddings is read where it is, row by
row, so that a tied output head costs one packed copy and not two.

Axes: T tokens in the step, R rows whose logits are wanted, S sequences, B items, C hidden, F ffn, H query heads, G
key/value heads, D head size, V vocabulary, N/K output and reduction dims of a matmul.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np

from aie_engine.errors import UnsupportedOpError
from aie_engine.executors.lowering_dense import DENSE_OPERATORS
from aie_engine.executors.mapped import drop_pages
from aie_engine.executors.protocol import Float32Array
from aie_engine.executors.shared_weights import SharedWeights
from aie_loader import Graph, Node, WeightConverter
from aie_loader.graph import Shape
from aie_tensor import DType, InvalidInputError, Matrix
from aie_tensor.native import DOT_FORMATS, FORMATS, INDICES, Buffer, PackedMatrix, PlanBuilder
from aie_tensor.ops import Activations

__all__ = ["Lowering"]

_PRODUCTS = frozenset({"linear", "linear_concat", "linear_add", "swiglu"})
_MAX_PACKERS = 4
_ROWS = {"T": "tokens", "R": "logits", "S": "sequences", "B": "items"}


class Lowering:
    """Appends the nodes of `graph` to `builder`. `buffer` says where a value lives, by its name.

    expanded: bytes of float32 by the type of the weights that have no kernel. converter: changes the precision of each
    matrix as it is packed, so that no more than one of them lies around in between. shared: where packed weights lie
    that other processes read, too, instead of among the builder's constants. activations: as the products of language
    models read them; InvalidInputError, naming the weight, for a type that has no product with int8 ones.
    """

    def __init__(
        self,
        graph: Graph,
        builder: PlanBuilder,
        buffer: Callable[[str], Buffer],
        converter: WeightConverter | None = None,
        shared: SharedWeights | None = None,
        activations: Activations = "fp32",
    ) -> None:
        self.builder = builder
        self.buffer = buffer
        self.shapes = graph.shapes
        self.expanded: dict[DType, int] = {}
        self.origins: list[str] = []  # of each operator of the plan, the node that it came from
        self._weights = graph.weights
        self._converter = converter
        self._shared = shared
        self._activations = activations
        self._num_arrays = 0
        self._packed: dict[str, PackedMatrix] = {}
        self._tables: dict[str, Matrix] = {}

    def append(self, nodes: Sequence[Node]) -> None:
        """Append `nodes`, which are in executable order.

        Raises `UnsupportedOpError`, before any weight is packed, for a node without a kernel, or with a constant that
        its kernel does not know.
        """
        for node in nodes:
            self._check(node)
        self._pack_ahead(nodes)
        for node in nodes:
            _OPERATORS[node.op][0](self, node)
            self.origins += [node.name] * (self.builder.num_ops - len(self.origins))

    def rows(self, name: str) -> Any:
        """Over which rows the value's operator runs: its first axis."""
        size = _first(self.shapes[name])
        return size if isinstance(size, int) else _ROWS[size]

    def item(self, name: str) -> tuple[Any, tuple[int, ...]]:
        """Rows of a value, and the shape of one of them; without an axis of unknown length it is one row as a whole."""
        is_batch = isinstance(_first(self.shapes[name]), str)
        return self.rows(name) if is_batch else 1, self.known(name)[int(is_batch) :]

    def known(self, name: str) -> tuple[int, ...]:
        """The value's shape, with 1 in the place of a first axis of unknown length."""
        return tuple(size if isinstance(size, int) else 1 for size in self.shapes[name])

    def as_row(self, name: str) -> Buffer:
        """The value's buffer, seen as rows of what `item` calls one."""
        return Buffer(self.buffer(name).address, prod(self.item(name)[1]))

    def vector(self, name: str) -> Float32Array:
        """A weight as float32, in its own shape."""
        return self._weights[name].dequantize()

    def packed_bytes(self) -> dict[str, int]:
        """Of each weight that was packed."""
        return {name: packed.nbytes for name, packed in self._packed.items()}

    def pack_array(self, array: Float32Array) -> PackedMatrix:
        """Weights [N, K] in float32, as the kernels read them."""
        self._num_arrays += 1
        return self._pack(f"array {self._num_arrays}", array.shape, lambda: Matrix.from_array(array))

    def pack(self, name: str) -> PackedMatrix:
        """A weight [N, K] as the kernels read it; packed once."""
        if name not in self._packed:
            matrix = self._weights[name]
            self._packed[name] = self._pack(name, matrix.shape, lambda: self._readable(name), self._activations)
            drop_pages(matrix)  # from now on the packed copy is read
        return self._packed[name]

    def _pack(
        self, name: str, shape: tuple[int, ...], matrix: Callable[[], Matrix], activations: Activations = "fp32"
    ) -> PackedMatrix:
        if self._shared is not None:
            return self._shared.packed(self.builder.lib, name, shape, matrix)
        allocate = self.builder.constants.allocate
        return PackedMatrix.pack(
            self.builder.lib,
            matrix(),
            allocate=lambda nbytes: allocate(nbytes, "packed weights"),
            activations=activations,
        )

    def _readable(self, name: str) -> Matrix:
        """A weight in a type that has a kernel."""
        readable = self._tables[name] if name in self._tables else self._converted(name)
        if self._activations == "int8" and readable.dtype not in DOT_FORMATS:
            known = ", ".join(dtype.name for dtype in DOT_FORMATS)
            raise InvalidInputError(
                f"{name} is {readable.dtype.name}, of which there is no product with int8 activations (there is of "
                f"{known}). Put the weights into int8 or int4, too (--quantize int8), or leave activations at fp32.",
                param="activations",
            )
        return readable if readable.dtype in FORMATS else self._expand(self._weights[name])

    def _pack_ahead(self, nodes: Sequence[Node]) -> None:
        """Pack what the products need, a few matrices at a time: reading a file's pages and writing new ones waits more
        than it computes. Where precisions change, one after the other, so that no two lie around in between."""
        if self._converter is not None:
            return
        read = (name for node in nodes if node.op in _PRODUCTS for name in node.inputs[1:])
        names = dict.fromkeys(name for name in read if name in self._weights)  # each once, in order
        ready = [name for name in names if len(self._weights[name].shape) == 2 and self._weights[name].dtype in FORMATS]
        try:
            with ThreadPoolExecutor(max_workers=min(_MAX_PACKERS, self.builder.num_threads)) as threads:
                for _ in threads.map(self.pack, ready):
                    pass  # raises what packing raised
        except RuntimeError:  # the system gives no more threads: each is packed where it is used
            return

    def _check(self, node: Node) -> None:
        def refuse(what: str) -> UnsupportedOpError:
            return UnsupportedOpError(node.name, what, "native")

        if node.op not in _OPERATORS:
            raise refuse(node.op)
        for key in node.attrs:
            if key not in _OPERATORS[node.op][1]:
                raise refuse(f"{node.op} with {key}")
        for name in (node.name, *node.inputs):
            first, rest = _first(self.shapes[name]), self.shapes[name][1:]
            if (isinstance(first, str) and first not in _ROWS) or any(isinstance(size, str) for size in rest):
                raise refuse(f"{node.op} of shape {list(self.shapes[name])}")
        parameters = node.inputs[_PARAMETERS.get(node.op, slice(0, 0))]
        if node.op == "embedding" and node.inputs[0] not in INDICES:
            raise refuse(f"embedding of {node.inputs[0]}")
        if any((name in self._weights) != (name in parameters) for name in node.inputs):
            raise refuse(f"{node.op} of these weights")

    def _embedding(self, node: Node) -> None:
        index, name = node.inputs
        if name not in self._tables:
            table = self._converted(name)
            if table is not self._weights[name]:
                kept = self.builder.constants.allocate(table.nbytes, "converted tables")
                kept[:] = table.data
                table = Matrix(table.dtype, table.shape, kept)
                drop_pages(self._weights[name])
            if table.dtype not in FORMATS:
                table = Matrix.from_array(self.builder.constants.store(self._expand(table).array(), "expanded weights"))
            self._tables[name] = table
        self.builder.embed(
            self._tables[name], self.buffer(node.name), index=index, scale=_attrs(node).get("scale", 1.0)
        )

    def _converted(self, name: str) -> Matrix:
        matrix = self._weights[name]
        return matrix if self._converter is None else self._converter.convert(name, matrix)

    def _expand(self, matrix: Matrix) -> Matrix:
        expanded = Matrix.from_array(matrix.dequantize())
        drop_pages(matrix)
        self.expanded[matrix.dtype] = self.expanded.get(matrix.dtype, 0) + expanded.nbytes
        return expanded

    def _rms_norm(self, node: Node) -> None:
        x, weight = node.inputs
        attrs, out = _attrs(node), self.buffer(node.name)
        self.builder.rms_norm(
            self.buffer(x), self.vector(weight), attrs["eps"], out, self.rows(node.name),
            offset=attrs.get("offset", 0.0), num_heads=attrs.get("num_heads", 1),
        )  # fmt: skip

    def _layer_norm(self, node: Node) -> None:
        x, weight, *bias = node.inputs
        vector, out = self.vector(weight), self.as_row(node.name)
        shift = self.vector(bias[0]) if bias else None
        self.builder.layer_norm(
            self.as_row(x), vector, shift, _attrs(node)["eps"], out, self.item(x)[0], num_parts=out.width // len(vector)
        )

    def _l2_normalize(self, node: Node) -> None:
        rows, shape = self.item(node.name)
        x, out = self.as_row(node.inputs[0]), self.as_row(node.name)
        self.builder.l2_normalize(x, out, rows, num_parts=prod(shape[:-1]))

    def _linear(self, node: Node, residual: str | None = None) -> None:
        """x [., K], weights [N, K], biases [N] or none → [., ΣN]."""
        parameters = [name for name in node.inputs[1:] if name in self._weights]
        biases = [self.vector(name) for name in parameters if len(self._weights[name].shape) == 1]
        self.builder.linear(
            self.buffer(node.inputs[0]),
            [self.pack(name) for name in parameters if len(self._weights[name].shape) == 2],
            self.buffer(node.name),
            add=None if residual is None else self.buffer(residual),
            biases=biases or None,
            rows=self.rows(node.name),
        )

    def _linear_add(self, node: Node) -> None:
        self._linear(node, residual=node.inputs[-1])

    def _swiglu(self, node: Node) -> None:
        x, gate, up = node.inputs
        out = self.buffer(node.name)
        self.builder.swiglu(self.buffer(x), self.pack(gate), self.pack(up), out, rows=self.rows(node.name))

    def _rope(self, node: Node) -> None:
        self.builder.rope(
            self.buffer(node.inputs[0]), self.buffer(node.name), num_heads=_attrs(node)["num_heads"], **_turning(node)
        )

    def _attention(self, node: Node) -> None:
        q, k, v = map(self.buffer, node.inputs)
        self.builder.attention(q, k, v, self.buffer(node.name), **_heads(node, *_OF_SCORES))

    def _rope_attention(self, node: Node) -> None:
        qkv, out = self.buffer(node.inputs[0]), self.buffer(node.name)
        self.builder.rope_attention(qkv, out, **{**_turning(node), **_heads(node, *_OF_SCORES)})

    def _encoder_attention(self, node: Node) -> None:
        q, k, v = map(self.buffer, node.inputs)
        self.builder.encoder_attention(q, k, v, self.buffer(node.name), **_heads(node))

    def _select_rows(self, node: Node) -> None:
        self.builder.select_rows(self.buffer(node.inputs[0]), self.buffer(node.name))

    def _pool_tokens(self, node: Node) -> None:
        self.builder.pool_tokens(self.buffer(node.inputs[0]), self.buffer(node.name), _attrs(node)["kind"])

    def _map(self, node: Node) -> None:
        attrs = _attrs(node)
        constant = attrs.get("factor", attrs.get("cap", 1.0))
        x, out = self.as_row(node.inputs[0]), self.as_row(node.name)
        self.builder.map(node.op, x, out, self.item(node.name)[0], constant=constant)

    def _mul(self, node: Node) -> None:
        a, b = map(self.as_row, node.inputs)
        self.builder.mul(a, b, self.as_row(node.name), self.item(node.name)[0])

    def _add(self, node: Node) -> None:
        a, b = map(self.as_row, node.inputs)
        self.builder.add(a, b, self.as_row(node.name), self.item(node.name)[0])


def _first(shape: Shape) -> int | str:
    return shape[0] if shape else 1


def _attrs(node: Node) -> Mapping[str, Any]:
    # What each operator's attributes are is the loader's contract; shape inference has checked them.
    return node.attrs


def _turning(node: Node) -> dict[str, Any]:
    """What a rotation needs to know; how many features turn is said by the number of frequencies."""
    attrs = _attrs(node)
    return {
        "head_dim": attrs["head_dim"],
        "inv_freq": np.asarray(attrs["inv_freq"], dtype=np.float32),
        "interleaved": attrs["interleaved"],
        "attention_factor": attrs.get("attention_factor", 1.0),
    }


def _heads(node: Node, *others: str) -> dict[str, Any]:
    attrs = _attrs(node)
    heads = {key: attrs[key] for key in ("num_heads", "head_dim", "scale")}
    heads["num_kv_heads"] = attrs.get("num_kv_heads", attrs["num_heads"])
    return heads | {key: attrs[key] for key in others if key in attrs}


_OF_HEADS = ("num_heads", "num_kv_heads", "head_dim", "scale")
_OF_SCORES = ("layer", "window", "softcap", "alibi_slopes")
_OF_ROPE = ("num_heads", "head_dim", "rotary_dim", "interleaved", "inv_freq", "attention_factor")
_OF_ONE_ELEMENT = ("silu", "relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "quick_gelu")

Append = Callable[[Lowering, Node], None]

_OPERATORS: Mapping[str, tuple[Append, Sequence[str]]] = {
    "embedding": (Lowering._embedding, ["scale"]),
    "rms_norm": (Lowering._rms_norm, ["eps", "offset", "num_heads"]),
    "layer_norm": (Lowering._layer_norm, ["eps"]),
    "l2_normalize": (Lowering._l2_normalize, []),
    "linear": (Lowering._linear, []),
    "linear_concat": (Lowering._linear, ["num_weights"]),
    "linear_add": (Lowering._linear_add, []),
    "swiglu": (Lowering._swiglu, []),
    "rope": (Lowering._rope, _OF_ROPE),
    "attention": (Lowering._attention, (*_OF_HEADS, *_OF_SCORES)),
    "rope_attention": (Lowering._rope_attention, (*_OF_HEADS, *_OF_SCORES, *_OF_ROPE)),
    "encoder_attention": (Lowering._encoder_attention, _OF_HEADS),
    "select_rows": (Lowering._select_rows, []),
    "pool_tokens": (Lowering._pool_tokens, ["kind"]),
    **dict.fromkeys(_OF_ONE_ELEMENT, (Lowering._map, ())),
    "scale": (Lowering._map, ["factor"]),
    "softcap": (Lowering._map, ["cap"]),
    "mul": (Lowering._mul, []),
    "add": (Lowering._add, []),
    **DENSE_OPERATORS,
}
"""How each operator is appended, and the constants that it takes into account: others are refused, never ignored."""

_PARAMETERS: Mapping[str, slice] = {
    **dict.fromkeys(("embedding", "rms_norm", "layer_norm", "linear", "linear_concat", "swiglu"), slice(1, None)),
    **dict.fromkeys(("conv1d", "conv2d", "batch_norm", "group_norm"), slice(1, None)),
    "linear_add": slice(1, -1),
}
"""Which inputs must be weights of the file; all others must be computed."""
