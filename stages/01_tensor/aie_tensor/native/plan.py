"""A plan: a model's operators as a flat array that one native call walks, with its own threads.

A call into C from Python costs tens of microseconds, an operator of a small model at batch 1 about ten. So the whole
step is one call. `PlanBuilder` appends operators and keeps alive whatever they point to; `Plan.run` hands over a step's
index arrays. C checks nothing: every shape, index and length is checked here, before it is called.

Axes: T tokens of a step (all sequences one after another), S sequences, R rows whose logits are wanted, B items of a
batch, P blocks of the KV cache, A positions per block.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aie_tensor.errors import OutOfMemoryError
from aie_tensor.native.appending import Buffer, KVLayout
from aie_tensor.native.attention_operators import AttentionOperators
from aie_tensor.native.dense_operators import DenseOperators
from aie_tensor.native.library import NativeLibrary, pointer
from aie_tensor.native.row_operators import RowOperators
from aie_tensor.native.step import Limits, StatelessArrays, StepArrays
from aie_tensor.native.structs import OP_NAMES, OpC, PlanSpecC, StepC

__all__ = ["Buffer", "KVLayout", "OpTime", "Plan", "PlanBuilder"]


@dataclass
class PlanBuilder(RowOperators, AttentionOperators, DenseOperators):
    """Appends operators one by one; `build` makes the plan. Buffers may be reused between operators by the caller."""

    def build(self) -> "Plan":
        """The plan, with its threads started. Raises OutOfMemoryError when the machine refuses memory or threads."""
        partials = self._partial_sums()
        cache = (0, 0, 0, 1, 0) if self.kv is None else self.kv.k.shape
        kv_format, arrays = (0, (None,) * 4) if self.kv is None else (self.kv.format, self.kv.arrays)
        ops = (OpC * len(self._ops))(*self._ops)
        spec = PlanSpecC(
            len(self._ops), self.num_threads, self._max_rows, int(self.profile),
            *cache, self._max_group, self._max_head_dim, kv_format, ctypes.addressof(ops),
            *(0 if array is None else pointer(array) for array in (*arrays, partials)),
            0 if partials is None else partials.size,
        )  # fmt: skip
        handle = self.lib.c.aie_plan_create(ctypes.byref(spec))
        if not handle:
            raise OutOfMemoryError(f"The machine refuses memory or threads for a plan with {self.num_threads} threads.")
        num_blocks, _, _, block_size, _ = cache
        limits = Limits(
            self.max_tokens, self.max_context, num_blocks, block_size, self.max_items, dict(self._index_sizes)
        )
        alive = [self.kv, partials, *self._alive, *self._tables.values()]
        scratch_bytes = int(self.lib.c.aie_plan_scratch_bytes(ctypes.byref(spec)))
        names = [OP_NAMES[op.kind] for op in self._ops]
        return Plan(self.lib, handle, limits, alive, scratch_bytes, names, self.profile)


@dataclass(frozen=True, slots=True)
class OpTime:
    """One operator of a profiled plan; thread 0's time, waiting for the others included."""

    name: str  # its kind
    total_ns: int  # of all runs
    last_begin_ns: int  # in the last run, on CLOCK_MONOTONIC
    last_ns: int


class Plan:
    """A built plan. One step at a time; `close` (or leaving the `with`) joins its threads and frees its memory."""

    def __init__(
        self,
        lib: NativeLibrary,
        handle: int,
        limits: Limits,
        alive: list[object],
        scratch_bytes: int,
        names: Sequence[str],
        is_profiled: bool,
    ) -> None:
        self.scratch_bytes = scratch_bytes  # of all threads together, from C's own allocator
        self._lib, self._handle, self._limits, self._alive = lib, handle, limits, alive
        self._names, self._is_profiled, self._num_runs = names, is_profiled, 0

    def run(self, step: StepArrays | StatelessArrays) -> None:
        """Run every operator for this step. Not to be called by two threads at once."""
        assert self._handle, "the plan is closed"
        if isinstance(step, StepArrays):
            self._limits.check(step)
            structure = StepC(
                num_tokens=len(step.token_ids), num_sequences=len(step.context_lens),
                num_logit_rows=len(step.logit_rows), max_blocks=step.block_tables.shape[1],
                token_ids=pointer(step.token_ids), positions=pointer(step.positions),
                seq_starts=pointer(step.seq_starts), context_lens=pointer(step.context_lens),
                block_tables=pointer(step.block_tables), logit_rows=pointer(step.logit_rows),
            )  # fmt: skip
        else:
            self._limits.check_stateless(step)
            structure = StepC(
                num_tokens=step.num_tokens, num_sequences=len(step.seq_starts) - 1, num_items=step.num_items,
                seq_starts=pointer(step.seq_starts), **{name: pointer(array) for name, array in step.indices.items()},
            )  # fmt: skip
        self._num_runs += 1
        self._lib.c.aie_plan_run(self._handle, ctypes.byref(structure))

    def profile(self) -> list[tuple[str, int, int]]:
        """[(operator, nanoseconds, calls)] since the build, longest first; empty unless built with profile=True."""
        spent: dict[str, tuple[int, int]] = {}
        for timed in self.profile_ops():
            ns, calls = spent.get(timed.name, (0, 0))
            spent[timed.name] = (ns + timed.total_ns, calls + self._num_runs)
        return sorted(((name, ns, calls) for name, (ns, calls) in spent.items()), key=lambda row: -row[1])

    def profile_ops(self) -> list[OpTime]:
        """Every operator in the order in which they run; empty before the first run, and unless built with profile."""
        assert self._handle, "the plan is closed"
        if not self._is_profiled or not self._num_runs:
            return []
        ns, ends = (np.zeros(len(self._names), np.int64) for _ in range(2))
        begin = int(self._lib.c.aie_plan_profile(self._handle, pointer(ns), pointer(ends)))
        timed = []
        for name, total, end in zip(self._names, ns.tolist(), ends.tolist(), strict=True):
            timed.append(OpTime(name, total, begin, end - begin))
            begin = end
        return timed

    def close(self) -> None:
        """Join the threads and free the memory; again is harmless."""
        if self._handle:
            self._lib.c.aie_plan_free(self._handle)
            self._handle = 0
            self._alive.clear()

    def __enter__(self) -> "Plan":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
