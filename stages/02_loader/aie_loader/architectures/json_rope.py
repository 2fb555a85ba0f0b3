"""Rotary settings of a `config.json`. There are three spellings: two keys, then one object, then one per layer type."""

import math
from collections.abc import Callable, Mapping

from aie_loader.config import Fields, RopeScaling
from aie_loader.errors import UnsupportedModelError

__all__ = ["rope_theta", "scaling"]


def rope_theta(fields: Fields, default: float) -> float:
    """`rope_theta`, unless `rope_parameters` (there, perhaps, for the layers that see everything) says otherwise."""
    theta = fields.number("rope_theta", default)
    for inside in (fields.part("rope_scaling"), _parameters(fields)):
        if inside is not None:
            theta = inside.number("rope_theta", theta)
    return theta


def scaling(fields: Fields, context: int, rotary_dim: int) -> RopeScaling | None:
    """How the frequencies are stretched; None where they are not. UnsupportedModelError for kinds not known here.

    context: `max_position_embeddings`. rotary_dim: features of a head that turn.
    """
    inside = fields.part("rope_scaling") or _parameters(fields)
    if inside is None:
        return None
    kind = inside.get("rope_type")
    kind = inside.get("type") if kind is None else kind
    if kind is None or kind == "default":
        return None
    original = inside.get("original_max_position_embeddings")
    source = inside if original is not None else fields
    trained_len = source.integer("original_max_position_embeddings", context)
    if kind in ("longrope", "su"):
        return _longrope(inside, context, trained_len, rotary_dim)
    read = _KINDS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise UnsupportedModelError(
            f"{fields.where}: rotary scaling of type {kind!r} is not supported yet; known are default, longrope, "
            f"{', '.join(_KINDS)}"
        )
    return read(inside, inside.number("factor", context / trained_len), trained_len)


def _linear(inside: Fields, factor: float, trained_len: int) -> RopeScaling:
    return RopeScaling("linear", factor)


def _dynamic(inside: Fields, factor: float, trained_len: int) -> RopeScaling:
    return RopeScaling("dynamic", factor, trained_len)


def _llama3(inside: Fields, factor: float, trained_len: int) -> RopeScaling:
    low, high = inside.number("low_freq_factor"), inside.number("high_freq_factor")
    return RopeScaling("llama3", factor, trained_len, low_freq_factor=low, high_freq_factor=high)


def _yarn(inside: Fields, factor: float, trained_len: int) -> RopeScaling:
    attention = _attention_factor(inside)
    if attention is None and inside.get("mscale") and inside.get("mscale_all_dim"):
        attention = _grown(factor, inside.number("mscale")) / _grown(factor, inside.number("mscale_all_dim"))
    return RopeScaling(
        "yarn",
        factor,
        trained_len,
        beta_fast=inside.number("beta_fast", 32.0),
        beta_slow=inside.number("beta_slow", 1.0),
        attention_factor=attention,
        truncate=inside.flag("truncate", True),
    )


def _grown(factor: float, scale: float) -> float:
    """YaRN's attention factor with a weight on its logarithm; a quotient of two such stands where it alone did."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(inside: Fields, context: int, trained_len: int, rotary_dim: int) -> RopeScaling:
    """The factor is that of the lengths, where nothing else is written."""
    factors = inside.numbers("short_factor", rotary_dim // 2)
    stretch = inside.number("factor", context / trained_len)
    return RopeScaling("longrope", stretch, trained_len, attention_factor=_attention_factor(inside), factors=factors)


_KINDS: Mapping[str, Callable[[Fields, float, int], RopeScaling]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}


def _attention_factor(inside: Fields) -> float | None:
    return None if inside.get("attention_factor") is None else inside.number("attention_factor")


def _parameters(fields: Fields) -> Fields | None:
    inside = fields.part("rope_parameters")
    by_layer = inside.part("full_attention") if inside else None
    return by_layer or inside
