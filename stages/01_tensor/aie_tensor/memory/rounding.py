"""What size classes cost on the weights of real models.

A block is as large as its class, so what a tensor does not need of it is lost. The shapes below follow from each
model's published configuration, all in bfloat16. Waste is given as a share of what is reserved, (rounded − exact) /
rounded, since that is the share of the machine that holds nothing.

The lesson: a model whose dimensions are powers of two fits powers of two, and one with 896 or 768 channels loses close
to half. So weights bypass the classes (`MemoryPool.allocate_exact`, or a mapped file), and classes serve what comes and
goes, where their reuse is worth more than their rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from aie_tensor.memory.classes import SizeClasses
from aie_tensor.memory.host import page_rounded

__all__ = [
    "GPT2",
    "LLAMA_3_2_1B",
    "MODELS",
    "POLICIES",
    "QWEN2_5_0_5B",
    "SMOLLM2_135M",
    "Waste",
    "WeightShapes",
    "waste",
]

BF16_BYTES = 2
MIN_BLOCK, MAX_BLOCK = 1024, 1 << 30  # as `MemoryPool` has them by default

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightShapes:
    """Every tensor of a checkpoint: those outside the layers, and those that each layer has."""

    name: str
    num_layers: int
    shared: tuple[Shape, ...]
    per_layer: tuple[Shape, ...]

    def nbytes(self) -> list[int]:
        """The size of each tensor in bfloat16."""
        shapes = [*self.shared, *(self.per_layer * self.num_layers)]
        return [prod(shape) * BF16_BYTES for shape in shapes]


def _llama(
    name: str,
    *,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    qkv_bias: bool = False,
) -> WeightShapes:
    """The Llama family with tied embeddings; `qkv_bias` as Qwen2 has it."""
    head_dim = hidden // heads
    query, key = heads * head_dim, kv_heads * head_dim
    matrices = ((query, hidden), (key, hidden), (key, hidden), (hidden, query))
    mlp = ((intermediate, hidden), (intermediate, hidden), (hidden, intermediate))
    norms = ((hidden,), (hidden,))
    biases = ((query,), (key,), (key,)) if qkv_bias else ()
    return WeightShapes(name, layers, ((vocab, hidden), (hidden,)), (*matrices, *mlp, *norms, *biases))


def _gpt2(name: str, *, hidden: int, layers: int, positions: int, vocab: int) -> WeightShapes:
    """GPT-2 as published: query, key and value in one matrix, a bias everywhere, LayerNorm with weight and bias."""
    matrices = ((hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden))
    biases = ((3 * hidden,), (hidden,), (4 * hidden,), (hidden,))
    norms = ((hidden,),) * 4
    shared = ((vocab, hidden), (positions, hidden), (hidden,), (hidden,))
    return WeightShapes(name, layers, shared, (*matrices, *biases, *norms))


# config.json of openai-community/gpt2: n_embd, n_layer, n_positions, vocab_size
GPT2 = _gpt2("GPT-2 (124M)", hidden=768, layers=12, positions=1024, vocab=50257)
# The others: hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, vocab_size
# config.json of Qwen/Qwen2.5-0.5B
QWEN2_5_0_5B = _llama(
    "Qwen2.5-0.5B", hidden=896, intermediate=4864, layers=24, heads=14, kv_heads=2, vocab=151936, qkv_bias=True
)
# config.json of meta-llama/Llama-3.2-1B
LLAMA_3_2_1B = _llama("Llama-3.2-1B", hidden=2048, intermediate=8192, layers=16, heads=32, kv_heads=8, vocab=128256)
# config.json of HuggingFaceTB/SmolLM2-135M
SMOLLM2_135M = _llama("SmolLM2-135M", hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3, vocab=49152)

MODELS = (GPT2, QWEN2_5_0_5B, LLAMA_3_2_1B, SMOLLM2_135M)
POLICIES: tuple[int | None, ...] = (1, 2, 4, 8, None)  # classes per doubling; None: exact, rounded to pages


@dataclass(frozen=True, slots=True)
class Waste:
    """What rounding costs for a set of sizes."""

    exact_bytes: int
    rounded_bytes: int

    @property
    def share(self) -> float:
        """Of what is reserved, the part that holds nothing: 0–1."""
        return (self.rounded_bytes - self.exact_bytes) / self.rounded_bytes if self.rounded_bytes else 0.0


def waste(sizes: Sequence[int], classes_per_doubling: int | None) -> Waste:
    """Round each of `sizes` to its class, or to pages: with None, and beyond the largest class."""
    if classes_per_doubling is None:
        return Waste(sum(sizes), sum(page_rounded(size) for size in sizes))
    classes = SizeClasses(MIN_BLOCK, MAX_BLOCK, classes_per_doubling)
    rounded = 0
    for size in sizes:
        found = classes.index(size)
        rounded += page_rounded(size) if found is None else classes.sizes[found]
    return Waste(sum(sizes), rounded)
