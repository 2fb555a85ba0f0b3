"""What every decoder's configuration must satisfy, whatever file it came from."""

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
    return config


def divided(hidden: int, heads: int) -> int | None:
    """The usual head size; None (then the file must name one) where the width does not divide."""
    return hidden // heads if hidden % heads == 0 else None


def unique(*groups: tuple[int, ...]) -> tuple[int, ...]:
    """All ids in order, each once."""
    return tuple(dict.fromkeys(token for group in groups for token in group))
