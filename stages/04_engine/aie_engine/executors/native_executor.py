"""The fast executor: the fused graph as a flat plan of C kernels, and a step as one native call.

A step of SmolLM2 has over two hundred operators. Calling a library for each from Python costs tens of microseconds, and
in sum as much as the arithmetic of a decode step. So the graph is walked once, at load: every value gets its place in
an arena (by the loader's `liveness.py`), every node becomes one entry of a plan (`lowering.py`), and `run` hands over
six small arrays.

Axes: T tokens in the step, R rows whose logits are wanted, V vocabulary.
"""

from contextlib import ExitStack

import numpy as np

from aie_engine.batch import Int32Array, StepBatch
from aie_engine.executors.lowering import Lowering
from aie_engine.executors.protocol import Float32Array, KernelKind
from aie_engine.kv_cache import KVCache
from aie_loader import Graph, WeightConverter, lifetimes, plan_memory
from aie_tensor import MemoryPool
from aie_tensor.native import Buffer, Constants, KVLayout, NativeLibrary, OpTime, PlanBuilder, StepArrays
from aie_tensor.ops import Activations

__all__ = ["NativeExecutor"]


class NativeExecutor:
    """Runs a fused `graph` with keys and values in `kv`, on `num_threads` threads of its own.

    max_tokens, max_rows: the largest T and R of a step; max_context: the longest sequence, prompt and answer together;
    converter: puts the weights into another precision as they are packed; activations: as products read them.
    Raises `UnsupportedOpError` for a node that has no kernel, or a constant that its kernel does not know. The cache is
    laid out as the kernels like it: a sequence that one executor has begun, the other cannot continue.
    """

    kernels: KernelKind = "native"

    def __init__(
        self,
        graph: Graph,
        kv: KVCache,
        lib: NativeLibrary,
        *,
        num_threads: int,
        max_tokens: int,
        max_rows: int,
        max_context: int,
        pool: MemoryPool,
        converter: WeightConverter | None = None,
        activations: Activations = "fp32",
        profile: bool = False,
    ) -> None:
        self._lib = lib
        self._max_tokens, self._max_rows = max_tokens, max_rows
        self._shapes = graph.shapes
        nodes = graph.sorted()
        self.memory = plan_memory(lifetimes(nodes, graph.outputs, self._nbytes))
        with ExitStack() as cleanup:  # what was taken so far, should the next thing fail
            self._arena = pool.allocate_exact(self.memory.total_bytes, owner="activations")
            cleanup.callback(self._arena.release)
            constants = Constants(pool)
            cleanup.callback(constants.close)
            builder = PlanBuilder(
                lib,
                num_threads=num_threads,
                max_tokens=max_tokens,
                kv=KVLayout(kv.k, kv.v, kv.k_scales, kv.v_scales),
                max_context=max_context,
                constants=constants,
                profile=profile,
            )
            lowering = Lowering(graph, builder, self._buffer, converter, activations=activations)
            lowering.append(nodes)
            self.expanded = lowering.expanded
            """Bytes of float32 that weights of a type without a kernel take, by that type."""
            self.origins, self.packed_bytes = lowering.origins, lowering.packed_bytes()
            # Everybody asks for it, and the logits are hot.
            self._best = constants.allocate(max_rows * 4, "likeliest tokens").view(np.int32)
            builder.argmax(self._buffer(graph.outputs[-1]), Buffer(self._best.ctypes.data, 1), "logits")
            self.origins.append("argmax")
            constants.settle()
            self._plan = builder.build()
            cleanup.callback(self._plan.close)
            self._logits = self._view(graph.outputs[-1])
            self._logits.flags.writeable = False  # whoever wrote into them would not change what is known of them
            # C takes it from its own allocator; here it is only listed.
            cleanup.callback(pool.adopt(self._plan.scratch_bytes, owner="scratch of kernel threads").release)
            self._cleanup = cleanup.pop_all()

    def run(self, batch: StepBatch) -> Float32Array:
        """Logits [R, V] of `batch.logit_rows`, in the executor's own memory: valid until the next run."""
        assert batch.num_rows <= self._max_rows, f"{batch.num_rows} rows, but room for {self._max_rows}"
        self._plan.run(
            StepArrays(
                token_ids=batch.token_ids,
                positions=batch.positions,
                seq_starts=batch.seq_starts,
                context_lens=batch.context_lens,
                block_tables=batch.block_tables,
                logit_rows=batch.logit_rows,
            )
        )
        return self._logits[: batch.num_rows]

    def argmax_rows(self, logits: Float32Array) -> Int32Array:
        """Index of each row's first largest, or first NaN where there is one: [R, V] → [R].

        For rows of the last run that is known already.
        """
        row_bytes = self._logits.strides[0]
        first, rest = divmod(logits.ctypes.data - self._logits.ctypes.data, row_bytes)
        if rest == 0 and 0 <= first < self._max_rows and logits.strides[0] == row_bytes:
            return self._best[first : first + len(logits)].copy()
        return self._lib.argmax_rows(logits)

    def profile(self) -> list[tuple[str, int, int]]:
        """[(operator, nanoseconds, calls)] since the start, when built with `profile`."""
        return self._plan.profile()

    def profile_nodes(self) -> list[tuple[str, OpTime]]:
        """[(node, its time)] of every operator in the order in which they run, when built with `profile`."""
        return list(zip(self.origins, self._plan.profile_ops(), strict=False))

    def close(self) -> None:
        """Join the threads and give all memory back. Logits of earlier runs must not be read afterwards."""
        self._logits = np.empty((0, 0), dtype=np.float32)
        self._best = np.empty(0, dtype=np.int32)
        self._cleanup.close()

    def _num_rows(self, name: str) -> int:
        return self._max_rows if self._shapes[name][0] == "R" else self._max_tokens

    def _width(self, name: str) -> int:
        return int(self._shapes[name][1])

    def _nbytes(self, name: str) -> int:
        return self._num_rows(name) * self._width(name) * 4

    def _buffer(self, name: str) -> Buffer:
        return Buffer(self._arena.address + self.memory.offsets[name], self._width(name))

    def _view(self, name: str) -> Float32Array:
        begin = self.memory.offsets[name]
        arena = self._arena.array(np.uint8, (self.memory.total_bytes,))
        logits: Float32Array = arena[begin : begin + self._nbytes(name)].view(np.float32)
        return logits.reshape(self._num_rows(name), self._width(name))
