"""The stage's demonstration, part 7: a linear layer in 4-bit blocks, NumPy against the C kernel. Run by `__main__`."""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from aie_tensor import native, ops
from aie_tensor.dtypes import DType
from aie_tensor.errors import NativeUnavailableError
from aie_tensor.memory import Allocation, MemoryPool
from aie_tensor.quant import Matrix, quantize

__all__ = ["show_kernels"]

Floats = NDArray[np.float32]
N, K = 1536, 576  # outputs and inputs of SmolLM2-135M's gate projection
BATCHES = (1, 32)  # tokens
BUDGET_S = 0.25  # measuring time for each figure
REPEATS = 16  # the layer's copies in one plan, so that one call's overhead is shared as in a whole model


def show_kernels(num_threads: int) -> None:
    """Print error and speed of the native kernel against the reference, or how to get a compiler."""
    print("7. Kernel against reference\n")
    random = np.random.default_rng(0)
    matrix = quantize(random.standard_normal((N, K)).astype(np.float32) * 0.05, DType.Q4_1)
    inputs = {tokens: random.standard_normal((tokens, K)).astype(np.float32) for tokens in BATCHES}
    kib, expanded_kib = matrix.nbytes / 1024, N * K * 4 / 1024
    print(f"   x [T, {K}] · W [{N}, {K}]ᵀ. W takes {kib:.0f} KiB in Q4_1 blocks, {expanded_kib:.0f} KiB in float32.\n")
    print(f"      {'':<38}{'T=1':>12}{'T=32':>12}{'largest error':>17}")
    weights = matrix.dequantize()
    exact = {tokens: x.astype(np.float64) @ weights.astype(np.float64).T for tokens, x in inputs.items()}
    _print_row("NumPy, blocks expanded at each call", inputs, exact, lambda x: ops.linear(x, matrix.dequantize()))
    _print_row("NumPy, expanded once beforehand", inputs, exact, lambda x: ops.linear(x, weights))
    try:
        library = native.load(report=lambda line: print(f"      ({line})"))
    except NativeUnavailableError as error:
        print(f"\n   No C kernels here, so the framework would run on NumPy. {error}\n")
        return
    with _LinearPlan(library, matrix, num_threads) as layer:
        name = f"C kernel on the blocks, {num_threads} thread{'s' if num_threads > 1 else ''}"
        _print_row(name, inputs, exact, layer, REPEATS)
    saving = weights.nbytes / matrix.nbytes
    print(
        "\n   Time per layer, the best seen. Errors are against float64, as a share of the largest output. The\n"
        f"   kernel never expands the matrix: it reads {saving:.1f} times fewer bytes. At T=1 each weight is used "
        "once,\n   so reading is most of the work; at T=32 one read serves 32 tokens: the case for batching.\n"
        "   (This one matrix stays in the cache, also in float32; a whole model does not.)\n"
    )


def _print_row(
    name: str,
    inputs: dict[int, Floats],
    exact: dict[int, NDArray[np.float64]],
    run: Callable[[Floats], Floats],
    layers_per_call: int = 1,
) -> None:
    """One line: µs per layer for each batch size, and the largest error of any."""
    cells, error = "", 0.0
    for tokens, x in inputs.items():
        difference = np.abs(run(x) - exact[tokens]).max() / np.abs(exact[tokens]).max()
        error = max(error, float(difference))
        cells += f"{_best_s(run, x) / layers_per_call * 1e6:>9.1f} µs"
    print(f"      {name:<38}{cells}{error:>17.1e}")


def _best_s(run: Callable[[Floats], Floats], x: Floats) -> float:
    """The quickest of the calls that fit in `BUDGET_S`: what the machine can do when nobody else wants it."""
    best = np.inf
    until = time.perf_counter() + BUDGET_S
    while (started := time.perf_counter()) < until:
        run(x)
        best = min(best, time.perf_counter() - started)
    return best


class _LinearPlan:
    """A plan of one linear layer, `REPEATS` times over, on buffers from a pool."""

    def __init__(self, library: native.NativeLibrary, matrix: Matrix, num_threads: int) -> None:
        pool = MemoryPool()
        tokens = max(BATCHES)
        self._blocks = [pool.allocate(tokens * width * 4, owner="demo") for width in (K, N)]
        self._x, self._out = (
            block.array(np.float32, (tokens, width)) for block, width in zip(self._blocks, (K, N), strict=True)
        )
        source, target = (_buffer(block, width) for block, width in zip(self._blocks, (K, N), strict=True))
        # A plan always has a cache to store keys in; this one has no attention and never touches it.
        cache = np.zeros((tokens // 16, 1, 1, 16, 2), dtype=np.float32)
        builder = native.PlanBuilder(
            library,
            num_threads=num_threads,
            max_tokens=tokens,
            kv=native.KVLayout(cache, cache.copy()),
            max_context=tokens,
        )
        packed = native.PackedMatrix.pack(library, matrix)
        for _ in range(REPEATS):
            builder.linear(source, [packed], target)
        self._plan = builder.build()

    def __call__(self, x: Floats) -> Floats:
        """x [T, K] → [T, N], a view that the next call overwrites."""
        tokens = len(x)
        self._x[:tokens] = x
        self._plan.run(_step(tokens))
        return self._out[:tokens]

    def __enter__(self) -> "_LinearPlan":
        return self

    def __exit__(self, *_: object) -> None:
        self._plan.close()
        for block in self._blocks:
            block.release()


def _buffer(block: Allocation, width: int) -> native.Buffer:
    return native.Buffer(block.address, width)


def _step(tokens: int) -> native.StepArrays:
    """One sequence of `tokens` tokens from position 0."""
    counts = np.array([tokens], dtype=np.int32)
    positions = np.arange(tokens, dtype=np.int32)
    return native.StepArrays(
        token_ids=np.zeros(tokens, dtype=np.int32),
        positions=positions,
        seq_starts=np.array([0, tokens], dtype=np.int32),
        context_lens=counts,
        block_tables=np.arange(-(-tokens // 16), dtype=np.int32).reshape(1, -1),
        logit_rows=np.zeros(0, dtype=np.int32),
    )
