"""A model of a few hundred kilobytes, made on the spot: for tests, and for demonstrations where no real model is
present.

The architecture is the real one (Llama: grouped-query attention, RoPE, SwiGLU, RMSNorm), the weights are random
numbers from a seed. What it says means nothing, but it is not degenerate: attention and feed-forward layers
contribute as much to the residual stream as the embedding does, the output head is not tied, and the head's rows of
tokens that are no readable text are damped, so greedy output wanders over readable pieces and depends on the whole
prompt.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from aie_loader.bpe_training import learn_merges
from aie_loader.formats.gguf_writer import write_gguf
from aie_loader.text.byte_level import byte_level_bpe, byte_to_char
from aie_tensor import DType, quantize

__all__ = ["TINY_CHAT_TEMPLATE", "write_tiny_gguf", "write_tiny_llama"]

Array = npt.NDArray[np.float32]

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_BOS, _EOS = 1, 2
_ROPE_THETA, _RMS_EPS = 10_000.0, 1e-5
TINY_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TEXT = """
A server turns requests into answers. The first request waits in a queue; the scheduler takes it from the queue and
puts it into a batch. The batch runs on the engine, the engine runs the graph of the model, and the graph runs the
kernels. Each step of the engine gives one token to each sequence in the batch. When a sequence ends, its blocks are
free, and the next request takes its place. The keys and the values of the tokens that were read before are kept in
the cache, so that the model reads each token only once. The larger the batch, the more tokens come out of each
reading of the weights; the longer the queue, the longer the wait of the one who stands at its end. There is a balance
between them, and the scheduler holds it. A request that waits too long is refused, and one whose client hangs up is
cancelled. What the server cannot do it says at once, in clear words, and what it can do it does in time. The weather
is fine today; the sea is calm, the wind is light, and the ships are on their way home with the evening tide. The
people on the shore look at the lights and count the stars over the water.
"""


@dataclass(frozen=True, slots=True)
class _Size:
    """Dimensions of the model; `hidden` and `ffn` are multiples of 32, the block length of the quantized formats."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def ffn(self) -> int:
        return 3 * self.hidden

    def __post_init__(self) -> None:
        if self.hidden % 32 or self.hidden % self.heads or self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError(
                f"hidden ({self.hidden}) must be a multiple of 32 and of heads ({self.heads}) with an even quotient, "
                f"heads a multiple of kv_heads ({self.kv_heads})"
            )
        if self.vocab < len(_SPECIAL) + 256:
            raise ValueError(f"vocab must be at least {len(_SPECIAL) + 256}: special tokens and the 256 bytes")


def write_tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 512,
    context: int = 256,
) -> Path:
    """Write a Hugging Face style folder: config.json, model.safetensors (float32), tokenizer.json,
    tokenizer_config.json.

    The same arguments give the same bytes of weights. Raises ValueError for dimensions that do not fit together.
    """
    size = _Size(hidden, layers, heads, kv_heads, vocab, context)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokens, merges = _vocabulary(size.vocab)
    tokenizer = byte_level_bpe(tokens, merges, dict.fromkeys(range(len(_SPECIAL)), True), pre="smollm")
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(_weights(size, seed), str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write_json(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "num_hidden_layers": size.layers, "hidden_size": size.hidden, "intermediate_size": size.ffn,
        "num_attention_heads": size.heads, "num_key_value_heads": size.kv_heads, "head_dim": size.head_dim,
        "vocab_size": size.vocab, "max_position_embeddings": size.context, "rope_theta": _ROPE_THETA,
        "rms_norm_eps": _RMS_EPS, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "bos_token_id": _BOS, "eos_token_id": _EOS,
    })  # fmt: skip
    _write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "GPT2Tokenizer", "add_bos_token": False, "model_max_length": size.context,
        "bos_token": _SPECIAL[_BOS], "eos_token": _SPECIAL[_EOS], "chat_template": TINY_CHAT_TEMPLATE,
    })  # fmt: skip
    return folder


def write_tiny_gguf(
    path: Path,
    *,
    seed: int = 0,
    quant: DType = DType.Q8_0,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 512,
    context: int = 256,
) -> Path:
    """Write the model of `write_tiny_llama` as one GGUF file, matrices in `quant`, norms in float32.

    With the 4-bit types the embedding and the head are Q8_0, as in files found in the wild. With F32 the weights are
    those of the folder bit for bit (q and k in GGUF's order of rotary pairs), so both give the same logits.
    """
    size = _Size(hidden, layers, heads, kv_heads, vocab, context)
    ends = DType.Q8_0 if quant in {DType.Q4_0, DType.Q4_1} else quant
    tensors = {}
    for name, array in _weights(size, seed).items():
        kind = DType.F32 if array.ndim == 1 else ends if "layers" not in name else quant
        tensors[_gguf_name(name)] = quantize(_interleave(name, array, size), kind)
    return write_gguf(Path(path), _gguf_metadata(size), tensors)


