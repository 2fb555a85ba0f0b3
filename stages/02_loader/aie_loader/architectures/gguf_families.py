"""Configuration of a decoder from GGUF metadata: keys `<family>.*` and `tokenizer.ggml.*`.

The writer of a GGUF file has done part of the work: Gemma's norms have their offset added, GPT-2's matrices are
transposed, GPT-NeoX's rows sorted, and the rows of Llama's q and k reordered so that rotary pairs are neighbours.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aie_loader.architectures.checks import MAX_HEAD_DIM, MAX_LAYERS, checked, divided, unique
from aie_loader.config import Fields, ModelConfig, RopeScaling
from aie_loader.errors import UnsupportedModelError

__all__ = ["GGUF_FAMILIES", "config_from_gguf"]

GGUF_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"rope_interleaved": True},
    "qwen2": {},
    "qwen3": {"has_qk_norm": True},
    "gemma2": {"activation": "gelu_tanh", "has_post_norms": True},
    "gemma3": {"activation": "gelu_tanh", "has_post_norms": True, "has_qk_norm": True},
    "phi3": {},
    "gpt2": {"norm": "layer", "activation": "gelu_tanh", "is_gated": False, "has_learned_positions": True,
             "attention_bias": True, "more_biases": ("attn_output", "ffn_up", "ffn_down")},
    "gptneox": {"norm": "layer", "activation": "gelu", "is_gated": False, "more_biases": ("ffn_up", "ffn_down")},
}  # fmt: skip
"""What each family changes, where the file need not be asked."""

_ENDS = ("eos", "eot", "eom")  # end of text, of turn, of message: each stops generation


def config_from_gguf(family: str, metadata: Mapping[str, object], where: str) -> ModelConfig:
    """`where` names the file in errors. UnsupportedModelError for what has no graph here."""
    fields = Fields(metadata, where)
    hidden, heads = fields.integer(f"{family}.embedding_length"), fields.integer(f"{family}.attention.head_count")
    head_dim = fields.integer(f"{family}.attention.key_length", divided(hidden, heads), high=MAX_HEAD_DIM)
    _refuse(fields, family, head_dim)
    vocab = fields.integer(f"{family}.vocab_size", _num_tokens(metadata))
    bos = fields.token_ids("tokenizer.ggml.bos_token_id", vocab)
    kind = "layer_norm_epsilon" if GGUF_FAMILIES[family].get("norm") == "layer" else "layer_norm_rms_epsilon"
    turning = fields.integer(f"{family}.rope.dimension_count", head_dim)
    base = ModelConfig(
        architecture=family,
        num_layers=fields.integer(f"{family}.block_count", high=MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=fields.integer(f"{family}.feed_forward_length"),
        num_heads=heads,
        num_kv_heads=fields.integer(f"{family}.attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=vocab,
        max_position_embeddings=fields.integer(f"{family}.context_length"),
        rope_theta=fields.number(f"{family}.rope.freq_base", 1e6 if family == "gemma3" else 10_000.0),
        norm_eps=fields.number(f"{family}.attention.{kind}"),
        tie_word_embeddings=False,  # a file without its own output tensor ties; the builder sees that
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=unique(*(fields.token_ids(f"tokenizer.ggml.{end}_token_id", vocab) for end in _ENDS)),
        rope_interleaved=False,
        rotary_dim=None if turning == head_dim else turning,
        rope_scaling=_scaling(fields, family),
    )
    base = replace(base, **GGUF_FAMILIES[family])
    return checked(fields, replace(base, **_special(fields, base)))


def _special(fields: Fields, base: ModelConfig) -> dict[str, Any]:
    """What the file must be asked, family by family."""
    match base.architecture:
        case "gemma2":
            return {
                **_gemma(fields, base, every=2),
                "attention_softcap": fields.number("gemma2.attn_logit_softcapping", 50.0),
                "logit_softcap": fields.number("gemma2.final_logit_softcapping", 30.0),
                # 27B alone divides by the width of the stream and not by that of a head.
                "attention_scale": (base.hidden_size / base.num_heads if base.num_layers == 46 else base.head_dim)
                ** -0.5,
            }
        case "gemma3":
            return {
                **_gemma(fields, base, every=6),
                "local_rope_theta": fields.number("gemma3.rope.freq_base_swa", 10_000.0),
                "attention_scale": (base.hidden_size / base.num_heads if base.num_layers == 62 else base.head_dim)
                ** -0.5,
            }
        case "gptneox":
            return {"is_parallel": fields.flag("gptneox.use_parallel_residual", True)}
        case "llama" | "phi3" if fields.get(f"{base.architecture}.attention.sliding_window") is not None:
            window = fields.integer(f"{base.architecture}.attention.sliding_window", low=0)
            sees_all = window == 0 or window >= base.max_position_embeddings
            return {"windows": () if sees_all else (window,) * base.num_layers}
    return {}


def _gemma(fields: Fields, base: ModelConfig, every: int) -> dict[str, Any]:
    """Every second or sixth layer sees everything, the others a window."""
    window = fields.integer(f"{base.architecture}.attention.sliding_window", 4096 if every == 2 else 1024)
    layers = range(1, base.num_layers + 1)
    return {
        "embedding_scale": base.hidden_size**0.5,
        "windows": tuple(None if layer % every == 0 else window for layer in layers),
    }


def _num_tokens(metadata: Mapping[str, object]) -> int | None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else None


def _scaling(fields: Fields, family: str) -> RopeScaling | None:
    kind = fields.get(f"{family}.rope.scaling.type")
    factor = fields.number(f"{family}.rope.scaling.factor", fields.number(f"{family}.rope.scale_linear", 1.0))
    context = fields.integer(f"{family}.context_length")
    trained_len = fields.integer(f"{family}.rope.scaling.original_context_length", context)
    if kind is None or kind == "none":
        return RopeScaling("linear", factor) if factor != 1.0 and kind is None else None
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind == "yarn":
        # The format's factor multiplies what the formula gives.
        attention = fields.number(f"{family}.rope.scaling.attn_factor", 1.0) * (1 + 0.1 * math.log(max(factor, 1.0)))
        return RopeScaling("yarn", factor, trained_len, attention_factor=attention)
    raise UnsupportedModelError(f"{fields.where}: rotary scaling {kind!r} is not supported yet")


def _refuse(fields: Fields, family: str, head_dim: int) -> None:
    if fields.integer(f"{family}.attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(f"{fields.where}: keys and values of different head sizes are not supported yet")
    if fields.integer(f"{family}.expert_count", 0, low=0):
        raise UnsupportedModelError(f"{fields.where}: mixture-of-experts models are not supported yet")
