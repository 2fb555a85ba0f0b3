"""One step's arrays, and what must hold of them before C may see them.

Axes: T tokens of a step (all sequences one after another), S sequences, R rows whose logits are wanted, A positions per
block of the KV cache.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["Limits", "StatelessArrays", "StepArrays"]

I32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class StepArrays:
    """What one step computes. All int32 and C-contiguous.

    Position p of sequence s lives in cache block block_tables[s][p // A] at offset p % A.
    """

    token_ids: I32Array  # [T]
    positions: I32Array  # [T] consecutive within a sequence, ending at its context_len - 1
    seq_starts: I32Array  # [S + 1] where each sequence's tokens begin; the last entry is T
    context_lens: I32Array  # [S] positions in the cache, this step's tokens included
    block_tables: I32Array  # [S, max_blocks]; entries beyond the context are not read
    logit_rows: I32Array  # [R] indices of tokens


@dataclass(frozen=True, slots=True, eq=False)
class StatelessArrays:
    """What one run without a cache computes: packed sequences, or the items of a batch, or both.

    indices: "token_ids", "positions", "token_types", those that the plan looks up, each int32 [T].
    """

    seq_starts: I32Array  # [S + 1] where each sequence's tokens begin; the last entry is T
    indices: Mapping[str, I32Array] = field(default_factory=dict)
    num_items: int = 0

    @property
    def num_tokens(self) -> int:
        return int(self.seq_starts[-1])


@dataclass(slots=True)
class Limits:
    """What the operators of a plan can take; a step is checked against it."""

    max_tokens: int
    max_context: int
    num_blocks: int
    block_size: int
    max_items: int = 1
    index_sizes: Mapping[str, int] = field(default_factory=dict)  # rows of the table that each index looks into

    def check(self, step: StepArrays) -> None:
        """AssertionError, with the values, for a step that would make C read or write out of bounds."""
        for name in ("token_ids", "positions", "seq_starts", "context_lens", "block_tables", "logit_rows"):
            array = getattr(step, name)
            assert array.dtype == np.int32 and array.flags.c_contiguous, (name, array.dtype, array.strides)
        num_tokens, num_sequences = len(step.token_ids), len(step.context_lens)
        assert 0 < num_tokens <= self.max_tokens, (num_tokens, self.max_tokens)
        self._check_index("token_ids", step.token_ids)
        self._check_index("positions", step.positions)
        assert "token_types" not in self.index_sizes, "a step of generation has no token types"
        assert step.positions.shape == (num_tokens,), (step.positions.shape, num_tokens)
        counts = np.diff(step.seq_starts)
        assert counts.shape == (num_sequences,) and step.seq_starts[0] == 0, (step.seq_starts, num_sequences)
        assert step.seq_starts[-1] == num_tokens and (counts > 0).all(), (step.seq_starts, num_tokens)
        starts = step.context_lens - counts
        assert starts.min() >= 0 and step.context_lens.max() <= self.max_context, (step.context_lens, self.max_context)
        expected = np.arange(num_tokens, dtype=np.int32) + np.repeat(starts - step.seq_starts[:-1], counts)
        assert (step.positions == expected).all(), (step.positions, expected)
        assert step.block_tables.ndim == 2 and len(step.block_tables) == num_sequences, step.block_tables.shape
        needed = -(-step.context_lens // self.block_size)
        assert needed.max() <= step.block_tables.shape[1], (step.context_lens, step.block_tables.shape)
        used = step.block_tables[np.arange(step.block_tables.shape[1]) < needed[:, None]]
        assert used.min() >= 0 and used.max() < self.num_blocks, (used, self.num_blocks)
        rows = step.logit_rows
        assert rows.ndim == 1 and len(rows) <= self.max_tokens, rows.shape
        assert not len(rows) or (rows.min() >= 0 and rows.max() < num_tokens), (rows, num_tokens)

    def check_stateless(self, step: StatelessArrays) -> None:
        """AssertionError, with the values, for a run that would make C read or write out of bounds."""
        starts = step.seq_starts
        assert starts.dtype == np.int32 and starts.flags.c_contiguous and starts.ndim == 1, starts
        assert starts[0] == 0 and (np.diff(starts) > 0).all() and starts[-1] <= self.max_tokens, (
            starts,
            self.max_tokens,
        )
        assert 0 <= step.num_items <= self.max_items, (step.num_items, self.max_items)
        assert set(self.index_sizes) <= set(step.indices), (self.index_sizes, list(step.indices))
        for name, array in step.indices.items():
            assert array.dtype == np.int32 and array.flags.c_contiguous, (name, array.dtype, array.strides)
            assert array.shape == (step.num_tokens,), (name, array.shape, step.num_tokens)
            self._check_index(name, array)

    def _check_index(self, name: str, array: I32Array) -> None:
        size = self.index_sizes.get(name, 2**31 - 1)
        assert not len(array) or (array.min() >= 0 and array.max() < size), (name, array, size)
