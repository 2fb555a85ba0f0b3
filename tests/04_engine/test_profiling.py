"""What steps cost, counted by hand for a model small enough; and that a profile adds up."""

import json
from itertools import pairwise

import numpy as np
import pytest

from aie_engine.profiling import Cost, Peaks, StepProfiler, StepShape, measure_peaks, node_cost, trace_events
from aie_engine.profiling.steps import OpProfile
from aie_loader import Graph, Node, load_model
from aie_tensor import InvalidInputError, Matrix, NativeUnavailableError, native

try:
    LIBRARY = native.load()
except NativeUnavailableError:
    LIBRARY = None

needs_kernels = pytest.mark.skipif(LIBRARY is None, reason="profiles are of native kernels; there is no C compiler")

# Two sequences: three tokens after five, and a prompt of four; logits of both.
STEP = StepShape(((3, 5), (4, 0)), 2, kv_bytes=64)


def matrix(*shape):
    return Matrix.from_array(np.zeros(shape, np.float32))


def cost(op, inputs=(), weights=None, shape=("T", 8), attrs=None):
    node = Node("y", op, tuple(inputs), attrs or {})
    graph = Graph(("x",), [node], ("y",), {name: matrix(*size) for name, size in (weights or {}).items()}, {"y": shape})
    return node_cost(node, graph, STEP, lambda _name, weight: float(weight.nbytes))


def test_products_cost_two_operations_per_weight_and_row_and_their_weights_once():
    assert cost("linear", ["x", "w", "b"], {"w": (10, 6), "b": (10,)}) == Cost(2 * 7 * 60, 240)
    assert cost("swiglu", ["x", "g", "u"], {"g": (10, 6), "u": (10, 6)}) == Cost(2 * 7 * 120, 480)
    assert cost("linear", ["x", "w"], {"w": (10, 6)}, shape=("R", 10)) == Cost(2 * 2 * 60, 240)


def test_attention_looks_at_what_lies_before_each_token():
    # Scores: tokens at 5, 6, 7 see 6, 7, 8 keys; those of the prompt see 1, 2, 3, 4.
    assert STEP.num_scores == 6 + 7 + 8 + 1 + 2 + 3 + 4 and STEP.num_tokens == 7
    heads = {"num_heads": 3, "num_kv_heads": 1, "head_dim": 4}
    assert cost("rope_attention", ["x"], attrs=heads) == Cost(4 * 3 * 4 * 31, 64 * (8 + 4))
    assert cost("encoder_attention", ["x"], attrs=heads) == Cost(4 * 3 * 4 * (9 + 16))


def test_an_embedding_reads_its_rows_and_a_norm_nothing():
    assert cost("embedding", ["token_ids", "table"], {"table": (100, 8)}) == Cost(0, 7 * 32)
    assert cost("rms_norm", ["x", "w"], {"w": (8,)}) == Cost()


def test_a_convolution_costs_its_window_for_each_output():
    step = StepShape((), 0, num_items=5)
    node = Node("y", "conv2d", ("x", "k"))
    graph = Graph(("x",), [node], ("y",), {"k": matrix(4, 3, 2, 2)}, {"y": ("B", 4, 6, 6)})
    found = node_cost(node, graph, step, lambda _name, weight: float(weight.nbytes))
    assert found == Cost(2 * 5 * (4 * 6 * 6) * (3 * 2 * 2), 4 * 48)


def test_the_roofline_is_the_slower_of_computing_and_fetching():
    peaks = Peaks(flops=100.0, read=10.0)
    assert OpProfile("linear", 1, 4.0, Cost(200.0, 5.0)).roofline_share(peaks) == 0.5
    assert OpProfile("linear", 1, 4.0, Cost(50.0, 10.0)).roofline_share(peaks) == 0.25
    assert OpProfile("rms_norm", 1, 4.0, Cost()).roofline_share(peaks) is None


@pytest.fixture(scope="module")
def model(tiny_model):
    loaded = load_model(tiny_model)
    yield loaded
    loaded.close()


@needs_kernels
def test_a_profile_covers_the_whole_plan(model):
    profiler = StepProfiler(model, LIBRARY, num_threads=1, max_tokens=12, max_sequences=3, max_context=20)
    try:
        steps = [profiler.prompt(12, 0.0), profiler.decode(3, 10, 0.0)]
        names = {node.name for node in model.graph.nodes}
        for step, tokens in zip(steps, (12, 3), strict=True):
            assert step.shape.num_tokens == tokens and step.runs == 3
            assert all(op.seconds > 0 for op in step.ops)
            assert sum(op.seconds for op in step.ops) <= step.seconds, "the rest is outside the plan"
            assert sum(op.calls for op in step.ops) == len(step.last)
            assert sum(one.last_ns for _, one in step.last) * 1e-9 < 1.0
            kinds = {op.name: op for op in step.ops}
            assert kinds["linear"].cost.flops > 0 and kinds["attention"].cost.nbytes > 0
        # Weights are fetched once whatever the batch; operations grow with it.
        linear = [{op.name: op for op in step.ops}["linear"].cost for step in steps]
        assert linear[0].nbytes == linear[1].nbytes and linear[0].flops > linear[1].flops
        assert profiler.weight_bytes == sum(profiler._executor.packed_bytes.values()) > 0
        origins = {origin for step in steps for origin, _ in step.last}
        assert any(origin in names for origin in origins) and "argmax" in origins
        trace = trace_events(steps)
        json.dumps(trace)
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        assert len(spans) == sum(len(step.last) for step in steps)
        for thread in (0, 1):
            own = [event for event in spans if event["tid"] == thread]
            assert own[0]["ts"] == 0
            for before, after in pairwise(own):
                assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=1e-3)
    finally:
        profiler.close()


@needs_kernels
def test_a_context_longer_than_the_model_is_refused(model):
    with pytest.raises(InvalidInputError, match="context"):
        StepProfiler(model, LIBRARY, num_threads=1, max_tokens=4, max_sequences=1, max_context=1 << 20)


@needs_kernels
def test_peaks_are_positive():
    peaks = measure_peaks(LIBRARY, 1, 1)
    assert peaks.flops > 1e8 and peaks.read > 1e6
