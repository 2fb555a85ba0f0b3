"""The reference operators: plain NumPy in float32, the oracle that every fast kernel is tested against.

They are written to be read beside the formula, not to be fast. Activations of texts are packed: the tokens of one or
many sequences lie one after another, so most operators see only T rows and need not know where a sequence ends. Images
have a batch axis.
"""

from aie_tensor.ops.activations import (
    gelu,
    gelu_tanh,
    log_softmax,
    quick_gelu,
    relu,
    sigmoid,
    silu,
    softcap,
    softmax,
    tanh,
)
from aie_tensor.ops.attention import alibi_slopes, attention, bidirectional_attention
from aie_tensor.ops.convolution import avg_pool2d, conv1d, conv2d, global_avg_pool, max_pool2d, window_count
from aie_tensor.ops.eight_bits import ACTIVATIONS, Activations, round_activations
from aie_tensor.ops.kv_numbers import KV_DTYPES, KVDtype, read_kv, round_kv
from aie_tensor.ops.linear import embedding, linear
from aie_tensor.ops.norms import batch_norm, group_norm, l2_normalize, layer_norm, rms_norm
from aie_tensor.ops.rotary import dynamic_ntk, inverse_frequencies, linear_scaling, llama3_scaling, rope, yarn
from aie_tensor.ops.selection import nms, pool_tokens, top_k

__all__ = [
    "ACTIVATIONS",
    "KV_DTYPES",
    "Activations",
    "KVDtype",
    "alibi_slopes",
    "attention",
    "avg_pool2d",
    "batch_norm",
    "bidirectional_attention",
    "conv1d",
    "conv2d",
    "dynamic_ntk",
    "embedding",
    "gelu",
    "gelu_tanh",
    "global_avg_pool",
    "group_norm",
    "inverse_frequencies",
    "l2_normalize",
    "layer_norm",
    "linear",
    "linear_scaling",
    "llama3_scaling",
    "log_softmax",
    "max_pool2d",
    "nms",
    "pool_tokens",
    "quick_gelu",
    "read_kv",
    "relu",
    "rms_norm",
    "rope",
    "round_activations",
    "round_kv",
    "sigmoid",
    "silu",
    "softcap",
    "softmax",
    "tanh",
    "top_k",
    "window_count",
    "yarn",
]
