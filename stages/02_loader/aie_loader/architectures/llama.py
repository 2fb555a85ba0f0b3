"""The Llama family (SmolLM2, TinyLlama, Llama 2, …) as a graph.

Per layer, on the residual stream x [T, C]:

    h = rms_norm(x)                                            Zhang & Sennrich 2019
    x = x + Wo · attention(rope(Wq·h), rope(Wk·h), Wv·h)       grouped-query: Ainslie 2023; rope: Su 2021
    h = rms_norm(x)
    x = x + Wdown · (silu(Wgate·h) * (Wup·h))                  SwiGLU: Shazeer 2020

then, only for the rows R whose logits are wanted: rms_norm, and the output head [V, C], which may be the embedding.

Both file formats give the same graph, with weights under the names that GGUF uses. They differ in one attribute: GGUF
files store the rows of Wq and Wk so that rotary pairs are neighbours (2i, 2i+1), safetensors as halves (i, i + D/2).
"""

from collections.abc import Mapping
from dataclasses import replace

from aie_loader.architectures.weights import WeightTaker
from aie_loader.config import ModelConfig
from aie_loader.errors import UnsupportedModelError
from aie_loader.graph import Graph, Node
from aie_loader.shapes import infer_shapes
from aie_tensor import Matrix

__all__ = ["build_llama", "inverse_frequencies", "safetensors_name"]

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def safetensors_name(name: str) -> str:
    """GGUF's name of a tensor as Hugging Face checkpoints have it: `blk.3.ffn_up.weight` → `model.layers.3.mlp…`."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"


def inverse_frequencies(theta: float, head_dim: int) -> tuple[float, ...]:
    """theta^(-2i/D) for i in 0…D/2-1: radians that pair i turns per position."""
    return tuple(theta ** (-2 * i / head_dim) for i in range(head_dim // 2))


def build_llama(config: ModelConfig, tensors: Mapping[str, Matrix], where: str) -> tuple[ModelConfig, Graph]:
    """The graph over `tensors`, and the configuration with what only the tensors say (a tied head).

    Errors name the tensor that is missing, misshapen, of a type that weights cannot have, or left over.
    """
    if "rope_freqs.weight" in tensors:
        raise UnsupportedModelError(f"{where}: scaled rotary frequencies (rope_freqs.weight) are not supported yet")
    from_gguf = config.rope_interleaved
    take = WeightTaker(tensors, where, (lambda name: name) if from_gguf else safetensors_name)
    builder = _Builder(config, take)
    tied = config.tie_word_embeddings or (from_gguf and not take.has("output.weight"))
    graph = builder.build(tied)
    take.check_all_used(lambda name: _is_ignored(name, tied))
    return replace(config, tie_word_embeddings=tied), infer_shapes(graph)


def _is_ignored(name: str, tied: bool) -> bool:
    """Buffers that old writers saved though they follow from the configuration, and the copy of a tied head."""
    return name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")


class _Builder:
    """Appends nodes; each method returns the name of the value that it made, or of its last one."""

    def __init__(self, config: ModelConfig, take: WeightTaker) -> None:
        self._config = config
        self._take = take
        self._nodes: list[Node] = []
        self._rotation = {
            "head_dim": config.head_dim,
            "theta": config.rope_theta,
            "interleaved": config.rope_interleaved,
            "inv_freq": inverse_frequencies(config.rope_theta, config.head_dim),
        }

    def build(self, tied: bool) -> Graph:
        config, take = self._config, self._take.take
        table = take("token_embd.weight", config.vocab_size, config.hidden_size)
        x = self._add("embed", "embedding", "token_ids", table)
        for layer in range(config.num_layers):
            x = self._feed_forward(layer, self._attention(layer, x))
        x = self._add("last_rows", "select_rows", x)
        x = self._norm("output_norm", x)
        head = table if tied else take("output.weight", config.vocab_size, config.hidden_size)
        logits = self._add("logits", "linear", x, head)
        return Graph(("token_ids", "positions"), self._nodes, (logits,), self._take.taken)

    def _attention(self, layer: int, x: str) -> str:
        """x [T, C] → x + attention(norm(x)) [T, C]; q [T, H*D], k and v [T, G*D]."""
        config, name = self._config, f"blk.{layer}"
        q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        heads = {"num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads, "head_dim": config.head_dim}
        h = self._norm(f"{name}.attn_norm", x)
        q = self._linear(f"{name}.attn_q", h, q_width, config.hidden_size)
        k = self._linear(f"{name}.attn_k", h, kv_width, config.hidden_size)
        v = self._linear(f"{name}.attn_v", h, kv_width, config.hidden_size)
        q = self._add(f"{name}.q_rope", "rope", q, "positions", num_heads=config.num_heads, **self._rotation)
        k = self._add(f"{name}.k_rope", "rope", k, "positions", num_heads=config.num_kv_heads, **self._rotation)
        h = self._add(f"{name}.attn", "attention", q, k, v, layer=layer, **heads, scale=config.head_dim**-0.5)
        h = self._linear(f"{name}.attn_output", h, config.hidden_size, q_width)
        return self._add(f"{name}.attn_residual", "add", x, h)

    def _feed_forward(self, layer: int, x: str) -> str:
        """x [T, C] → x + feed-forward(norm(x)) [T, C]; gate and up [T, F]."""
        config, name = self._config, f"blk.{layer}"
        h = self._norm(f"{name}.ffn_norm", x)
        gate = self._linear(f"{name}.ffn_gate", h, config.intermediate_size, config.hidden_size)
        up = self._linear(f"{name}.ffn_up", h, config.intermediate_size, config.hidden_size)
        gate = self._add(f"{name}.ffn_silu", "silu", gate)
        h = self._add(f"{name}.ffn_gated", "mul", gate, up)
        h = self._linear(f"{name}.ffn_down", h, config.hidden_size, config.intermediate_size)
        return self._add(f"{name}.ffn_residual", "add", x, h)

    def _norm(self, name: str, x: str) -> str:
        weight = self._take.take(f"{name}.weight", self._config.hidden_size)
        return self._add(name, "rms_norm", x, weight, eps=self._config.rms_norm_eps)

    def _linear(self, name: str, x: str, num_outputs: int, num_inputs: int) -> str:
        inputs = [x, self._take.take(f"{name}.weight", num_outputs, num_inputs)]
        bias = f"{name}.bias"
        wanted = ".attn_" in name and (self._config.attention_bias or self._take.has(bias))
        if wanted:
            inputs.append(self._take.take(bias, num_outputs))
        return self._add(name, "linear", *inputs)

    def _add(self, name: str, op: str, *inputs: str, **attrs: object) -> str:
        self._nodes.append(Node(name, op, inputs, attrs))
        return name
