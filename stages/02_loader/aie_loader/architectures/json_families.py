"""Configuration of a decoder from a Hugging Face `config.json`: what all families say, then what each changes.

Whatever would make the graph wrong (another activation, experts, an unknown kind of rotary scaling) is an error here,
because a model that loads and then talks nonsense is the worst outcome.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aie_loader.architectures.checks import MAX_HEAD_DIM, MAX_LAYERS, checked, divided, unique
from aie_loader.architectures.json_rope import rope_theta, scaling
from aie_loader.config import Fields, ModelConfig
from aie_loader.errors import MalformedHeaderError, UnsupportedModelError

__all__ = ["JSON_FAMILIES", "config_from_json"]

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh",
                "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "relu": "relu"}  # fmt: skip
_FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")
Changes = dict[str, Any]


def config_from_json(
    family: str, config: Mapping[str, object], generation: Mapping[str, object] | None, where: str
) -> ModelConfig:
    """`config.json`, and `generation_config.json` where there is one (it may name more end tokens)."""
    fields = Fields(config, where)
    if fields.get("quantization_config") is not None:
        raise UnsupportedModelError(f"{where}: quantized safetensors checkpoints are not supported yet")
    base = _base(fields, family, _KEYS.get(family, {}))
    more_ends = Fields(generation or {}, f"{where} (generation_config.json)").token_ids("eos_token_id", base.vocab_size)
    base = replace(base, eos_token_ids=unique(base.eos_token_ids, more_ends))
    model = replace(base, **JSON_FAMILIES[family](fields, base))
    if model.rope_scaling is not None and model.rope_scaling.kind == "longrope":
        # One set of divisors is for texts up to the trained length, the other for longer ones. Keys in the cache cannot
        # change sides in the middle of a text, so what is served is the first.
        served = min(model.rope_scaling.trained_len, model.max_position_embeddings)
        model = replace(model, max_position_embeddings=served)
    return checked(fields, model)


_KEYS: Mapping[str, Mapping[str, str]] = {  # where a family calls a size by another name
    "gpt2": {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
             "max_position_embeddings": "n_positions"},
}  # fmt: skip

_HEAD_DIMS = {"gemma2": 256, "gemma3": 256, "qwen3": 128}  # where the family does not divide the width by the heads


def _base(fields: Fields, family: str, keys: Mapping[str, str]) -> ModelConfig:
    def key(name: str) -> str:
        return keys.get(name, name)

    hidden, heads = fields.integer(key("hidden_size")), fields.integer(key("num_attention_heads"))
    vocab = fields.integer("vocab_size")
    bos = fields.token_ids("bos_token_id", vocab)
    return ModelConfig(
        architecture=family,
        num_layers=fields.integer(key("num_hidden_layers"), high=MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=4 * hidden if family == "gpt2" else fields.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", _HEAD_DIMS.get(family) or divided(hidden, heads), high=MAX_HEAD_DIM),
        vocab_size=vocab,
        max_position_embeddings=fields.integer(key("max_position_embeddings"), 2048),
        rope_theta=10_000.0,
        norm_eps=1e-6,
        tie_word_embeddings=fields.flag("tie_word_embeddings", family in ("gemma2", "gemma3", "gpt2")),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=fields.token_ids("eos_token_id", vocab),
        rope_interleaved=False,
    )


def _llama(fields: Fields, base: ModelConfig) -> Changes:
    return {
        **_usual(fields, base),
        **_biases(fields, _FEED_FORWARD if fields.flag("mlp_bias", False) else ()),
    }


def _mistral(fields: Fields, base: ModelConfig) -> Changes:
    return {**_usual(fields, base), "windows": _one_window(fields, base, "sliding_window")}


def _qwen2(fields: Fields, base: ModelConfig) -> Changes:
    return {**_usual(fields, base), "attention_bias": True, "windows": _qwen_windows(fields, base)}


def _qwen3(fields: Fields, base: ModelConfig) -> Changes:
    return {
        **_usual(fields, base),
        **_biases(fields),
        "has_qk_norm": True,
        "windows": _qwen_windows(fields, base),
    }


def _gemma2(fields: Fields, base: ModelConfig) -> Changes:
    alternating = ["sliding_attention" if layer % 2 == 0 else "full_attention" for layer in range(base.num_layers)]
    return {
        **_gemma(fields, base),
        "attention_softcap": _optional(fields, "attn_logit_softcapping", 50.0),
        "logit_softcap": _optional(fields, "final_logit_softcapping", 30.0),
        "windows": _typed_windows(fields, base, alternating),
    }


def _gemma3(fields: Fields, base: ModelConfig) -> Changes:
    every = fields.integer("sliding_window_pattern", 6)
    pattern = [
        "full_attention" if (layer + 1) % every == 0 else "sliding_attention" for layer in range(base.num_layers)
    ]
    by_layer = fields.part("rope_parameters")
    local = by_layer.part("sliding_attention") if by_layer else None
    return {
        **_gemma(fields, base),
        "rope_theta": rope_theta(fields, 1_000_000.0),
        # `attn_logit_softcapping` is a leftover of Gemma 2, which the reference does not look at.
        "logit_softcap": _optional(fields, "final_logit_softcapping", None),
        "has_qk_norm": True,
        "local_rope_theta": local.number("rope_theta", 10_000.0)
        if local
        else fields.number("rope_local_base_freq", 10_000.0),
        "windows": _typed_windows(fields, base, pattern),
    }


def _gemma(fields: Fields, base: ModelConfig) -> Changes:
    return {
        **_usual(fields, base, activation="gelu_pytorch_tanh", activation_key="hidden_activation"),
        **_biases(fields),
        "norm_offset": 1.0,
        "has_post_norms": True,
        "attention_scale": fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        # The reference rounds the factor to the type of the weights it was trained in.
        "embedding_scale": base.hidden_size**0.5,
    }


def _phi3(fields: Fields, base: ModelConfig) -> Changes:
    return {
        **_usual(fields, base),
        "norm_eps": fields.number("rms_norm_eps", 1e-5),
        "windows": _one_window(fields, base, "sliding_window"),
    }


def _gpt2(fields: Fields, base: ModelConfig) -> Changes:
    _refuse(fields, "scale_attn_by_inverse_layer_idx", False)
    _refuse(fields, "add_cross_attention", False)
    _refuse(fields, "scale_attn_weights", True)
    return {
        "intermediate_size": fields.integer("n_inner", 4 * base.hidden_size),
        "norm": "layer",
        "norm_eps": fields.number("layer_norm_epsilon", 1e-5),
        "activation": _activation(fields, "activation_function", "gelu_new"),
        "is_gated": False,
        "has_learned_positions": True,
        "attention_bias": True,
        "more_biases": ("attn_output", "ffn_up", "ffn_down"),
    }


def _gptneox(fields: Fields, base: ModelConfig) -> Changes:
    parameters = fields.part("rope_parameters")
    inside = parameters.number("partial_rotary_factor", 0.25) if parameters else 0.25
    width = _turning(fields, base, fields.number("rotary_pct", inside), "rotary_pct")
    return {
        "norm": "layer",
        "norm_eps": fields.number("layer_norm_eps", 1e-5),
        "activation": _activation(fields, "hidden_act", "gelu"),
        "is_gated": False,
        "is_parallel": fields.flag("use_parallel_residual", True),
        **_biases(fields, ("ffn_up", "ffn_down"), default=True),
        "rope_theta": rope_theta(fields, fields.number("rotary_emb_base", 10_000.0)),
        "rope_scaling": scaling(fields, base.max_position_embeddings, width),
        "rotary_dim": width,
    }


def _usual(
    fields: Fields, base: ModelConfig, *, activation: str = "silu", activation_key: str = "hidden_act"
) -> Changes:
    """What Llama and its descendants have in common."""
    parameters = fields.part("rope_parameters")
    inside = parameters.number("partial_rotary_factor", 1.0) if parameters else 1.0
    share = fields.number("partial_rotary_factor", inside)
    width = _turning(fields, base, share, "partial_rotary_factor")
    if width != base.head_dim and base.architecture != "phi3":
        raise UnsupportedModelError(
            f"{fields.where}: partial_rotary_factor = {share} is not supported: {base.architecture} turns whole heads"
        )
    return {
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
        "activation": _activation(fields, activation_key, activation),
        "rope_theta": rope_theta(fields, 10_000.0),
        "rope_scaling": scaling(fields, base.max_position_embeddings, width),
        "rotary_dim": None if width == base.head_dim else width,
    }


def _biases(fields: Fields, always: tuple[str, ...] = (), *, default: bool = False) -> Changes:
    """`attention_bias` speaks of all four matrices of the attention."""
    has = fields.flag("attention_bias", default)
    return {"attention_bias": has, "more_biases": ("attn_output", *always) if has else always}


def _turning(fields: Fields, base: ModelConfig, share: float, key: str) -> int:
    """How many features of a head turn."""
    if share > 1.0:
        raise MalformedHeaderError(f"{fields.where}: {key} is {share}; it must be a share of a head, at most 1")
    return int(base.head_dim * share)


def _activation(fields: Fields, key: str, default: str) -> str:
    name = fields.get(key)
    name = default if name is None else name
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{fields.where}: the activation {name!r} is not supported yet; known are {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _one_window(fields: Fields, base: ModelConfig, key: str) -> tuple[int | None, ...]:
    """The same window in every layer; none where it covers the whole context anyway."""
    if fields.get(key) is None:
        return ()
    window = fields.integer(key)
    return () if window >= base.max_position_embeddings else (window,) * base.num_layers


def _qwen_windows(fields: Fields, base: ModelConfig) -> tuple[int | None, ...]:
    if not fields.flag("use_sliding_window", False) or fields.get("sliding_window") is None:
        return ()
    first = fields.integer("max_window_layers", base.num_layers, low=0)
    kinds = ["full_attention" if layer < first else "sliding_attention" for layer in range(base.num_layers)]
    return _typed_windows(fields, base, kinds)


def _typed_windows(fields: Fields, base: ModelConfig, default: list[str]) -> tuple[int | None, ...]:
    """A window for the layers whose `layer_types` says so; `default` where the file has no such list."""
    given = fields.get("layer_types")
    kinds = default if given is None else given
    known = ("sliding_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != base.num_layers or any(kind not in known for kind in kinds):
        raise fields.wrong("layer_types", f"{base.num_layers} of {', '.join(known)}")
    window = fields.integer("sliding_window", 4096)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _optional(fields: Fields, key: str, default: float | None) -> float | None:
    """A number; JSON's null means none, absence means `default`."""
    if fields.get(key) is None:
        return None if fields.has(key) else default
    return fields.number(key)


def _refuse(fields: Fields, key: str, expected: bool) -> None:
    if fields.flag(key, expected) is not expected:
        raise UnsupportedModelError(f"{fields.where}: {key} = {not expected} is not supported yet".lower())


JSON_FAMILIES: Mapping[str, Callable[[Fields, ModelConfig], Changes]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "gptneox": _gptneox,
}
