"""Speed of the native kernels on the shapes of SmolLM2-135M with random weights, beside this machine's own limits.

    python benchmarks/kernels.py [--threads 2] [--formats Q4_1,Q8_0] [--tokens 1,8,32] [--context 128] [--seconds 1]
                                 [--activations int8]

Each line is the median of as many steps as fit into --seconds (at least three): a whole step of the model, T sequences
of one token each with --context positions behind them (a decode step), or for the columns marked p one prompt of T
tokens. The limits are measured in the same run: memory read by NumPy in as many threads over as many bytes as the
weights have, and NumPy's own matrix product. Other programs on the machine disturb all of them alike.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from aie_tensor import DType, Matrix, native, quantize
from aie_tensor.ops import ACTIVATIONS, Activations

LAYERS, C, F, V, H, G, D, BLOCK = 30, 576, 1536, 49152, 9, 3, 64, 16


def median_s(call: Callable[[], object], seconds: float) -> float:
    """Median duration of `call` over `seconds`, after one call to warm up."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def memory_read_gb_s(nbytes: int, threads: int, seconds: float) -> float:
    """Bytes per second when `threads` threads read `nbytes` together, in GB/s."""
    parts = np.array_split(np.ones(nbytes // 8, np.int64), threads)
    with ThreadPoolExecutor(threads) as pool:
        return nbytes / median_s(lambda: list(pool.map(np.max, parts)), seconds) / 1e9


def numpy_gflop_s(num_tokens: int, seconds: float) -> float:
    """NumPy's product [T, 576] x [576, 1536], in GFLOP/s."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((num_tokens, C), np.float32), rng.standard_normal((F, C), np.float32)
    return 2 * num_tokens * C * F / median_s(lambda: x @ w.T, seconds / 4) / 1e9


class Model:
    """A plan of SmolLM2's operators with random weights of one format."""

    def __init__(
        self,
        lib: native.NativeLibrary,
        dtype: DType,
        *,
        threads: int,
        max_tokens: int,
        context: int,
        activations: Activations = "fp32",
    ) -> None:
        rng = np.random.default_rng(0)
        self.max_tokens = max_tokens
        self.max_context = max(context + 1, max_tokens)
        self.blocks_per_sequence = -(-self.max_context // BLOCK)
        num_blocks = max(self.blocks_per_sequence * min(max_tokens, 64), 1)
        self.kv = native.KVLayout(*(np.zeros((num_blocks, LAYERS, G, BLOCK, D), np.float32) for _ in range(2)))
        self.buffers: list[np.ndarray] = []
        self.weight_bytes = 0

        def weight(n: int, k: int) -> native.PackedMatrix:
            values = quantize(rng.standard_normal((64, k), np.float32) / np.float32(np.sqrt(k)), dtype).data
            matrix = Matrix(dtype, (n, k), np.resize(values, n * (len(values) // 64)))
            packed = native.PackedMatrix.pack(lib, matrix, activations=activations)
            self.weight_bytes += packed.nbytes
            self.table = matrix
            return packed

        x, normed, qkv, mixed, hidden, last, logits = (self.buffer(w) for w in (C, C, (H + 2 * G) * D, C, F, C, V))
        norm, inv_freq = np.ones(C, np.float32), (1e4 ** (-np.arange(0, D, 2) / D)).astype(np.float32)
        build = native.PlanBuilder(
            lib, num_threads=threads, max_tokens=max_tokens, kv=self.kv, max_context=self.max_context, profile=True
        )
        head = weight(V, C)
        build.embed(self.table, x)
        for layer in range(LAYERS):
            build.rms_norm(x, norm, 1e-5, normed)
            build.linear(normed, [weight(H * D, C), weight(G * D, C), weight(G * D, C)], qkv)
            build.rope_attention(
                qkv, mixed, layer=layer, num_heads=H, num_kv_heads=G, head_dim=D, scale=D**-0.5, inv_freq=inv_freq,
                interleaved=True,
            )  # fmt: skip
            build.linear(mixed, [weight(C, H * D)], x, add=x)
            build.rms_norm(x, norm, 1e-5, normed)
            build.swiglu(normed, weight(F, C), weight(F, C), hidden)
            build.linear(hidden, [weight(C, F)], x, add=x)
        build.select_rows(x, last)
        build.rms_norm(last, norm, 1e-5, last, rows="logits")
        build.linear(last, [head], logits, rows="logits")
        self.plan = build.build()

    def buffer(self, width: int) -> native.Buffer:
        """A new activation buffer."""
        self.buffers.append(np.zeros((self.max_tokens, width), np.float32))
        return native.Buffer(self.buffers[-1].ctypes.data, width)

    def step(self, counts: list[int], start: int) -> native.StepArrays:
        """A step of sequences with `counts` tokens each, at positions from `start` on."""
        width = self.blocks_per_sequence
        tables = np.arange(len(counts) * width, dtype=np.int32).reshape(len(counts), width) % self.kv.k.shape[1]
        starts = np.cumsum([0, *counts], dtype=np.int32)
        return native.StepArrays(
            token_ids=np.arange(sum(counts), dtype=np.int32),
            positions=np.concatenate([np.arange(start, start + n, dtype=np.int32) for n in counts]),
            seq_starts=starts,
            context_lens=np.array(counts, np.int32) + np.int32(start),
            block_tables=tables,
            logit_rows=starts[1:] - np.int32(1),
        )


def describe(model: Model, counts: list[int], start: int, seconds: float) -> str:
    """Time, tokens/s, weight traffic, arithmetic, and where the time went."""
    step = model.step(counts, start)
    model.plan.run(step)  # touches the cache's pages for the first time; not to be counted
    before = {name: ns for name, ns, _ in model.plan.profile()}
    duration = median_s(lambda: model.plan.run(step), seconds)
    spent = {name: ns - before.get(name, 0) for name, ns, _ in model.plan.profile()}
    total = sum(spent.values())
    shares = ", ".join(f"{name} {ns / total:.0%}" for name, ns in sorted(spent.items(), key=lambda p: -p[1])[:4])
    matmul = LAYERS * (C * (H + 2 * G) * D + C * C + 3 * C * F) * sum(counts) + V * C * len(counts)
    return (
        f"{duration * 1e3:8.2f} ms {sum(counts) / duration:8.0f} tokens/s"
        f" {model.weight_bytes / duration / 1e9:6.1f} GB/s {2 * matmul / duration / 1e9:6.0f} GFLOP/s   {shares}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--formats", default="F32,BF16,F16,Q8_0,Q4_0,Q4_1")
    parser.add_argument("--tokens", default="1,2,4,8,16,32,64")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--activations", default="fp32", choices=ACTIVATIONS, help="int8: formats Q8_0, Q4_0, Q4_1")
    parser.add_argument("--flags", help="compiler flags instead of this CPU's, e.g. '-mavx2 -mfma -mf16c'")
    options = parser.parse_args()
    lib = native.load(report=print, flags=options.flags.split() if options.flags else None)
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, kernels {lib.isa}, {options.threads} threads")
    tokens = [int(t) for t in options.tokens.split(",")]
    for t in [*tokens, options.prompt]:
        print(f"NumPy product, T = {t}: {numpy_gflop_s(t, options.seconds):.0f} GFLOP/s")
    for name in options.formats.split(","):
        model = Model(
            lib,
            DType[name],
            threads=options.threads,
            max_tokens=max(*tokens, options.prompt),
            context=options.context,
            activations=options.activations,
        )
        read = memory_read_gb_s(model.weight_bytes, options.threads, options.seconds)
        print(f"{name}: {model.weight_bytes / 1e6:.0f} MB of weights; reading as many bytes: {read:.1f} GB/s")
        for t in tokens:
            print(f"  decode {t:4d}  {describe(model, [1] * t, options.context, options.seconds)}", flush=True)
        print(f"  prompt {options.prompt:4d}  {describe(model, [options.prompt], 0, options.seconds)}", flush=True)
        model.plan.close()


if __name__ == "__main__":
    main()
