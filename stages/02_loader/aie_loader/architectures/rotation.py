"""The rotary frequencies of a layer, from the configuration: computed once, at load."""

import math

from aie_loader.config import ModelConfig, RopeScaling
from aie_tensor import ops

__all__ = ["rotation"]


def rotation(config: ModelConfig, layer: int) -> tuple[tuple[float, ...], float]:
    """(inv_freq, attention factor) of one layer. Layers with a window and a base of their own are never stretched:
    they see no further than their window."""
    width = config.rotary_dim or config.head_dim
    if config.local_rope_theta is not None and config.window(layer) is not None:
        return ops.inverse_frequencies(config.local_rope_theta, width), 1.0
    scaling = config.rope_scaling
    plain = ops.inverse_frequencies(config.rope_theta, width)
    return (plain, 1.0) if scaling is None else _scaled(config, scaling, plain, width)


def _scaled(
    config: ModelConfig, scaling: RopeScaling, plain: tuple[float, ...], width: int
) -> tuple[tuple[float, ...], float]:
    match scaling.kind:
        case "linear":
            return ops.linear_scaling(plain, scaling.factor), 1.0
        case "dynamic":
            # The base grows beyond the trained length only, and whatever is served is at most that long.
            return ops.dynamic_ntk(config.rope_theta, width, scaling.factor, config.max_position_embeddings), 1.0
        case "llama3":
            stretched = ops.llama3_scaling(
                plain,
                factor=scaling.factor,
                low_freq_factor=scaling.low_freq_factor,
                high_freq_factor=scaling.high_freq_factor,
                trained_len=scaling.trained_len,
            )
            return stretched, 1.0
        case "yarn":
            return ops.yarn(
                config.rope_theta,
                width,
                factor=scaling.factor,
                trained_len=scaling.trained_len,
                beta_fast=scaling.beta_fast,
                beta_slow=scaling.beta_slow,
                attention_factor=scaling.attention_factor,
                truncate=scaling.truncate,
            )
        case "longrope" | "factors":
            divided = tuple(frequency / factor for frequency, factor in zip(plain, scaling.factors, strict=True))
            return divided, _longrope_factor(scaling) if scaling.kind == "longrope" else 1.0


def _longrope_factor(scaling: RopeScaling) -> float:
    """√(1 + ln(factor) / ln(trained length)): Ding et al. 2024, arXiv:2402.13753, as Phi-3's own code has it."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.factor <= 1.0:
        return 1.0
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.trained_len))
