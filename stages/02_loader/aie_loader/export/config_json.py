"""`config.json` of a decoder that came from a GGUF file, in the words of each family.

A folder keeps its own `config.json`; this is for models that have none. Numbers that GGUF stores as 32-bit floats are
written as the shortest decimal that means the same float: 1e-05 and not 9.999999747378752e-06.
"""

import math
from collections.abc import Collection

import numpy as np

from aie_loader.config import ModelConfig, RopeScaling
from aie_loader.errors import UnsupportedModelError
from aie_tensor import ops

__all__ = ["config_json", "json_family"]

_CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
            "qwen3": "Qwen3ForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
            "phi3": "Phi3ForCausalLM", "gpt2": "GPT2LMHeadModel", "gpt_neox": "GPTNeoXForCausalLM"}  # fmt: skip
_TYPES = {"gemma3": "gemma3_text", "gptneox": "gpt_neox"}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
_LLAMA3 = tuple((factor, 1.0, 4.0, 8192) for factor in (8.0, 32.0))
"""(factor, low, high, trained length) of the Llama 3.1 and 3.2 models, of which GGUF keeps only the result."""


def json_family(config: ModelConfig) -> str:
    """The family whose `config.json` can say this: GGUF calls Mistral `llama`, and only the window gives it away."""
    return "mistral" if config.architecture == "llama" and config.windows else config.architecture


def config_json(config: ModelConfig, dtype: str, weights: Collection[str]) -> dict[str, object]:
    """dtype: `float32`, `float16` or `bfloat16`. weights: names in the graph; they tell which biases there are.

    Whether this says all of the configuration is checked by reading it back (`check.py`).
    """
    family = json_family(config)
    kind = _TYPES.get(family, family)
    eos = list(config.eos_token_ids)
    return {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        "dtype": dtype,
        "torch_dtype": dtype,  # the name of the same key before version 5 of the library
        "vocab_size": config.vocab_size,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "tie_word_embeddings": config.tie_word_embeddings,
        **(_gpt2(config) if kind == "gpt2" else _usual(config, kind, weights)),
    }


def _gpt2(config: ModelConfig) -> dict[str, object]:
    return {
        "n_embd": config.hidden_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_positions": config.max_position_embeddings,
        "n_inner": config.intermediate_size,
        "layer_norm_epsilon": _short(config.norm_eps),
        "activation_function": "gelu_new",
    }


def _usual(config: ModelConfig, kind: str, weights: Collection[str]) -> dict[str, object]:
    sizes = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": config.max_position_embeddings,
        **({"rope_scaling": _scaling(config.rope_scaling, config)} if config.rope_scaling else {}),
    }
    if kind == "gpt_neox":
        return {
            **sizes,
            "hidden_act": _ACTIVATIONS[config.activation],
            "layer_norm_eps": _short(config.norm_eps),
            "rotary_pct": (config.rotary_dim or config.head_dim) / config.head_dim,
            "rotary_emb_base": _short(config.rope_theta),
            "use_parallel_residual": config.is_parallel,
            "attention_bias": "blk.0.attn_q.bias" in weights,
        }
    return {
        **sizes,
        "hidden_activation" if kind.startswith("gemma") else "hidden_act": _ACTIVATIONS[config.activation],
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": _short(config.norm_eps),
        "rope_theta": _short(config.rope_theta),
        **_special(config, kind, weights),
    }


def _special(config: ModelConfig, kind: str, weights: Collection[str]) -> dict[str, object]:
    has_bias = {"attention_bias": "blk.0.attn_q.bias" in weights}
    window = next((window for window in config.windows if window is not None), None)
    match kind:
        case "llama":
            return {**has_bias, "mlp_bias": "blk.0.ffn_up.bias" in weights}
        case "mistral":
            return {"sliding_window": window}
        case "qwen2":
            return {"use_sliding_window": False, "sliding_window": None}
        case "qwen3":
            return {**has_bias, "use_sliding_window": False, "sliding_window": None}
        case "phi3":
            share = (config.rotary_dim or config.head_dim) / config.head_dim
            return {
                "sliding_window": window,
                "partial_rotary_factor": share,
                "original_max_position_embeddings": config.max_position_embeddings,
                "pad_token_id": next(iter(config.eos_token_ids), None),
            }
    scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
    layers = range(config.num_layers)
    gemma: dict[str, object] = {
        **has_bias,
        "query_pre_attn_scalar": _whole(scale**-2),
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.logit_softcap,
        "sliding_window": window,
        "layer_types": [
            "full_attention" if config.window(layer) is None else "sliding_attention" for layer in layers
        ],
    }  # fmt: skip
    return gemma | ({"rope_local_base_freq": _short(config.local_rope_theta or 10_000.0)} if kind != "gemma2" else {})


def _scaling(scaling: RopeScaling, config: ModelConfig) -> dict[str, object]:
    match scaling.kind:
        case "linear":
            return {"rope_type": "linear", "factor": _short(scaling.factor)}
        case "yarn":
            return {
                "rope_type": "yarn",
                "factor": _short(scaling.factor),
                "original_max_position_embeddings": scaling.trained_len,
                "attention_factor": scaling.attention_factor,
            }
        case "factors":
            return _llama3(scaling, config)
    raise AssertionError(scaling)  # the GGUF reader knows no other kind


def _llama3(scaling: RopeScaling, config: ModelConfig) -> dict[str, object]:
    """The published settings whose divisors these are."""
    plain = ops.inverse_frequencies(config.rope_theta, config.rotary_dim or config.head_dim)
    for factor, low, high, trained_len in _LLAMA3:
        stretched = ops.llama3_scaling(
            plain, factor=factor, low_freq_factor=low, high_freq_factor=high, trained_len=trained_len
        )
        if np.allclose(np.array(plain) / np.array(stretched), scaling.factors, rtol=1e-5):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": trained_len,
            }
    raise UnsupportedModelError(
        "the file stretches its rotary frequencies by divisors (rope_freqs.weight) that are not those of Llama 3.1 or "
        "3.2, and config.json has no words for them; write GGUF"
    )


def _short(value: float) -> float:
    return float(str(np.float32(value)))


def _whole(value: float) -> float | int:
    return round(value) if math.isclose(value, round(value), rel_tol=1e-6) else value
