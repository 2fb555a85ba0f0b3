"""The same families as GGUF files have them: other names, other orders of rows, the same logits.

The conversions below are those that the format's own converter makes; they are written out here, so that a mistake in
the loader's tables cannot hide in them.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_decoders import GOLDEN, logits

from aie_loader.architectures import architecture_of_gguf
from aie_tensor import Matrix

from made_up import made_up  # isort: skip

Arrays = dict[str, np.ndarray[Any, Any]]
PARTS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up", "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
GEMMA = {**PARTS, "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
         "post_feedforward_layernorm": "post_ffw_norm"}  # fmt: skip
TOP = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output",
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
}  # fmt: skip


def converted(family: str, config: dict[str, Any], tensors: Arrays) -> Arrays:
    parts = GEMMA if family.startswith("gemma") else PARTS
    out: Arrays = {}
    for name, array in tensors.items():
        stem, _, kind = name.rpartition(".")
        if stem in TOP:
            new = TOP[stem]
        else:
            _, _, rest = stem.partition("layers." if "layers." in stem else "h.")
            layer, _, part = rest.partition(".")
            new = f"blk.{layer}.{parts[part]}"
        out[f"{new}.{kind}"] = np.ascontiguousarray(reordered(family, config, new, array), dtype=np.float32)
    return out


def reordered(family: str, config: dict[str, Any], name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if family == "llama" and name.endswith(("attn_q", "attn_k")):  # rotary pairs side by side
        heads = config["num_attention_heads" if name.endswith("q") else "num_key_value_heads"]
        return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
    if family.startswith("gemma") and name.endswith("norm"):
        return array + 1
    if family == "gpt2" and array.ndim == 2 and name.startswith("blk."):
        return array.T
    if family == "gptneox" and name.endswith("attn_qkv"):
        heads = config["num_attention_heads"]
        return array.reshape(heads, 3, -1, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)
    return array


def metadata(family: str, config: dict[str, Any]) -> dict[str, object]:
    first = {"gpt2": ("n_embd", "n_layer", "n_head", "n_positions")}.get(
        family, ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    )
    width, layers, heads, context = (config[key] for key in first)
    head_dim = config.get("head_dim") or width // heads
    rope = config.get("rope_parameters") or {}
    values = {
        "embedding_length": width, "block_count": layers, "attention.head_count": heads, "context_length": context,
        "attention.head_count_kv": config.get("num_key_value_heads", heads), "vocab_size": config["vocab_size"],
        "feed_forward_length": config.get("intermediate_size") or 4 * width, "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.sliding_window": config.get("sliding_window"),
        "attention.layer_norm_epsilon": config.get("layer_norm_eps", config.get("layer_norm_epsilon")),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps"),
        "attn_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "use_parallel_residual": config.get("use_parallel_residual"),
        "rope.freq_base": rope.get("rope_theta"),
    }  # fmt: skip
    if family == "gptneox":
        values["rope.dimension_count"] = int(head_dim * rope["partial_rotary_factor"])
    if family == "gemma3":
        values["rope.freq_base"] = rope["full_attention"]["rope_theta"]
        values["rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
    if rope.get("rope_type") in ("linear", "yarn"):
        values |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
        values["rope.scaling.original_context_length"] = rope.get("original_max_position_embeddings")
    given = {f"{family}.{key}": value for key, value in values.items() if value is not None}
    return {"general.architecture": family, **given}


# What GGUF cannot say, or says in a tensor of its own: its own tests are with the loader's.
LEFT_OUT = {"mistral", "qwen2_windows", "llama_3_scaled", "phi3_longrope", "gpt_neox_serial"}
FAMILIES = {"gpt_neox": "gptneox", "gemma3_text": "gemma3"}


@pytest.mark.parametrize("path", [path for path in GOLDEN if path.stem not in LEFT_OUT], ids=lambda path: path.stem)
def test_logits_equal_the_reference(path: Path) -> None:
    record = json.loads(path.read_text())
    config = record["config"]
    family = FAMILIES.get(config["model_type"], config["model_type"])
    arrays = {name: made_up(name, tuple(shape)) for name, shape in record["tensors"].items()}
    tensors = {name: Matrix.from_array(array) for name, array in converted(family, config, arrays).items()}
    architecture = architecture_of_gguf(metadata(family, config), path.name)
    assert architecture.from_gguf is not None
    read = architecture.from_gguf(metadata(family, config), path.name)
    if family.startswith("gemma"):  # the scale of the scores is not in such files, and the golden model's is unusual
        assert read.attention_scale == config["head_dim"] ** -0.5
        read = replace(read, attention_scale=config["query_pre_attn_scalar"] ** -0.5)
    read, graph = architecture.build(read, tensors, path.name, is_gguf=True)
    expected, ids = np.array(record["logits"], dtype=np.float32), record["ids"]
    given = logits(read, graph, ids, [1] * len(ids))
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
