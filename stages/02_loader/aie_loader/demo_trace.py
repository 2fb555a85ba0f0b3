"""The stage's demonstration, part 7: one number followed from its byte in the file to a logit.

The interpreter below is the whole of what executing a graph means: walk the nodes in Kahn's order, look the inputs up,
apply the operator. It has no cache and serves one text; stage 4 is about what a server needs beyond it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from aie_loader.evaluation import EVALUATORS
from aie_loader.formats import read_gguf_header
from aie_loader.graph import Graph
from aie_loader.model import Model
from aie_tensor import DType, Matrix, ops

__all__ = ["evaluate", "show_trace"]

_WATCHED = ("embed", "blk.0.attn_norm", "blk.0.attn_residual", "blk.0.ffn_residual", "output_norm")


Expanded = dict[str, Any]


def evaluate(graph: Graph, token_ids: list[int], expanded: Expanded | None = None) -> dict[str, Any]:
    """Every value of an unfused decoder graph for one text; logits of its last token. `expanded` keeps the weights in
    float32 for a second run."""
    num = len(token_ids)
    expanded = {} if expanded is None else expanded
    values: dict[str, Any] = {"token_ids": np.array(token_ids), "positions": np.arange(num)}
    for node in graph.sorted():
        inputs = [
            _weight(graph, node.op, name, expanded) if name in graph.weights else values[name] for name in node.inputs
        ]
        if node.op == "attention":
            values[node.name] = _attention(node.attrs, inputs)
        elif node.op == "select_rows":
            values[node.name] = inputs[0][-1:]
        else:
            values[node.name] = EVALUATORS[node.op](node.attrs, inputs, np.array([0, num]))
    return values


def _weight(graph: Graph, op: str, name: str, expanded: Expanded) -> Any:
    if op == "embedding":  # only rows of its table are needed
        return graph.weights[name]
    if name not in expanded:
        expanded[name] = graph.weights[name].dequantize()
    return expanded[name]


def _attention(attrs: Mapping[str, Any], inputs: list[Any]) -> Any:
    q, k, v = (x.reshape(len(x), -1, attrs["head_dim"]) for x in inputs)
    special = {key: attrs.get(key) for key in ("window", "softcap", "alibi_slopes")}
    return ops.attention(q, k, v, np.arange(len(q)), attrs["scale"], **special).reshape(len(q), -1)


def show_trace(model: Model, text: str) -> None:
    """Print a byte of the embedding, the number that it means, where the number goes, and what the byte is worth."""
    ids = model.tokenizer.encode(text)
    row = ids[-1]
    table = model.graph.weights["token_embd.weight"]
    print(f"7. One number, from a byte to a logit. The text is {text!r}, its last token {row}.\n")
    begin = row * (table.nbytes // table.shape[0])
    _show_bytes(model, table, begin)
    expanded: Expanded = {}
    values = evaluate(model.graph, ids, expanded)
    print("   That number is element 0 of the last token's vector. On its way up:\n")
    for name in _WATCHED:
        print(f"      {name:<22} element 0 = {float(values[name][-1][0]):>10.5f}")
    logits = values[model.graph.outputs[0]][0]
    best = [int(token) for token in np.argsort(-logits)[:3]]
    shown = ", ".join(f"{model.tokenizer.token_text(token)!r} {logits[token]:.3f}" for token in best)
    print(f"\n   The {len(logits):,} logits at the end; the largest: {shown}.\n")
    expanded.pop("token_embd.weight", None)  # the output head may be this table
    _show_worth(model, table, begin, ids, best[0], float(logits[best[0]]), expanded)


def _show_bytes(model: Model, table: Matrix, begin: int) -> None:
    raw = table.data[begin : begin + table.dtype.block_bytes]
    offset = ""
    if model.format == "gguf":
        header = read_gguf_header(model.path)
        info = next((tensor for tensor in header.tensors if tensor.name == "token_embd.weight"), None)
        offset = f", at byte {info.offset + begin:,} of the file" if info else ""
    print(f"   The embedding's row begins with these bytes{offset} ({table.dtype.name}):\n")
    print(f"      {raw[:10].tobytes().hex(' ')} …\n")
    number = float(table.rows([begin // (table.nbytes // table.shape[0])])[0, 0])
    if table.dtype is DType.Q8_0:
        scale, level = float(raw[:2].view("<f2")[0]), int(raw[2:3].view(np.int8)[0])
        print(f"   The first two are the scale of 32 numbers, {scale:.8f}; the third is the first of them, {level}.")
        print(f"   {level} · {scale:.8f} = {number:.8f}\n")
    else:
        print(f"   The first number is {number:.8f}.\n")


def _show_worth(
    model: Model, table: Matrix, begin: int, ids: list[int], token: int, before: float, expanded: Expanded
) -> None:
    place = begin + (2 if table.dtype is DType.Q8_0 else 0)
    changed = table.data.copy()
    changed[place] ^= 0x10
    weights = {**model.graph.weights, "token_embd.weight": Matrix(table.dtype, table.shape, changed)}
    graph = Graph(model.graph.inputs, model.graph.nodes, model.graph.outputs, weights, model.graph.shapes)
    after = float(evaluate(graph, ids, expanded)[graph.outputs[0]][0][token])
    print(
        f"   With one bit of byte {place - begin} of that row flipped (worth 16 levels), the best token's logit is\n"
        f"   {after:.3f} instead of {before:.3f}: a broken file talks on, only not as before. Hence the checks.\n"
    )
