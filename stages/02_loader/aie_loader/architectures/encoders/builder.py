"""The encoders as one graph with switches, from embeddings to a head.

    x = norm(words[ids] + places[positions] + kinds[token_types])
    x = norm(x + Wo · attention(Wq·x, Wk·x, Wv·x))           every layer; each token sees its whole text
    x = norm(x + Wdown · act(Wup·x))

The norm comes after the sum, not before it as in the decoders. Texts are packed one after another: there is no padding,
hence no mask.

Axes: T tokens, S texts, C hidden, F feed-forward, H heads, D head size, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from aie_loader.architectures.encoders.family import EncoderConfig, EncoderFamily
from aie_loader.architectures.encoders.heads import Head
from aie_loader.architectures.weights import WeightTaker
from aie_loader.errors import UnsupportedModelError
from aie_loader.graph import Graph, Node
from aie_loader.shapes import infer_shapes
from aie_tensor import Matrix

__all__ = ["build_encoder"]

_BUFFERS = ("position_ids", "token_type_ids")  # old writers saved them though they follow from the configuration


def build_encoder(
    family: EncoderFamily,
    config: EncoderConfig,
    head: Head,
    tensors: Mapping[str, Matrix],
    where: str,
    *,
    is_gguf: bool = False,
    ignored: tuple[str, ...] = (),
) -> Graph:
    """The graph over `tensors`, which in a checkpoint may lack the family's prefix, and in GGUF have the graph's names.

    ignored: beginnings of names that may be left over, beside what only the training needed. Errors name the tensor
    that is missing, misshapen, of a type that weights cannot have, or left over.
    """
    if head.kind == "pooler" and "pooler" not in family.names.top:
        raise UnsupportedModelError(f"{where}: {config.architecture} has no pooler; mean, cls or max pool its tokens")
    prefix = family.tensor_prefix if any(name.startswith(family.tensor_prefix) for name in tensors) else ""
    in_file = str if is_gguf else _names(family, prefix, tensors)
    take = WeightTaker(tensors, where, in_file, config.architecture)
    graph = _Builder(family, config, take).build(head)
    unneeded = (*family.training_heads, f"{prefix}pooler.", *ignored)
    take.check_all_used(lambda name: name.endswith(_BUFFERS) or name.startswith(unneeded))
    return infer_shapes(graph)


def _names(family: EncoderFamily, prefix: str, tensors: Mapping[str, Matrix]) -> Callable[[str], str]:
    def in_file(name: str) -> str:
        stem, _, kind = name.rpartition(".")
        if stem in family.heads:
            return f"{family.heads[stem]}.{kind}"
        found = prefix + family.names.in_checkpoint(name)
        old = found.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return old if found not in tensors and old in tensors else found  # the names of the first releases

    return in_file


class _Builder:
    """Appends nodes; each method returns the name of the value that it made, or of its last one."""

    def __init__(self, family: EncoderFamily, config: EncoderConfig, take: WeightTaker) -> None:
        self._family = family
        self._config = config
        self._take = take
        self._nodes: list[Node] = []

    def build(self, head: Head) -> Graph:
        config = self._config
        inputs: tuple[str, ...] = ("token_ids", "positions")
        x = self._table("embed", "token_embd", "token_ids", config.vocab_size)
        x = self._add("embed_sum", "add", x, self._positions())
        if config.num_token_types:
            inputs = (*inputs, "token_types")
            kinds = self._table("embed_type", "token_types", "token_types", config.num_token_types)
            x = self._add("embed_typed", "add", x, kinds)
        x = self._norm("token_embd_norm", x)
        for layer in range(config.num_layers):
            x = self._layer(f"blk.{layer}", x)
        output = self._head(head, x)
        return Graph(inputs, self._nodes, (output,), self._take.taken)

    def _positions(self) -> str:
        """Rows of the table that no token ever has are cut off, so that positions count from 0 in every family."""
        config, take = self._config, self._take
        rows = config.first_position + config.num_positions
        name = take.take("position_embd.weight", rows, config.hidden_size)
        stored = take.taken[name]
        begin = config.first_position * (stored.nbytes // rows)
        take.taken[name] = replace(stored, shape=(config.num_positions, config.hidden_size), data=stored.data[begin:])
        return self._add("embed_position", "embedding", "positions", name)

    def _layer(self, name: str, x: str) -> str:
        config = self._config
        wide, narrow = config.intermediate_size, config.hidden_size
        q, k, v = (self._linear(f"{name}.{part}", x, narrow, narrow) for part in ("attn_q", "attn_k", "attn_v"))
        heads = {"num_heads": config.num_heads, "head_dim": config.head_dim, "scale": config.head_dim**-0.5}
        h = self._add(f"{name}.attn", "encoder_attention", q, k, v, **heads)
        h = self._linear(f"{name}.attn_output", h, narrow, narrow)
        x = self._norm(f"{name}.attn_output_norm", self._add(f"{name}.attn_residual", "add", x, h))
        h = self._add(f"{name}.ffn_act", config.activation, self._linear(f"{name}.ffn_up", x, wide, narrow))
        h = self._linear(f"{name}.ffn_down", h, narrow, wide)
        return self._norm(f"{name}.layer_output_norm", self._add(f"{name}.ffn_residual", "add", x, h))

    def _head(self, head: Head, x: str) -> str:
        """x [T, C] → [T, C], [T, labels], [S, C] or [S, labels]."""
        config, hidden = self._config, self._config.hidden_size
        match head.kind:
            case "states":
                return x
            case "token":
                return self._linear("token", x, len(config.labels), hidden, node="logits")
            case "pool":
                pooled = [self._add(f"pool_{kind}", "pool_tokens", x, kind=kind) for kind in head.pooling]
                joined = pooled[0] if len(pooled) == 1 else self._add("pooled", "concat", *pooled, axis=1)
                return self._add("unit", "l2_normalize", joined) if head.normalize else joined
            case "pooler":
                return self._dense("pooler", "tanh", x)
            case "sequence":
                h = self._dense(self._family.dense, self._family.dense_activation, x)
                return self._linear("cls.output", h, len(config.labels), hidden, node="logits")

    def _dense(self, name: str, activation: str, x: str) -> str:
        hidden = self._config.hidden_size
        first = self._add("pool_cls", "pool_tokens", x, kind="cls")
        return self._add(f"{name}_act", activation, self._linear(name, first, hidden, hidden))

    def _table(self, node: str, name: str, indices: str, rows: int) -> str:
        return self._add(node, "embedding", indices, self._take.take(f"{name}.weight", rows, self._config.hidden_size))

    def _norm(self, name: str, x: str) -> str:
        size = self._config.hidden_size
        weight, bias = (self._take.take(f"{name}.{kind}", size) for kind in ("weight", "bias"))
        return self._add(name, "layer_norm", x, weight, bias, eps=self._config.norm_eps)

    def _linear(self, name: str, x: str, num_outputs: int, num_inputs: int, *, node: str | None = None) -> str:
        weight = self._take.take(f"{name}.weight", num_outputs, num_inputs)
        return self._add(node or name, "linear", x, weight, self._take.take(f"{name}.bias", num_outputs))

    def _add(self, name: str, op: str, *inputs: str, **attrs: object) -> str:
        self._nodes.append(Node(name, op, inputs, attrs))
        return name
