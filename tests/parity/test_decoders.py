"""Every decoder family against the reference library: the same made-up weights, the same logits.

The golden files come from `make_golden.py`. The graph is run whole, in chunks and token by token: all must agree.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_engine.batch import BatchChunk, StepBatch
from aie_engine.executors import Executor, NativeExecutor, NumpyExecutor
from aie_engine.kv_cache import KVCache
from aie_loader import fuse
from aie_loader.architectures import architecture_of_json
from aie_loader.graph import Graph
from aie_tensor import Matrix, MemoryPool, NativeUnavailableError, native

sys.path.insert(0, str(Path(__file__).parent))
from made_up import made_up

GOLDEN = sorted((Path(__file__).parent.parent / "golden" / "parity").glob("*.json"))
A = 4  # tokens per block


def load(path: Path) -> tuple[dict[str, Any], Any, Graph]:
    record = json.loads(path.read_text())
    tensors = {name: Matrix.from_array(made_up(name, tuple(shape))) for name, shape in record["tensors"].items()}
    architecture = architecture_of_json(record["config"], path.name)
    config = architecture.from_json(record["config"], None, path.name)
    config, graph = architecture.build(config, tensors, path.name, is_gguf=False)
    return record, config, graph


def logits(
    config: Any, graph: Graph, ids: list[int], chunk_lens: list[int], lib: native.NativeLibrary | None = None,
    block_size: int = A, num_threads: int = 2,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """Logits of every position, the prompt given in chunks; only a chunk's last row comes from each run.

    lib: run on these kernels instead of NumPy.
    """
    pool = MemoryPool()
    kv = KVCache(config, -(-len(ids) // block_size) + 1, block_size, pool)
    executor: Executor = NumpyExecutor(graph, kv)
    if lib is not None:
        limits = {"max_tokens": len(ids), "max_rows": 1, "max_context": len(ids)}
        executor = NativeExecutor(graph, kv, lib, num_threads=num_threads, pool=pool, **limits)
    rows, start = {}, 0
    for length in chunk_lens:
        table = tuple(range(1, kv.blocks_for(start + length) + 1))
        batch = StepBatch.pack([BatchChunk(tuple(ids[start : start + length]), start, table, samples=True)])
        start += length
        rows[start - 1] = np.array(executor.run(batch)[0])
    executor.close()
    kv.close()
    return np.stack([rows[index] for index in sorted(rows)])


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_logits_equal_the_reference(path: Path) -> None:
    record, config, graph = load(path)
    expected, ids = np.array(record["logits"], dtype=np.float32), record["ids"]
    bound = 1e-4 * np.abs(expected).max()
    one_by_one = logits(config, graph, ids, [1] * len(ids))
    np.testing.assert_allclose(one_by_one, expected, rtol=1e-4, atol=bound)
    assert (one_by_one.argmax(1) == expected.argmax(1)).all()
    for form in (graph, fuse(graph)):
        for chunks in ([len(ids)], [7, 1, 9, 3]):
            ends = np.cumsum(chunks) - 1
            np.testing.assert_allclose(logits(config, form, ids, chunks), expected[ends], rtol=1e-4, atol=bound)


@pytest.mark.native
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_native_logits_equal_the_reference_and_depend_on_nothing_else(path: Path) -> None:
    try:
        lib = native.load()
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    record, config, graph = load(path)
    expected, ids = np.array(record["logits"], dtype=np.float32), record["ids"]
    bound = 1e-4 * np.abs(expected).max()
    for form in (graph, fuse(graph)):
        one_by_one = logits(config, form, ids, [1] * len(ids), lib)
        np.testing.assert_allclose(one_by_one, expected, rtol=1e-4, atol=bound)
        assert (one_by_one.argmax(1) == expected.argmax(1)).all()
        for chunks, block_size, num_threads in (([len(ids)], A, 1), ([7, 1, 9, 3], A, 3), ([7, 1, 9, 3], 16, 2)):
            found = logits(config, form, ids, chunks, lib, block_size, num_threads)
            np.testing.assert_array_equal(found, one_by_one[np.cumsum(chunks) - 1])


def test_the_golden_files_cover_every_family() -> None:
    from aie_loader.architectures import ARCHITECTURES

    covered = {load(path)[1].architecture for path in GOLDEN}
    assert covered == set(ARCHITECTURES)
