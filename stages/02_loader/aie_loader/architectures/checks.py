"""What every decoder's configuration must satisfy, whatever file it came from."""

import math

from aie_loader.architectures.rotation import rotation
from aie_loader.config import Fields, ModelConfig
from aie_loader.errors import MalformedHeaderError

__all__ = ["MAX_HEAD_DIM", "MAX_LAYERS", "checked", "divided", "unique"]

MAX_LAYERS = 4096
MAX_HEAD_DIM = 4096


def checked(fields: Fields, config: ModelConfig) -> ModelConfig:
    """`config`, or MalformedHeaderError for numbers that do not go together."""
    if config.num_heads % config.num_kv_heads:
        raise MalformedHeaderError(
            f"{fields.where}: {config.num_heads} attention heads cannot share "
            f"{config.num_kv_heads} key/value heads evenly"
        )
    turning = config.rotary_dim or config.head_dim
    if not config.has_learned_positions and (turning % 2 or not 0 < turning <= config.head_dim):
        raise MalformedHeaderError(
            f"{fields.where}: {turning} features of a head size of {config.head_dim} cannot be rotated in pairs"
        )
    if not config.has_learned_positions:
        _check_rotation(fields, config)
    return config


def _check_rotation(fields: Fields, config: ModelConfig) -> None:
    """The settings, each by itself a sensible number, must give frequencies together."""
    try:
        frequencies, factor = rotation(config, _first_scaled(config))
        usable = all(map(math.isfinite, frequencies)) and math.isfinite(factor) and factor > 0
    except (ArithmeticError, ValueError):  # a logarithm of 1 or of 0 that something is divided by, a power too large
        usable = False
    if not usable:
        kind = "default" if config.rope_scaling is None else config.rope_scaling.kind
        raise MalformedHeaderError(
            f"{fields.where}: the rotary settings (type {kind}, base {config.rope_theta:g}, trained on "
            f"{config.max_position_embeddings:,} positions) give no usable frequencies; they do not fit together"
        )


def _first_scaled(config: ModelConfig) -> int:
    """A layer whose rotation is stretched, if any is: one without a window, where the others have a base of theirs."""
    return next((layer for layer in range(config.num_layers) if config.window(layer) is None), 0)


def divided(hidden: int, heads: int) -> int | None:
    """The usual head size; None (then the file must name one) where the width does not divide."""
    return hidden // heads if hidden % heads == 0 else None


def unique(*groups: tuple[int, ...]) -> tuple[int, ...]:
    """All ids in order, each once."""
    return tuple(dict.fromkeys(token for group in groups for token in group))
