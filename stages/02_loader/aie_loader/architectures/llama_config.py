"""Configuration of a Llama model: from GGUF metadata, and from a Hugging Face `config.json`.

Whatever would make the graph wrong (another activation, scaled rotary frequencies, experts) is an error here, because
a model that loads and then talks nonsense is the worst outcome.
"""

from collections.abc import Mapping

from aie_loader.config import Fields, ModelConfig
from aie_loader.errors import MalformedHeaderError, UnsupportedModelError

__all__ = ["config_from_gguf", "config_from_json"]

_MAX_LAYERS = 4096
_MAX_HEAD_DIM = 4096


def config_from_gguf(metadata: Mapping[str, object], where: str) -> ModelConfig:
    """Keys `llama.*` and `tokenizer.ggml.*`; `where` names the file in errors."""
    fields = Fields(metadata, where)
    hidden, heads = fields.integer("llama.embedding_length"), fields.integer("llama.attention.head_count")
    head_dim = fields.integer("llama.attention.key_length", _divided(hidden, heads), high=_MAX_HEAD_DIM)
    _refuse_gguf_variants(fields, head_dim)
    vocab = fields.integer("llama.vocab_size", _num_tokens(metadata))
    ends = ("eos", "eot", "eom")  # end of text, of turn, of message: each stops generation
    bos = fields.token_ids("tokenizer.ggml.bos_token_id", vocab)
    return _checked(fields, ModelConfig(
        architecture="llama",
        num_layers=fields.integer("llama.block_count", high=_MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=fields.integer("llama.feed_forward_length"),
        num_heads=heads,
        num_kv_heads=fields.integer("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=vocab,
        max_position_embeddings=fields.integer("llama.context_length"),
        rope_theta=fields.number("llama.rope.freq_base", 10_000.0),
        rms_norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon"),
        tie_word_embeddings=False,  # a file without its own output tensor ties; the builder sees that
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=_unique(*(fields.token_ids(f"tokenizer.ggml.{end}_token_id", vocab) for end in ends)),
        rope_interleaved=True,
    ))  # fmt: skip


def config_from_json(config: Mapping[str, object], generation: Mapping[str, object] | None, where: str) -> ModelConfig:
    """`config.json`, and `generation_config.json` where there is one (it may name more end tokens)."""
    fields = Fields(config, where)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    _refuse_json_variants(fields)
    vocab = fields.integer("vocab_size")
    bos = fields.token_ids("bos_token_id", vocab)
    more_ends = Fields(generation or {}, f"{where} (generation_config.json)").token_ids("eos_token_id", vocab)
    return _checked(fields, ModelConfig(
        architecture="llama",
        num_layers=fields.integer("num_hidden_layers", high=_MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", _divided(hidden, heads), high=_MAX_HEAD_DIM),
        vocab_size=vocab,
        max_position_embeddings=fields.integer("max_position_embeddings", 2048),
        rope_theta=_rope_theta(fields),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=_unique(fields.token_ids("eos_token_id", vocab), more_ends),
        rope_interleaved=False,
        attention_bias=fields.flag("attention_bias", False),
    ))  # fmt: skip


def _checked(fields: Fields, config: ModelConfig) -> ModelConfig:
    if config.num_heads % config.num_kv_heads:
        raise MalformedHeaderError(
            f"{fields.where}: {config.num_heads} attention heads cannot share "
            f"{config.num_kv_heads} key/value heads evenly"
        )
    if config.head_dim % 2:
        raise MalformedHeaderError(f"{fields.where}: a head size of {config.head_dim} cannot be rotated in pairs")
    return config


def _divided(hidden: int, heads: int) -> int | None:
    """The usual head size; None (then the file must name one) where the width does not divide."""
    return hidden // heads if hidden % heads == 0 else None


def _num_tokens(metadata: Mapping[str, object]) -> int | None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else None


def _refuse_gguf_variants(fields: Fields, head_dim: int) -> None:
    if fields.integer("llama.attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(f"{fields.where}: keys and values of different head sizes are not supported yet")
    rotated = fields.integer("llama.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise UnsupportedModelError(
            f"{fields.where}: rotating {rotated} of {head_dim} dimensions of a head is not supported yet"
        )
    scaling = fields.get("llama.rope.scaling.type")
    if scaling not in (None, "none") or fields.number("llama.rope.scale_linear", 1.0) != 1.0:
        raise UnsupportedModelError(f"{fields.where}: rotary scaling {scaling or 'linear'!r} is not supported yet")
    if fields.integer("llama.expert_count", 0, low=0):
        raise UnsupportedModelError(f"{fields.where}: mixture-of-experts models are not supported yet")


def _refuse_json_variants(fields: Fields) -> None:
    if (activation := fields.get("hidden_act")) not in (None, "silu", "swish"):
        raise UnsupportedModelError(f"{fields.where}: the activation {activation!r} is not supported yet, only 'silu'")
    if fields.flag("mlp_bias", False):
        raise UnsupportedModelError(f"{fields.where}: biases in the feed-forward layers are not supported yet")
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(f"{fields.where}: rotating only a part of each head is not supported yet")
    if fields.get("quantization_config") is not None:
        raise UnsupportedModelError(f"{fields.where}: quantized safetensors checkpoints are not supported yet")


def _rope_theta(fields: Fields) -> float:
    """`rope_theta`, or inside `rope_parameters` (newer files). Only unscaled rotation is supported."""
    theta = fields.number("rope_theta", 10_000.0)
    for key in ("rope_scaling", "rope_parameters"):
        value = fields.get(key)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise fields.wrong(key, "an object or null")
        kind = value.get("rope_type", value.get("type", "default"))
        if kind != "default":
            raise UnsupportedModelError(f"{fields.where}: {key} of type {kind!r} is not supported yet, only 'default'")
        theta = Fields(value, f"{fields.where}: {key}").number("rope_theta", theta)
    return theta


def _unique(*groups: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token for group in groups for token in group))