def _gguf_metadata(size: _Size) -> Mapping[str, object]:
    tokens, merges = _vocabulary(size.vocab)
    return {
        "general.architecture": "llama", "general.type": "model", "general.name": "tiny llama",
        "llama.block_count": size.layers, "llama.context_length": size.context, "llama.embedding_length": size.hidden,
        "llama.feed_forward_length": size.ffn, "llama.attention.head_count": size.heads,
        "llama.attention.head_count_kv": size.kv_heads, "llama.rope.freq_base": _ROPE_THETA,
        "llama.rope.dimension_count": size.head_dim, "llama.attention.layer_norm_rms_epsilon": _RMS_EPS,
        "llama.vocab_size": size.vocab,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": [_token_type(token) for token in tokens],
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": _BOS, "tokenizer.ggml.eos_token_id": _EOS, "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": TINY_CHAT_TEMPLATE,
    }  # fmt: skip


def _token_type(token: str) -> int:
    """GGUF's numbers: 1 normal, 3 control, 5 unused."""
    return 3 if token in _SPECIAL else 5 if token.startswith("<|unused_") else 1


@lru_cache(maxsize=4)
def _vocabulary(vocab: int) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Exactly `vocab` tokens (special, bytes, merged, fillers) and the merges."""
    base = (*_SPECIAL, *byte_to_char())
    merges = tuple(learn_merges(_TEXT, vocab - len(base)))
    tokens = (*base, *(left + right for left, right in merges))
    # Two merges may build the same text; as in real vocabularies, then only the first has an id of its own.
    tokens = tuple(dict.fromkeys(tokens))
    return (*tokens, *(f"<|unused_{index}|>" for index in range(vocab - len(tokens)))), merges


def _weights(size: _Size, seed: int) -> dict[str, Array]:
    """Named as in Hugging Face checkpoints; matrices are [out, in]. Scales: see the module's docstring."""
    random = np.random.Generator(np.random.PCG64(seed))
    kv = size.kv_heads * size.head_dim

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Array:
        scaled: Array = (random.standard_normal((rows, columns)) * (gain / np.sqrt(columns))).astype(np.float32)
        return scaled

    def norm() -> Array:
        return (1.0 + 0.1 * random.standard_normal(size.hidden)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(size.vocab, size.hidden, np.sqrt(size.hidden))}
    for index in range(size.layers):
        prefix = f"model.layers.{index}."
        weights |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(size.hidden, size.hidden, 1.5),
            prefix + "self_attn.k_proj.weight": matrix(kv, size.hidden, 1.5),
            prefix + "self_attn.v_proj.weight": matrix(kv, size.hidden, 1.5),
            prefix + "self_attn.o_proj.weight": matrix(size.hidden, size.hidden, 1.5),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "mlp.gate_proj.weight": matrix(size.ffn, size.hidden, 1.5),
            prefix + "mlp.up_proj.weight": matrix(size.ffn, size.hidden, 1.5),
            prefix + "mlp.down_proj.weight": matrix(size.hidden, size.ffn, 1.5),
        }
    head = matrix(size.vocab, size.hidden, 2.0)
    readable = np.array([_is_readable(token) for token in _vocabulary(size.vocab)[0]])
    head[~readable] *= 0.05
    return weights | {"model.norm.weight": norm(), "lm_head.weight": head}


def _is_readable(token: str) -> bool:
    return not token.startswith("<|") and all(char == "Ġ" or "!" <= char <= "~" for char in token)


def _gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor: `model.layers.3.mlp.up_proj.weight` is `blk.3.ffn_up.weight`."""
    # Written out, not taken from architectures/llama.py: what the loader is tested with must not share its mistakes.
    ends = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    stem = name.removesuffix(".weight")
    if stem in ends:
        return f"{ends[stem]}.weight"
    _, _, index, part = stem.split(".", 3)
    return f"blk.{index}.{parts[part]}.weight"


def _interleave(name: str, array: Array, size: _Size) -> Array:
    """Reorder the rows of q and k from rotary pairs (i, i + D/2) to neighbouring pairs (2i, 2i + 1), GGUF's order."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return array
    heads = array.shape[0] // size.head_dim
    halves = array.reshape(heads, 2, size.head_dim // 2, array.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
