"""What a GGUF file says of a decoder: its configuration as metadata keys, and the tensor of rotary divisors.

Keys are those that `architectures/gguf_families.py` reads, and that llama.cpp asks for. Mistral has no name of its own
in the format: its files call themselves `llama`.
"""

import math
from collections.abc import Mapping

import numpy as np

from aie_loader.architectures.rotation import rotation
from aie_loader.config import ModelConfig, RopeScaling
from aie_loader.errors import UnsupportedModelError
from aie_tensor import DType, Matrix, ops

__all__ = ["file_type", "gguf_family", "gguf_metadata", "rotary_divisors"]

_AS_TENSOR = frozenset({"llama3", "dynamic", "factors"})  # kinds of rotary scaling that GGUF stores as their result
_FILE_TYPES = {DType.F32: 0, DType.F16: 1, DType.Q4_0: 2, DType.Q4_1: 3, DType.Q8_0: 7, DType.Q5_0: 8, DType.Q5_1: 9,
               DType.BF16: 32}  # fmt: skip
_GUESSED = 1024  # added to a file type that only says what most tensors are


def gguf_family(config: ModelConfig) -> str:
    """`general.architecture` of such a model."""
    return "llama" if config.architecture == "mistral" else config.architecture


def file_type(bytes_of: Mapping[DType, int]) -> int:
    """`general.file_type`: what most bytes of the file are."""
    most = max(bytes_of, key=lambda dtype: bytes_of[dtype])
    return _FILE_TYPES.get(most, _GUESSED)


def gguf_metadata(config: ModelConfig, name: str) -> dict[str, object]:
    """The keys of the model itself; those of the tokenizer are `vocabulary.py`'s.

    UnsupportedModelError for rotary scaling that the format has no keys for. Whether the keys say all of the
    configuration is checked by reading them back (`check.py`).
    """
    values: dict[str, object] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_epsilon" if config.norm == "layer" else "attention.layer_norm_rms_epsilon": (
            config.norm_eps
        ),
        "vocab_size": config.vocab_size,
    }
    if not config.has_learned_positions:
        values |= {
            "rope.freq_base": config.rope_theta,
            "rope.dimension_count": config.rotary_dim or config.head_dim,
            **_scaling(config.rope_scaling),
        }
    values |= _special(config)
    family = gguf_family(config)
    general = {"general.architecture": family, "general.type": "model", "general.name": name,
               "general.quantization_version": 2}  # fmt: skip
    return general | {f"{family}.{key}": value for key, value in values.items() if value is not None}


def _special(config: ModelConfig) -> dict[str, object]:
    window = next((window for window in config.windows if window is not None), None)
    match config.architecture:
        case "gemma2":
            return {
                "attention.sliding_window": window,
                "attn_logit_softcapping": config.attention_softcap,
                "final_logit_softcapping": config.logit_softcap,
            }
        case "gemma3":
            return {"attention.sliding_window": window, "rope.freq_base_swa": config.local_rope_theta}
        case "gptneox":
            return {"use_parallel_residual": config.is_parallel}
        case "llama" | "mistral" | "phi3":
            return {"attention.sliding_window": window}
    return {}


def _scaling(scaling: RopeScaling | None) -> dict[str, object]:
    if scaling is None or scaling.kind in _AS_TENSOR:
        return {}
    values: dict[str, object] = {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
    if scaling.kind == "yarn" and (scaling.beta_fast, scaling.beta_slow, scaling.truncate) == (32.0, 1.0, True):
        usual = 1 + 0.1 * math.log(max(scaling.factor, 1.0))
        given = usual if scaling.attention_factor is None else scaling.attention_factor
        return {
            **values,
            "rope.scaling.original_context_length": scaling.trained_len,
            "rope.scaling.attn_factor": given / usual,
        }
    if scaling.kind != "linear":
        raise UnsupportedModelError(
            f"GGUF has no keys for this model's rotary scaling ({scaling.kind}, with its factors)"
        )
    return values


def rotary_divisors(config: ModelConfig) -> Matrix | None:
    """`rope_freqs.weight` [D/2]: what each frequency is divided by, for the kinds of scaling that are stored so."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind not in _AS_TENSOR:
        return None
    if scaling.kind == "factors":
        factors = np.array(scaling.factors)
    else:
        layer = next((layer for layer in range(config.num_layers) if config.window(layer) is None), 0)
        plain = ops.inverse_frequencies(config.rope_theta, config.rotary_dim or config.head_dim)
        factors = np.array(plain) / np.array(rotation(config, layer)[0])
    return Matrix.from_array(factors.astype(np.float32))
