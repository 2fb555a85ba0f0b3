"""Decoder-only language models as one graph with switches. Most families are Llama with two or three things changed.

Per layer, on the residual stream x [T, C]:

    h = norm(x)                                               RMS or layer norm
    x = x + Wo · attention(rope(Wq·h), rope(Wk·h), Wv·h)      grouped queries, perhaps a window, perhaps normed q and k
    h = norm(x)
    x = x + Wdown · (act(Wgate·h) * (Wup·h))                  or Wdown · act(Wup·h)

then, only for the rows R whose logits are wanted: a norm, and the output head [V, C], which may be the embedding.
The switches are fields of `ModelConfig`; where they come from is the families' business (`json_families.py`,
`gguf_families.py`), and what files call the weights is said in `naming.py`.

Axes: T tokens, R rows, C hidden, F feed-forward, H query heads, G key/value heads, D head size, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace

from aie_loader.architectures.naming import NAMES
from aie_loader.architectures.rotation import rotation
from aie_loader.architectures.stored import unstored
from aie_loader.architectures.weights import WeightTaker
from aie_loader.config import ModelConfig
from aie_loader.graph import Graph, Node
from aie_loader.shapes import infer_shapes
from aie_tensor import Matrix

__all__ = ["build_decoder"]


def build_decoder(
    config: ModelConfig, tensors: Mapping[str, Matrix], where: str, *, is_gguf: bool
) -> tuple[ModelConfig, Graph]:
    """The graph over `tensors`, and the configuration with what only the tensors say (a tied head).

    Errors name the tensor that is missing, misshapen, of a type that weights cannot have, or left over.
    """
    names = NAMES[config.architecture]
    config, tensors, in_file = unstored(config, tensors, where, is_gguf=is_gguf)
    take = WeightTaker(tensors, where, in_file or names.in_checkpoint, config.architecture)
    tied = config.tie_word_embeddings and not take.differ("token_embd.weight", "output.weight")
    tied = tied or (is_gguf and not take.has("output.weight"))
    graph = _Builder(config, take).build(tied)
    take.check_all_used(lambda name: _is_ignored(name, tied))
    return replace(config, tie_word_embeddings=tied), infer_shapes(graph)


def _is_ignored(name: str, tied: bool) -> bool:
    """Buffers that old writers saved though they follow from the configuration, and the copy of a tied head."""
    buffers = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")
    return name.endswith(buffers) or (tied and name in ("lm_head.weight", "output.weight"))


class _Builder:
    """Appends nodes; each method returns the name of the value that it made, or of its last one."""

    def __init__(self, config: ModelConfig, take: WeightTaker) -> None:
        self._config = config
        self._take = take
        self._nodes: list[Node] = []

    def build(self, tied: bool) -> Graph:
        config, take = self._config, self._take.take
        table = take("token_embd.weight", config.vocab_size, config.hidden_size)
        x = self._add("embed", "embedding", "token_ids", table, **_unless(1.0, scale=config.embedding_scale))
        if config.has_learned_positions:
            places = take("position_embd.weight", config.max_position_embeddings, config.hidden_size)
            x = self._add("embed_sum", "add", x, self._add("embed_position", "embedding", "positions", places))
        for layer in range(config.num_layers):
            x = self._layer(layer, x)
        x = self._add("last_rows", "select_rows", x)
        x = self._norm("output_norm", x)
        head = table if tied else take("output.weight", config.vocab_size, config.hidden_size)
        capped = config.logit_softcap
        logits = self._add("logits" if capped is None else "raw_logits", "linear", x, head)
        if capped is not None:
            logits = self._add("logits", "softcap", logits, cap=capped)
        return Graph(("token_ids", "positions"), self._nodes, (logits,), self._take.taken)

    def _layer(self, layer: int, x: str) -> str:
        name = f"blk.{layer}"
        attended = self._attention(layer, self._norm(f"{name}.attn_norm", x))
        if self._config.has_post_norms:
            attended = self._norm(f"{name}.post_attention_norm", attended)
        if self._config.is_parallel:
            fed = self._feed_forward(name, self._norm(f"{name}.ffn_norm", x))
            return self._add(f"{name}.ffn_residual", "add", self._add(f"{name}.attn_residual", "add", x, attended), fed)
        x = self._add(f"{name}.attn_residual", "add", x, attended)
        fed = self._feed_forward(name, self._norm(f"{name}.ffn_norm", x))
        if self._config.has_post_norms:
            fed = self._norm(f"{name}.post_ffw_norm", fed)
        return self._add(f"{name}.ffn_residual", "add", x, fed)

    def _attention(self, layer: int, h: str) -> str:
        """h [T, C] → [T, C]; q [T, H·D], k and v [T, G·D]."""
        config, name = self._config, f"blk.{layer}"
        q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        q = self._linear(f"{name}.attn_q", h, q_width, config.hidden_size)
        k = self._linear(f"{name}.attn_k", h, kv_width, config.hidden_size)
        v = self._linear(f"{name}.attn_v", h, kv_width, config.hidden_size)
        if config.has_qk_norm:
            q = self._head_norm(f"{name}.attn_q_norm", q, config.num_heads)
            k = self._head_norm(f"{name}.attn_k_norm", k, config.num_kv_heads)
        if not config.has_learned_positions:
            turning = self._rotation(layer)
            q = self._add(f"{name}.q_rope", "rope", q, "positions", num_heads=config.num_heads, **turning)
            k = self._add(f"{name}.k_rope", "rope", k, "positions", num_heads=config.num_kv_heads, **turning)
        heads = {"num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads, "head_dim": config.head_dim}
        scale = config.attention_scale or config.head_dim**-0.5
        special = _unless(None, window=config.window(layer), softcap=config.attention_softcap)
        h = self._add(f"{name}.attn", "attention", q, k, v, layer=layer, **heads, scale=scale, **special)
        return self._linear(f"{name}.attn_output", h, config.hidden_size, q_width)

    def _rotation(self, layer: int) -> dict[str, object]:
        config = self._config
        inv_freq, factor = rotation(config, layer)
        return {
            "head_dim": config.head_dim,
            **_unless(config.head_dim, rotary_dim=config.rotary_dim or config.head_dim),
            "interleaved": config.rope_interleaved,
            "inv_freq": inv_freq,
            **_unless(1.0, attention_factor=factor),
        }

    def _feed_forward(self, name: str, h: str) -> str:
        """h [T, C] → [T, C]; gate and up [T, F]."""
        config = self._config
        wide, narrow = config.intermediate_size, config.hidden_size
        if config.is_gated:
            gate = self._linear(f"{name}.ffn_gate", h, wide, narrow)
            up = self._linear(f"{name}.ffn_up", h, wide, narrow)
            gate = self._add(f"{name}.ffn_act", config.activation, gate)
            h = self._add(f"{name}.ffn_gated", "mul", gate, up)
        else:
            h = self._add(f"{name}.ffn_act", config.activation, self._linear(f"{name}.ffn_up", h, wide, narrow))
        return self._linear(f"{name}.ffn_down", h, narrow, wide)

    def _norm(self, name: str, x: str) -> str:
        config = self._config
        weight = self._take.take(f"{name}.weight", config.hidden_size)
        if config.norm == "layer":
            bias = self._take.take(f"{name}.bias", config.hidden_size)
            return self._add(name, "layer_norm", x, weight, bias, eps=config.norm_eps)
        return self._add(name, "rms_norm", x, weight, eps=config.norm_eps, **_unless(0.0, offset=config.norm_offset))

    def _head_norm(self, name: str, x: str, num_heads: int) -> str:
        config = self._config
        weight = self._take.take(f"{name}.weight", config.head_dim)
        offset = _unless(0.0, offset=config.norm_offset)
        return self._add(name, "rms_norm", x, weight, eps=config.norm_eps, num_heads=num_heads, **offset)

    def _linear(self, name: str, x: str, num_outputs: int, num_inputs: int) -> str:
        weight = self._take.take(f"{name}.weight", num_outputs, num_inputs)
        return self._add(name, "linear", x, weight, *self._optional(f"{name}.bias", num_outputs))

    def _optional(self, name: str, size: int) -> list[str]:
        """A bias where the file has one; where the configuration says that there must be one, it must."""
        part = name.split(".")[-2]
        needed = self._config.attention_bias and part in ("attn_q", "attn_k", "attn_v")
        needed = needed or part in self._config.more_biases
        return [self._take.take(name, size)] if needed or self._take.has(name) else []

    def _add(self, name: str, op: str, *inputs: str, **attrs: object) -> str:
        self._nodes.append(Node(name, op, inputs, attrs))
        return name


def _unless(default: object, **attr: object) -> dict[str, object]:
    """Constants that a node carries only where they differ from what the operator does anyway."""
    return {key: value for key, value in attr.items() if value != default}
