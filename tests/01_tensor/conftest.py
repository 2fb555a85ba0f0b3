"""Fixtures for the native kernels: the compiled library, and a bench on which a few operators are run by themselves."""

import numpy as np
import pytest

from aie_tensor import NativeUnavailableError, native, ops


@pytest.fixture(scope="session")
def native_lib():
    """The kernels for this CPU; skips where they cannot be built."""
    try:
        return native.load()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


class Bench:
    """A plan builder with its own buffers and a small KV cache [P, L, G, A, D]."""

    def __init__(
        self, lib, max_tokens=8, num_threads=2, kv_shape=(1, 1, 1, 16, 16), max_context=16, kv_dtype="fp32", **options
    ):
        self.lib, self.max_tokens, self.alive, self.plan = lib, max_tokens, [], None
        # NaN in the cache: whatever reads a slot that was never written shows it
        blank, dtype = (111 if kv_dtype == "int8" else np.nan), ops.KV_DTYPES[kv_dtype]
        slabs = [np.full(kv_shape, blank, dtype) for _ in range(2)]
        if kv_dtype == "int8":
            slabs += [np.full(kv_shape[:-1], np.nan, np.float32) for _ in range(2)]
        self.kv = native.KVLayout(*slabs)
        self.builder = native.PlanBuilder(
            lib, num_threads=num_threads, max_tokens=max_tokens, kv=self.kv, max_context=max_context, **options
        )

    def buffer(self, values=None, width=None):
        """A buffer [max_tokens, width], filled with `values` [., width] or NaN."""
        array = np.full((self.max_tokens, values.shape[1] if width is None else width), np.nan, np.float32)
        if values is not None:
            array[: len(values)] = values
        self.alive.append(array)
        return native.Buffer(array.ctypes.data, array.shape[1])

    def array(self, buffer):
        return next(a for a in self.alive if a.ctypes.data == buffer.address)

    def read(self, buffer, num_rows):
        return self.array(buffer)[:num_rows].copy()

    def run(self, chunks, tables=None, token_ids=None, logit_rows=None):
        """chunks: (first position, number of tokens) of each sequence; tables: its cache blocks."""
        counts = [count for _, count in chunks]
        positions = np.concatenate([np.arange(start, start + count) for start, count in chunks])
        total = len(positions)
        step = native.StepArrays(
            token_ids=np.asarray(np.zeros(total) if token_ids is None else token_ids, np.int32),
            positions=positions.astype(np.int32),
            seq_starts=np.cumsum([0, *counts], dtype=np.int32),
            context_lens=np.array([start + count for start, count in chunks], np.int32),
            block_tables=np.asarray(np.zeros((len(chunks), 1)) if tables is None else tables, np.int32),
            logit_rows=np.asarray([total - 1] if logit_rows is None else logit_rows, np.int32),
        )
        if self.plan is None:
            self.plan = self.builder.build()
        self.plan.run(step)

    def run_tokens(self, num_tokens):
        """A step in which only the number of tokens matters: one-token sequences."""
        self.run([(0, 1)] * num_tokens)


@pytest.fixture
def bench(native_lib):
    """Makes benches, and closes their plans after the test."""
    made = []

    def make(lib=None, **options):
        made.append(Bench(lib or native_lib, **options))
        return made[-1]

    yield make
    for each in made:
        if each.plan is not None:
            each.plan.close()
