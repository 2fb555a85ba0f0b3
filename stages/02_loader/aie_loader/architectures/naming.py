"""What tensors are called: by their name in the graph, which is GGUF's, in the checkpoints of each family.

A name is `blk.<layer>.<part>.<weight or bias>` or `<top>.<weight or bias>`. A family's table says what Hugging Face
calls the same part; what it leaves out, the family does not have.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["NAMES", "Names"]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one family in safetensors checkpoints. `top` and `part` are keyed by the name in the graph."""

    layers: str  # what stands before the number of a layer
    top: Mapping[str, str]
    part: Mapping[str, str]

    def in_checkpoint(self, name: str) -> str:
        """`blk.3.ffn_up.weight` → `model.layers.3.mlp.up_proj.weight`."""
        stem, _, kind = name.rpartition(".")
        if stem in self.top:
            return f"{self.top[stem]}.{kind}"
        _, layer, part = stem.split(".")
        return f"{self.layers}.{layer}.{self.part[part]}.{kind}"


_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_FEED_FORWARD = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LLAMA = {"attn_norm": "input_layernorm", **_ATTENTION, "ffn_norm": "post_attention_layernorm", **_FEED_FORWARD}
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA = {
    **_LLAMA,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

NAMES: Mapping[str, Names] = {
    "llama": Names("model.layers", _TOP, _LLAMA),
    "mistral": Names("model.layers", _TOP, _LLAMA),
    "qwen2": Names("model.layers", _TOP, _LLAMA),
    "qwen3": Names("model.layers", _TOP, {**_LLAMA, **_QK_NORM}),
    "gemma2": Names("model.layers", _TOP, _GEMMA),
    "gemma3": Names("model.layers", _TOP, {**_GEMMA, **_QK_NORM}),
    "phi3": Names(
        "model.layers",
        _TOP,
        {**_LLAMA, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    "gpt2": Names(
        "h",
        {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head"},
        {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
    ),
    "gptneox": Names(
        "gpt_neox.layers",
        {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
        {
            "attn_norm": "input_layernorm",
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
    ),
}
