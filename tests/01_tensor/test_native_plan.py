"""Whole plans of the native kernels: small operators, a transformer layer, profiling, threads, checks of a step."""

import threading

import numpy as np
import psutil
import pytest

from aie_tensor import DType, ops, quantize
from aie_tensor.native import PackedMatrix

pytestmark = pytest.mark.native

C, F, V, H, G, D = 64, 96, 50, 4, 2, 16


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0, DType.Q4_1])
def test_embed_reads_rows_exactly(bench, dtype):
    table = quantize(np.random.default_rng(0).standard_normal((V, C), dtype=np.float32), dtype)
    plan = bench()
    out = plan.buffer(width=C)
    plan.builder.embed(table, out)
    ids = [3, 49, 0, 3, 17]
    plan.run([(0, 5)], token_ids=ids)
    np.testing.assert_array_equal(plan.read(out, 5), table.dequantize()[ids])


@pytest.mark.parametrize("width", [1, 19, 64, 576])
def test_rows_by_themselves(bench, width):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((5, width), dtype=np.float32) * 8 for _ in range(2))
    weight = rng.standard_normal(width, dtype=np.float32)
    plan = bench(num_threads=3)
    x, y = plan.buffer(a), plan.buffer(b)
    outs = {name: plan.buffer(width=width) for name in ("norm", "silu", "mul", "add", "rows", "norm_of_rows")}
    plan.builder.rms_norm(x, weight, 1e-5, outs["norm"])
    plan.builder.silu(x, outs["silu"])
    plan.builder.mul(x, y, outs["mul"])
    plan.builder.add(x, y, outs["add"])
    plan.builder.select_rows(x, outs["rows"])
    plan.builder.rms_norm(outs["rows"], weight, 1e-5, outs["norm_of_rows"], rows="logits")
    plan.run([(0, 5)], logit_rows=[4, 1])
    got = {name: plan.read(out, 5) for name, out in outs.items()}
    norm = ops.rms_norm(a, weight, 1e-5)
    np.testing.assert_allclose(got["norm"], norm, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got["silu"], ops.silu(a), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(got["mul"], a * b)
    np.testing.assert_array_equal(got["add"], a + b)
    np.testing.assert_array_equal(got["rows"][:2], a[[4, 1]])
    np.testing.assert_array_equal(got["norm_of_rows"][:2], got["norm"][[4, 1]])
    assert np.isnan(got["norm_of_rows"][2:]).all(), "rows beyond R were written"


def test_exp_is_within_two_units_in_the_last_place(native_lib):
    x = np.concatenate([np.linspace(-87, 88.7, 200_001), [0.0, -0.0, 1e-30]]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(native_lib.map("exp", x) - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()
    special = native_lib.map("exp", np.array([0, -np.inf, np.inf, np.nan, -200, 200], np.float32))
    np.testing.assert_array_equal(special, np.array([1, 0, np.inf, np.nan, 0, np.inf], np.float32))


@pytest.mark.parametrize("threads", [1, 3])
def test_argmax_in_a_plan_answers_as_numpy(bench, threads):
    rng = np.random.default_rng(3)
    x = rng.integers(-50, 50, (12, 3000)).astype(np.float32)  # many equals
    x[3, 2000:] = np.nan
    x[4] = -np.inf
    x[5, 7], x[6, 2999] = np.inf, 99
    x[7, 5], x[7, 2500] = np.nan, np.inf
    plan = bench(max_tokens=12, num_threads=threads)
    source, found = plan.buffer(x), plan.buffer(width=1)
    plan.builder.argmax(source, found)
    plan.run_tokens(12)
    np.testing.assert_array_equal(plan.read(found, 12).view(np.int32)[:, 0], np.argmax(x, axis=1))


@pytest.mark.parametrize("width", [1, 15, 16, 1000, 3000])
def test_argmax_answers_as_numpy(native_lib, width):
    x = np.random.default_rng(2).integers(0, 20, (40, width)).astype(np.float32)
    x[3, width // 2], x[4, :], x[5, :] = np.nan, -np.inf, np.nan
    np.testing.assert_array_equal(native_lib.argmax_rows(x), np.argmax(x, axis=1))


class Layer:
    """Embedding, one transformer layer and the logits, natively and by the reference operators."""

    def __init__(self, bench, **options):
        rng = np.random.default_rng(3)

        def make(n, k, dtype):
            return quantize(rng.standard_normal((n, k), dtype=np.float32) / 8, dtype)

        self.table = make(V, C, DType.Q8_0)
        self.q, self.k, self.v = make(H * D, C, DType.Q4_1), make(G * D, C, DType.Q4_1), make(G * D, C, DType.F16)
        self.o, self.gate, self.up = make(C, H * D, DType.BF16), make(F, C, DType.Q4_0), make(F, C, DType.Q4_1)
        self.down = make(C, F, DType.Q8_0)
        self.norms = [rng.standard_normal(C, dtype=np.float32) for _ in range(3)]
        self.inv_freq = (100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)
        self.plan = plan = bench(max_tokens=32, kv_shape=(8, 1, G, 16, D), max_context=64, **options)
        x, normed, qkv, mixed, hidden, last, last_normed, self.logits = (
            plan.buffer(width=w) for w in (C, C, (H + 2 * G) * D, H * D, F, C, C, V)
        )
        pack = lambda matrix: PackedMatrix.pack(plan.lib, matrix)  # noqa: E731
        build = plan.builder
        build.embed(self.table, x)
        build.rms_norm(x, self.norms[0], 1e-5, normed)
        build.linear(normed, [pack(self.q), pack(self.k), pack(self.v)], qkv)
        build.rope_attention(
            qkv, mixed, layer=0, num_heads=H, num_kv_heads=G, head_dim=D, scale=D**-0.5, inv_freq=self.inv_freq,
            interleaved=True,
        )  # fmt: skip
        build.linear(mixed, [pack(self.o)], x, add=x)
        build.rms_norm(x, self.norms[1], 1e-5, normed)
        build.swiglu(normed, pack(self.gate), pack(self.up), hidden)
        build.linear(hidden, [pack(self.down)], x, add=x)
        build.select_rows(x, last)
        build.rms_norm(last, self.norms[2], 1e-5, last_normed, rows="logits")
        build.linear(last_normed, [pack(self.table)], self.logits, rows="logits")

    def run(self, chunks, ids, tables, logit_rows):
        self.plan.run(chunks, tables=tables, token_ids=ids, logit_rows=logit_rows)
        return self.plan.read(self.logits, len(logit_rows))

    def expected(self, ids):
        """Logits of every position of one sequence."""
        positions, weight = np.arange(len(ids)), lambda m: m.dequantize()
        x = ops.embedding(np.array(ids), self.table)
        normed = ops.rms_norm(x, self.norms[0], 1e-5)
        q, k, v = (ops.linear(normed, weight(m)).reshape(len(ids), -1, D) for m in (self.q, self.k, self.v))
        q, k = (ops.rope(part, positions, self.inv_freq, True) for part in (q, k))
        x = x + ops.linear(ops.attention(q, k, v, positions, D**-0.5).reshape(len(ids), -1), weight(self.o))
        normed = ops.rms_norm(x, self.norms[1], 1e-5)
        hidden = ops.silu(ops.linear(normed, weight(self.gate))) * ops.linear(normed, weight(self.up))
        x = x + ops.linear(hidden, weight(self.down))
        return ops.linear(ops.rms_norm(x, self.norms[2], 1e-5), weight(self.table))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_layer_matches_numpy_and_does_not_depend_on_company(bench, num_threads):
    rng = np.random.default_rng(4)
    first, second = rng.integers(0, V, 20), rng.integers(0, V, 9)
    both = Layer(bench, num_threads=num_threads)
    together = both.run([(0, 20), (0, 9)], [*first, *second], [[5, 2], [7, 0]], [19, 28])
    np.testing.assert_allclose(together[0], both.expected(first)[-1], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(together[1], both.expected(second)[-1], rtol=2e-5, atol=2e-5)
    alone = Layer(bench, num_threads=1)
    alone.run([(0, 12)], first[:12], [[1, 3]], [])
    for position in range(12, 20):  # decode the rest token by token
        last = alone.run([(position, 1)], first[position : position + 1], [[1, 3]], [0])
    np.testing.assert_array_equal(last[0], together[0])


def test_profile_names_operators(bench):
    layer = Layer(bench, profile=True)
    layer.run([(0, 3)], [1, 2, 3], [[0]], [2])
    layer.run([(3, 1)], [1], [[0]], [0])
    profile = {name: (ns, calls) for name, ns, calls in layer.plan.plan.profile()}
    assert profile["linear"][1] == 8 and profile["rms_norm"][1] == 6 and profile["swiglu"][1] == 2
    assert all(ns > 0 for ns, _ in profile.values()) and "mul" not in profile
    quiet = Layer(bench)
    quiet.run([(0, 3)], [1, 2, 3], [[0]], [2])
    assert quiet.plan.plan.profile() == []


def test_close_joins_the_threads_and_is_repeatable(bench):
    before = psutil.Process().num_threads()
    layer = Layer(bench, num_threads=3)
    layer.run([(0, 1)], [1], [[0]], [0])
    assert psutil.Process().num_threads() == before + 2
    layer.plan.plan.close()
    layer.plan.plan.close()
    assert psutil.Process().num_threads() == before
    with pytest.raises(AssertionError, match="closed"):
        layer.run([(0, 1)], [1], [[0]], [0])


def test_one_thread_starts_none(bench):
    before = psutil.Process().num_threads()
    Layer(bench, num_threads=1).run([(0, 1)], [1], [[0]], [0])
    assert psutil.Process().num_threads() == before


def test_a_plan_may_move_between_threads(bench):
    layer, results = Layer(bench, num_threads=2), []

    def work():
        results.append(layer.run([(0, 2)], [4, 5], [[0]], [1]))

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_ids": [V]},
        {"token_ids": [-1]},
        {"chunks": [(64, 1)], "tables": [[0, 1, 2, 3, 4]]},  # beyond max_context
        {"chunks": [(16, 1)], "tables": [[0]]},  # needs a second block
        {"tables": [[8]]},  # no such block
        {"tables": [[-1]]},
        {"logit_rows": [1]},
        {"chunks": [(0, 33)], "token_ids": [0] * 33, "tables": [[0, 1, 2]]},  # more than max_tokens
    ],
)
def test_a_step_out_of_bounds_is_stopped_before_c(bench, wrong):
    arguments = {"chunks": [(0, 1)], "token_ids": [0], "tables": [[0]], "logit_rows": [0]} | wrong
    with pytest.raises(AssertionError):
        Layer(bench).plan.run(**arguments)
