"""The numeric half of a step: the plan's chunks into a batch, through the model, and out of its rows into tokens.

Which rows of a step are wanted differs: a decode has one; a chunk with guesses one more for each of them; a prompt that
is only half read has none, unless its request wants each token of the prompt scored, which takes them all.

Axes: R rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from aie_engine.assembler import BatchAssembler
from aie_engine.batch import Int32Array, StepBatch
from aie_engine.executors.protocol import Executor, Float32Array
from aie_engine.generation import Generation
from aie_engine.sampling import SampleOutput, SampleRow, sample, score_prompt
from aie_scheduler import ScheduledChunk

__all__ = ["StepRunner"]

_NOTHING = SampleOutput([], [], frozenset())
_Wanted = tuple[Generation, int, int]  # whose prompt, row in the step, the token that comes behind it


class StepRunner:
    """max_rows: of which the executor computes logits at once. A step that wants more goes through it several times,
    which stores the same keys and values again."""

    def __init__(
        self, executor: Executor, assembler: BatchAssembler, *, max_rows: int, clock: Callable[[], float]
    ) -> None:
        self.execute_time_s = 0.0  # spent in the executor
        self._executor = executor
        self._assembler = assembler
        self._max_rows = max_rows
        self._clock = clock

    def run(self, chunks: Sequence[ScheduledChunk], members: Sequence[Generation]) -> SampleOutput:
        """A token for each row that samples: those of a chunk, the last known token's and its guesses', stand together,
        in the order of the chunks. members[s]: whose chunk chunks[s] is; scores of its prompt are left there."""
        for chunk, member in zip(chunks, members, strict=True):
            if chunk.samples and member.constraint is not None:
                member.look_ahead(chunk.num_drafts)
        batch = self._assembler.assemble(chunks, [member.tokens for member in members])
        wanted = _prompt_rows(chunks, members, batch)
        logits = self._score_prompts(batch, wanted) if wanted else self._execute(batch)
        rows = _sampling_rows(chunks, members)  # only now: masks are computed while the model runs
        return sample(logits, rows, argmax=self._argmax) if rows else _NOTHING

    def _execute(self, batch: StepBatch) -> Float32Array:
        began = self._clock()
        logits = self._executor.run(batch)
        self.execute_time_s += self._clock() - began
        return logits

    def _argmax(self, logits: Float32Array) -> Int32Array:
        began = self._clock()
        best = self._executor.argmax_rows(logits)
        self.execute_time_s += self._clock() - began
        return best

    def _score_prompts(self, batch: StepBatch, wanted: Sequence[_Wanted]) -> Float32Array:
        """Compute and score the rows `wanted`; returns logits [R, V] of those that sample."""
        sampling = batch.logit_rows.tolist()
        room = self._max_rows - len(sampling)
        for begin in range(0, len(wanted), room):
            part = wanted[begin : begin + room]
            is_last = begin + room >= len(wanted)
            rows = [row for _, row, _ in part] + (sampling if is_last else [])
            logits = self._execute(replace(batch, logit_rows=np.array(rows, np.int32)))
            for values, (member, _, target) in zip(logits[: len(part), None], part, strict=True):
                member.prompt_logprobs += score_prompt(values, [target], member.params.prompt_logprobs or 0)
        return logits[len(part) :]


def _sampling_rows(chunks: Sequence[ScheduledChunk], members: Sequence[Generation]) -> list[SampleRow]:
    rows: list[SampleRow] = []
    for chunk, member in zip(chunks, members, strict=True):
        if chunk.samples:
            if chunk.num_drafts or member.constraint is not None:
                rows += member.next_rows(chunk.num_drafts)
            else:
                rows.append(member.row)
    return rows


def _prompt_rows(chunks: Sequence[ScheduledChunk], members: Sequence[Generation], batch: StepBatch) -> list[_Wanted]:
    """Rows whose next token belongs to a prompt that is to be scored, and was not scored before a preemption."""
    wanted: list[_Wanted] = []
    for s, (chunk, member) in enumerate(zip(chunks, members, strict=True)):
        if member.num_to_score == 0:
            continue
        first = member.num_prompt - 1 - member.num_to_score
        last = min(chunk.start + chunk.num_tokens, member.num_prompt - 1)
        row = int(batch.seq_starts[s]) - chunk.start
        wanted += [(member, row + p, int(member.tokens[p + 1])) for p in range(max(first, chunk.start), last)]
        member.num_to_score = member.num_prompt - 1 - max(first, last)
    return wanted
