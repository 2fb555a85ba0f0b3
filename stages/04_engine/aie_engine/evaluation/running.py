"""A model in one precision, run over given tokens: the same executors that serve, without scheduler and sampling."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter

import numpy as np
import numpy.typing as npt

from aie_engine.batch import BatchChunk, StepBatch
from aie_engine.config import KernelChoice
from aie_engine.errors import UnsupportedOpError
from aie_engine.executors import Executor, KernelKind, NativeExecutor, NumpyExecutor
from aie_engine.kv_cache import KVCache
from aie_loader import Graph, Model, Precision, WeightConverter, fuse
from aie_tensor import MemoryPool, NativeUnavailableError, native
from aie_tensor.ops import Activations, KVDtype

__all__ = ["TextRunner"]

_BLOCK_TOKENS = 16
_CHUNK = 64  # tokens whose logits are computed at once: 12 MB of them with a vocabulary of 49152


class TextRunner:
    """Weights in `precision` (None: as the file has them), and a cache for one sequence of up to `max_len` tokens.

    activations: as the products read them; int8 has native kernels only. report: takes lines for a person: what was
    left in F16, and why NumPy computes where native kernels were wished for.
    """

    def __init__(
        self,
        model: Model,
        precision: Precision | None,
        *,
        max_len: int,
        kernels: KernelChoice = "auto",
        num_threads: int = 1,
        activations: Activations = "fp32",
        kv_dtype: KVDtype = "fp32",
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        graph = fuse(model.graph)
        converter = None if precision is None else WeightConverter(graph, precision, note=report)
        self.weight_bytes = model.weight_bytes if converter is None else converter.nbytes
        with ExitStack() as cleanup:  # what was made so far, should the next thing fail
            pool = MemoryPool(name="evaluation")
            cleanup.callback(pool.trim)
            num_blocks = -(-max_len // _BLOCK_TOKENS) + 1
            kv = KVCache(model.config, num_blocks, _BLOCK_TOKENS, pool, kv_dtype)
            cleanup.callback(kv.close)
            self._executor = _executor(graph, converter, kv, pool, kernels, num_threads, max_len, activations, report)
            cleanup.callback(self._executor.close)
            self._table = tuple(range(num_blocks))
            self._cleanup = cleanup.pop_all()

    @property
    def kernels(self) -> KernelKind:
        return self._executor.kernels

    def logits(self, token_ids: Sequence[int]) -> Iterator[npt.NDArray[np.float32]]:
        """Logits [r, V] after each of `token_ids`, in order, in pieces; each is valid until the next is asked for."""
        start = 0
        for ids in self.pieces(token_ids):
            batch = StepBatch.pack([BatchChunk(ids, start, self._table, samples=True)])
            start += len(ids)
            yield self._executor.run(replace(batch, logit_rows=np.arange(len(ids), dtype=np.int32)))

    @staticmethod
    def pieces(token_ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """`token_ids` cut as `logits` cuts them."""
        for start in range(0, len(token_ids), _CHUNK):
            yield token_ids[start : start + _CHUNK]

    def decode_seconds(self, token_id: int, position: int) -> float:
        """How long one step of one sequence takes: one token at `position`, after whatever the cache holds there."""
        batch = StepBatch.pack([BatchChunk((token_id,), position, self._table, samples=True)])
        began = perf_counter()
        self._executor.run(batch)
        return perf_counter() - began

    def close(self) -> None:
        """Give everything back."""
        self._cleanup.close()


def _executor(
    graph: Graph,
    converter: WeightConverter | None,
    kv: KVCache,
    pool: MemoryPool,
    kernels: KernelChoice,
    num_threads: int,
    max_len: int,
    activations: Activations,
    report: Callable[[str], None],
) -> Executor:
    if kernels != "numpy":
        try:
            return NativeExecutor(
                graph,
                kv,
                native.load(report=report),
                num_threads=num_threads,
                max_tokens=_CHUNK,
                max_rows=_CHUNK,
                max_context=max_len,
                pool=pool,
                converter=converter,
                activations=activations,
            )
        except (NativeUnavailableError, UnsupportedOpError) as error:
            if kernels == "native" or activations != "fp32":
                raise
            report(f"Running on NumPy, many times slower than native kernels. {error}")
    return NumpyExecutor(graph, kv, pool=pool, converter=converter)
