"""From a step plan to the flat arrays of a `StepBatch`, without making new arrays at every step.

At 32 requests `StepBatch.pack` makes some hundred small arrays per step. Here everything is written into arrays made
once, and a block table, which is the widest of them, only grows at its end: a row is rewritten when another sequence
takes it and otherwise extended by the blocks that were added since the last step. (`pack` stays: it is the plain
version that this one is tested against.)

Axes: T tokens in the step, S sequences, R rows whose logits are wanted, A tokens per KV block.
"""

from collections.abc import Sequence

import numpy as np

from aie_engine.batch import Int32Array, StepBatch
from aie_scheduler import ScheduledChunk
from aie_tensor import MemoryPool

__all__ = ["BatchAssembler"]


class BatchAssembler:
    """The batch returned by `assemble` is made of views that the next call overwrites."""

    def __init__(
        self,
        *,
        max_batch_size: int,
        max_batch_tokens: int,
        max_seq_len: int,
        block_size: int,
        pool: MemoryPool | None = None,
    ) -> None:
        max_blocks = -(-max_seq_len // block_size)
        sizes = (
            max_batch_tokens, max_batch_tokens, max_batch_size + 1, max_batch_size, max_batch_size * max_blocks,
            max_batch_tokens, max_seq_len,
        )  # fmt: skip
        self._memory = (pool or MemoryPool()).allocate_exact(4 * sum(sizes), owner="step arrays")
        pieces = np.split(self._memory.array(np.int32, sum(sizes)), np.cumsum(sizes)[:-1])
        self._token_ids, self._positions, self._seq_starts, self._context_lens, tables, rows, self._count = pieces
        self._block_tables = tables.reshape(max_batch_size, max_blocks)
        self._logit_rows = rows
        self._count[:] = np.arange(max_seq_len)
        # Which table each row holds, and how much of it. The scheduler starts a new list when a sequence loses its
        # blocks, and the reference kept here makes sure that no other list can have the same identity.
        self._held: list[list[int] | None] = [None] * max_batch_size
        self._held_len = [0] * max_batch_size

    def assemble(self, chunks: Sequence[ScheduledChunk], tokens: Sequence[Int32Array]) -> StepBatch:
        """tokens[s]: all known tokens of the sequence of chunks[s], then its guesses; the chunk is a part of them."""
        t = rows = 0
        token_ids, positions = self._token_ids, self._positions
        for s, (chunk, known) in enumerate(zip(chunks, tokens, strict=True)):
            start, n = chunk.start, chunk.num_tokens
            if n == 1:  # a decode: storing one number costs less than slicing two arrays
                token_ids[t], positions[t] = known[start], start
            else:
                token_ids[t : t + n] = known[start : start + n]
                positions[t : t + n] = self._count[start : start + n]
            t += n
            self._seq_starts[s + 1] = t
            self._context_lens[s] = start + n
            self._fill_table(s, chunk.block_table)
            if chunk.samples:  # the last known token's row, and those of the guesses behind it
                for row in range(t - 1 - chunk.num_drafts, t):
                    self._logit_rows[rows] = row
                    rows += 1
        num = len(chunks)
        return StepBatch(
            token_ids[:t],
            positions[:t],
            self._seq_starts[: num + 1],
            self._context_lens[:num],
            self._block_tables[:num],
            self._logit_rows[:rows],
        )

    def close(self) -> None:
        """Give the arrays' memory back. Batches made earlier must not be read afterwards."""
        empty = np.empty(0, np.int32)
        self._token_ids = self._positions = self._seq_starts = self._context_lens = self._logit_rows = empty
        self._count, self._block_tables = empty, empty.reshape(0, 0)
        self._held.clear()
        self._memory.release()

    def _fill_table(self, row: int, table: list[int]) -> None:
        num = len(table)
        held = self._held_len[row] if self._held[row] is table else 0
        if num != held:
            self._block_tables[row, held:num] = table[held:]
            self._held[row], self._held_len[row] = table, num
