"""Whether a file says of a model what the model is: its configuration, read back, against the one it was written from.

A converter's worst mistake is a file that loads and talks nonsense, because the format had no word for a window or for
the scale of the scores and its readers assume another. So what was written is read, and every number compared.
"""

from dataclasses import fields
from math import isclose

from aie_loader.architectures.rotation import rotation
from aie_loader.config import ModelConfig
from aie_loader.errors import UnsupportedModelError

__all__ = ["check_same_model"]

_ELSEWHERE = frozenset({
    "architecture",  # Mistral is `llama` in GGUF
    "rope_interleaved", "norm_offset",  # the tensors are changed to suit
    "attention_bias", "more_biases", "tie_word_embeddings",  # the tensors tell
    "bos_token_id", "eos_token_ids",  # the tokenizer's
    "rope_theta", "rope_scaling", "local_rope_theta", "rotary_dim",  # compared as what they give: frequencies
    "windows", "attention_scale",
})  # fmt: skip
_RELATIVE = 1e-6  # GGUF's numbers are float32


def check_same_model(model: ModelConfig, read: ModelConfig, what: str) -> None:
    """UnsupportedModelError names the first thing that a reader of `what` (such as "GGUF") would take for another."""
    pairs = {
        field.name: (getattr(model, field.name), getattr(read, field.name))
        for field in fields(ModelConfig)
        if field.name not in _ELSEWHERE
    }
    pairs["attention_scale"] = (_scale(model), _scale(read))
    for layer in range(model.num_layers):
        pairs[f"the window of layer {layer}"] = (model.window(layer), read.window(layer))
        if not model.has_learned_positions:
            pairs[f"the rotation of layer {layer}"] = (rotation(model, layer), rotation(read, layer))
    for name, (ours, theirs) in pairs.items():
        if not _same(ours, theirs):
            shown = "" if name.startswith("the rotation") else f" is {ours}, but its readers take {theirs}"
            raise UnsupportedModelError(f"{what} has no way to say this of the model: {name}{shown}")


def _scale(config: ModelConfig) -> float:
    return config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale


def _same(a: object, b: object) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return isclose(a, b, rel_tol=_RELATIVE)
    return a == b
