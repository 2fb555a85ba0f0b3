"""What happens to a model that the native kernels cannot run, or whose weights they cannot read as they are."""

from dataclasses import replace

import numpy as np
import pytest

from aie_engine.batch import BatchChunk, StepBatch
from aie_engine.build import build_engine
from aie_engine.config import EngineConfig
from aie_engine.errors import UnsupportedOpError
from aie_engine.executors import NativeExecutor, NumpyExecutor, lowering
from aie_engine.kv_cache import KVCache
from aie_loader import fuse, load_model, write_tiny_llama
from aie_tensor import DType, Matrix, MemoryPool, NativeUnavailableError, native

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def library():
    try:
        return native.load()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


def config(folder, kernels):
    return EngineConfig(model_path=folder, kernels=kernels, max_seq_len=64, max_batch_size=2, warm_up=False)


def test_auto_runs_on_numpy_and_says_why(folder, library, monkeypatch):
    monkeypatch.delitem(lowering._OPERATORS, "swiglu")
    lines = []
    parts = build_engine(config(folder, "auto"), lines.append)
    assert parts.info.kernels == "numpy"
    parts.close()
    (line,) = [line for line in lines if "NumPy" in line]
    assert "'swiglu'" in line
    with pytest.raises(UnsupportedOpError, match="swiglu"):
        build_engine(config(folder, "native"), lines.append)


def test_weights_without_a_kernel_are_expanded_exactly(folder, library):
    model = load_model(folder)
    weights, random = dict(model.graph.weights), np.random.default_rng(0)
    for name in ("token_embd.weight", "blk.0.ffn_down.weight"):
        weights[name] = Matrix.from_array(random.integers(-9, 10, weights[name].shape, dtype=np.int8))
    exact = {name: Matrix.from_array(matrix.dequantize()) for name, matrix in weights.items()}
    pool, found = MemoryPool(), []
    for version in (weights, exact):
        kv = KVCache(model.config, 4, 16, pool)
        graph = fuse(replace(model.graph, weights=version))
        limits = {"max_tokens": 8, "max_rows": 8, "max_context": 32}
        executor = NativeExecutor(graph, kv, library, num_threads=2, pool=pool, **limits)
        sizes = [4 * np.prod(weights[name].shape) for name in ("token_embd.weight", "blk.0.ffn_down.weight")]
        assert executor.expanded == ({} if version is exact else {DType.I8: sum(sizes)})
        found.append(executor.run(StepBatch.pack([BatchChunk((1, 5, 9), 0, (1,), samples=True)])).copy())
        executor.close()
        kv.close()
    np.testing.assert_array_equal(found[0], found[1])
    kv = KVCache(model.config, 4, 16, pool)
    expected = NumpyExecutor(graph, kv).run(StepBatch.pack([BatchChunk((1, 5, 9), 0, (1,), samples=True)]))
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    kv.close()
    model.close()
