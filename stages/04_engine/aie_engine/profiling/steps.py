"""Profiled steps of a model: a prompt, or a batch of sequences that decode, on the executor that serves.

The executor is built once, with a clock at every operator; then each kind of step runs for some time. What is told of
an operator, and of the step, is its mean over the faster half of the runs: whatever else the machine did lengthens the
slower ones, and means of the same runs add up, as medians of each operator would not. Nothing else should run
meanwhile.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean

from aie_engine.batch import BatchChunk, StepBatch
from aie_engine.executors.native_executor import NativeExecutor
from aie_engine.kv_cache import KVCache, kv_bytes_per_token
from aie_engine.profiling.costs import Cost, StepShape, node_cost
from aie_loader import Graph, Model, Precision, WeightConverter, fuse
from aie_tensor import InvalidInputError, MemoryPool
from aie_tensor.native import NativeLibrary, OpTime
from aie_tensor.ops import Activations, KVDtype

__all__ = ["OpProfile", "Peaks", "StepProfile", "StepProfiler", "measure_peaks"]

_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Peaks:
    """What this machine can do, measured."""

    flops: float  # fp32 operations per second, a multiply-add counting as two
    read: float  # bytes per second from memory, over as many as the weights have


@dataclass(frozen=True, slots=True)
class OpProfile:
    """All operators of one kind in one step."""

    name: str
    calls: int
    seconds: float
    cost: Cost

    def roofline_share(self, peaks: Peaks) -> float | None:
        """The time that the machine would need at its best, over the time it took; None where nothing is counted."""
        least_s = self.cost.least_s(peaks.flops, peaks.read)
        return least_s / self.seconds if least_s and self.seconds else None


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One kind of step."""

    name: str
    shape: StepShape
    runs: int
    seconds: float  # of the whole step, call included
    ops: tuple[OpProfile, ...]  # longest first
    last: tuple[tuple[str, OpTime], ...]  # the last run, operator by operator, for a trace

    @property
    def cost(self) -> Cost:
        """Of the step."""
        return sum((op.cost for op in self.ops), Cost())


def measure_peaks(lib: NativeLibrary, num_threads: int, weight_bytes: int) -> Peaks:
    """Takes about a second. Weights smaller than the caches are read from there, as in a step."""
    return Peaks(lib.peak_flops(num_threads), lib.peak_read(num_threads, max(weight_bytes, 1 << 20)))


class StepProfiler:
    """A model that generates text, ready for steps of up to `max_tokens` tokens and `max_sequences` sequences of up to
    `max_context` tokens. Raises `UnsupportedOpError` for a graph without native kernels, and `OutOfMemoryError`."""

    def __init__(
        self,
        model: Model,
        lib: NativeLibrary,
        *,
        num_threads: int,
        max_tokens: int,
        max_sequences: int,
        max_context: int,
        precision: Precision | None = None,
        kv_dtype: KVDtype = "fp32",
        activations: Activations = "fp32",
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        longest = model.config.max_position_embeddings
        if max_context > longest:
            raise InvalidInputError(
                f"a step with {max_context} tokens of context is longer than the model's {longest}", param="context"
            )
        self._graph: Graph = fuse(model.graph)
        self._per_sequence = -(-max_context // _BLOCK_TOKENS)
        self._kv_bytes = kv_bytes_per_token(model.config, kv_dtype) // model.config.num_layers
        converter = None if precision is None else WeightConverter(self._graph, precision, note=report)
        with ExitStack() as cleanup:
            pool = MemoryPool(name="profile")
            cleanup.callback(pool.trim)
            kv = KVCache(model.config, self._per_sequence * max_sequences, _BLOCK_TOKENS, pool, kv_dtype)
            cleanup.callback(kv.close)
            self._executor = NativeExecutor(
                self._graph, kv, lib, num_threads=num_threads, max_tokens=max_tokens, max_rows=max_sequences,
                max_context=max_context, pool=pool, converter=converter, activations=activations, profile=True,
            )  # fmt: skip
            cleanup.callback(self._executor.close)
            self._cleanup = cleanup.pop_all()

    @property
    def weight_bytes(self) -> int:
        """Of the packed weights."""
        return sum(self._executor.packed_bytes.values())

    def prompt(self, num_tokens: int, seconds: float) -> StepProfile:
        """One prompt, nothing before it."""
        return self._profile(f"prompt of {num_tokens}", [(num_tokens, 0)], seconds)

    def decode(self, batch: int, context: int, seconds: float) -> StepProfile:
        """`batch` sequences that decode a token each, `context` tokens behind them."""
        return self._profile(f"decode, batch {batch}", [(1, context)] * batch, seconds)

    def close(self) -> None:
        """Give everything back."""
        self._cleanup.close()

    def _profile(self, name: str, sequences: list[tuple[int, int]], seconds: float) -> StepProfile:
        batch = self._batch(sequences)
        self._executor.run(batch)  # touches the cache's pages; not to be counted
        took: list[float] = []
        spent: list[list[int]] = []
        end = time.perf_counter() + seconds
        while len(took) < 3 or time.perf_counter() < end:
            began = time.perf_counter()
            self._executor.run(batch)
            took.append(time.perf_counter() - began)
            timed = self._executor.profile_nodes()
            spent.append([one.last_ns for _, one in timed])
        shape = StepShape(tuple(sequences), len(sequences), kv_bytes=self._kv_bytes)
        fast = sorted(range(len(took)), key=took.__getitem__)[: (len(took) + 1) // 2]
        means = [fmean(times) * 1e-9 for times in zip(*(spent[run] for run in fast), strict=True)]
        whole = fmean(took[run] for run in fast)
        return StepProfile(name, shape, len(took), whole, self._by_kind(timed, means, shape), tuple(timed))

    def _batch(self, sequences: list[tuple[int, int]]) -> StepBatch:
        chunks = []
        for number, (new, old) in enumerate(sequences):
            blocks = range(number * self._per_sequence, (number + 1) * self._per_sequence)
            chunks.append(BatchChunk(range(1, new + 1), old, tuple(blocks), samples=True))
        return StepBatch.pack(chunks)

    def _by_kind(self, timed: list[tuple[str, OpTime]], spent: list[float], shape: StepShape) -> tuple[OpProfile, ...]:
        nodes = {node.name: node for node in self._graph.nodes}
        packed = self._executor.packed_bytes
        kinds: dict[str, OpProfile] = {}
        seen: set[str] = set()
        for (origin, one), seconds in zip(timed, spent, strict=True):
            cost = Cost()
            if origin in nodes and origin not in seen:  # a node may be several operators; its cost counts once
                seen.add(origin)
                cost = node_cost(nodes[origin], self._graph, shape, lambda name, w: packed.get(name, w.nbytes))
            known = kinds.get(one.name, OpProfile(one.name, 0, 0.0, Cost()))
            kinds[one.name] = OpProfile(one.name, known.calls + 1, known.seconds + seconds, known.cost + cost)
        return tuple(sorted(kinds.values(), key=lambda kind: -kind.seconds))
