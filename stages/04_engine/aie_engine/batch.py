"""One step's work as flat arrays: what the engine loop hands to an executor.

Sequences are packed one after another, without padding: a prompt chunk of 200 tokens and thirty decodes of one token
are one batch of 230 tokens. Which tokens belong together is said by `seq_starts`, where their keys and values live by
`block_tables`, and for which of them logits are wanted by `logit_rows`: a chunk that does not reach the end of its
prompt samples nothing, and with a vocabulary of 49152 its logits would cost as much as several layers. A chunk at whose
end guesses stand wants a row for each of them.

Axes: T tokens in the step, S sequences, R rows whose logits are wanted, A tokens per KV block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BatchChunk", "Int32Array", "StepBatch"]

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BatchChunk:
    """The part of one sequence that a step computes."""

    token_ids: Sequence[int]  # only the tokens of this chunk
    start: int  # position of the first of them; everything before it is already in the KV cache
    block_table: Sequence[int]  # KV blocks of the sequence, at least enough for start + len(token_ids) tokens
    samples: bool  # whether the logits of the last token are wanted
    num_drafts: int = 0  # and those of so many tokens before it: the last tokens are guesses to be checked


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The packed chunks of one step; every array is int32 and C-contiguous."""

    token_ids: Int32Array  # [T]
    positions: Int32Array  # [T] position of each token in its own sequence
    seq_starts: Int32Array  # [S+1] tokens seq_starts[s]:seq_starts[s+1] belong to sequence s
    context_lens: Int32Array  # [S] tokens in the KV cache once this step's are stored
    block_tables: Int32Array  # [S, max_blocks] padded with block 0, which is never read beyond context_lens
    logit_rows: Int32Array  # [R] indices into T, in the order of the chunks that sample

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.context_lens)

    @property
    def num_rows(self) -> int:
        return len(self.logit_rows)

    @staticmethod
    def pack(chunks: Sequence[BatchChunk]) -> "StepBatch":
        """Lay the chunks out one after another. There is always at least one, and none is empty."""
        lengths = [len(chunk.token_ids) for chunk in chunks]
        assert lengths and min(lengths) > 0, f"a step without work: chunk lengths {lengths}"
        starts = np.zeros(len(chunks) + 1, dtype=np.int32)
        np.cumsum(lengths, out=starts[1:])
        tables = np.zeros((len(chunks), max(len(chunk.block_table) for chunk in chunks)), dtype=np.int32)
        for row, chunk in zip(tables, chunks, strict=True):
            row[: len(chunk.block_table)] = chunk.block_table
        return StepBatch(
            token_ids=np.concatenate([np.asarray(chunk.token_ids, dtype=np.int32) for chunk in chunks]),
            positions=np.concatenate(
                [np.arange(c.start, c.start + n, dtype=np.int32) for c, n in zip(chunks, lengths, strict=True)]
            ),
            seq_starts=starts,
            context_lens=np.array([c.start + n for c, n in zip(chunks, lengths, strict=True)], dtype=np.int32),
            block_tables=tables,
            logit_rows=np.array(
                [
                    row
                    for chunk, end in zip(chunks, starts[1:], strict=True)
                    for row in range(end - 1 - chunk.num_drafts, end)
                    if chunk.samples
                ],
                dtype=np.int32,
            ),
        )
