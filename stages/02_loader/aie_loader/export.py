"""A loaded Llama model as a Hugging Face folder in float32: what other frameworks, and our own suite, can read.

The one thing that is not a mere copy is the order of rows in Wq and Wk. GGUF stores them so that rotary pairs are
neighbours, Hugging Face so that they are half a head apart:

    GGUF row 2i   of a head  ↔  row i          of the same head
    GGUF row 2i+1            ↔  row i + D/2
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aie_loader.architectures import NAMES
from aie_loader.config import ModelConfig
from aie_loader.formats.safetensors_writer import PendingTensor, write_safetensors
from aie_loader.model import Model
from aie_tensor import Matrix

__all__ = ["export_safetensors"]


def export_safetensors(model: Model, folder: Path | str) -> Path:
    """Write config.json, model.safetensors (F32), tokenizer.json, tokenizer_config.json and the chat template.

    One tensor is expanded at a time. EnvironmentLacksError when the disk is full.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        NAMES[model.config.architecture].in_checkpoint(name): PendingTensor(
            matrix.shape, partial(_expanded, name, matrix, model.config)
        )
        for name, matrix in model.graph.weights.items()
    }
    write_safetensors(folder / "model.safetensors", tensors)
    _write_json(folder / "config.json", _config_json(model.config))
    tokenizer, template = model.tokenizer, model.chat_template
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    ends = {"bos_token": tokenizer.bos_token_id, "eos_token": next(iter(tokenizer.eos_token_ids), None)}
    _write_json(
        folder / "tokenizer_config.json",
        {key: tokenizer.token_text(token) for key, token in ends.items() if token is not None},
    )
    if template is not None:
        (folder / "chat_template.jinja").write_text(template.source, encoding="utf-8")
    return folder


def _expanded(name: str, matrix: Matrix, config: ModelConfig) -> npt.NDArray[np.float32]:
    array = matrix.dequantize()
    if config.rope_interleaved and (".attn_q." in name or ".attn_k." in name):
        return _halves(array, config.head_dim)
    return array


def _halves(array: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """Rows of q or k, [H*D, …], from neighbouring rotary pairs to halves."""
    pairs = array.reshape(-1, head_dim // 2, 2, *array.shape[1:])  # [H, D/2, 2, …]
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)


def _config_json(config: ModelConfig) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
