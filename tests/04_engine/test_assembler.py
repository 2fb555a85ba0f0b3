"""The incremental assembler against the plain `StepBatch.pack`, while sequences grow, leave and are preempted."""

import random
from dataclasses import fields

import numpy as np

from aie_engine.assembler import BatchAssembler
from aie_engine.batch import BatchChunk, StepBatch
from aie_scheduler import ScheduledChunk

LIMITS = {"max_batch_size": 6, "max_batch_tokens": 40, "max_seq_len": 64, "block_size": 4}


class Life:
    """A sequence as scheduler and core see it."""

    def __init__(self, draw: random.Random) -> None:
        self.tokens = np.array([draw.randrange(1000) for _ in range(64)], np.int32)
        self.known = draw.randrange(1, 20)
        self.computed = 0
        self.table: list[int] = []

    def chunk(self, draw: random.Random) -> ScheduledChunk:
        num = min(draw.choice([1, 1, 3, 6]), self.known - self.computed)
        while len(self.table) * 4 < self.computed + num:
            self.table.append(draw.randrange(500))
        samples = self.computed + num == self.known
        drafts = draw.choice([0, 0, 1, num - 1]) if samples and num > 1 else 0
        chunk = ScheduledChunk("r", self.computed, num, self.table, samples, drafts)
        self.computed += num
        if chunk.samples:
            self.known += 1
        return chunk


def test_the_same_arrays_as_the_plain_version() -> None:
    draw, assembler = random.Random(0), BatchAssembler(**LIMITS)
    lives = [Life(draw) for _ in range(6)]
    for _ in range(400):
        members = [life for life in lives if draw.random() < 0.8] or lives[:1]
        chunks = [life.chunk(draw) for life in members]
        got = assembler.assemble(chunks, [life.tokens for life in members])
        plain = StepBatch.pack(
            [
                BatchChunk(
                    life.tokens[chunk.start : chunk.start + chunk.num_tokens].tolist(),
                    chunk.start,
                    chunk.block_table,
                    chunk.samples,
                    chunk.num_drafts,
                )
                for life, chunk in zip(members, chunks, strict=True)
            ]
        )
        for field in fields(StepBatch):
            ours, theirs = getattr(got, field.name), getattr(plain, field.name)
            assert ours.flags.c_contiguous and ours.dtype == np.int32
            if field.name == "block_tables":  # ours are wider, and not cleared behind a table's end
                for row, life in zip(ours, members, strict=True):
                    assert row[: len(life.table)].tolist() == life.table
            else:
                assert ours.tolist() == theirs.tolist(), field.name
        for index, life in enumerate(lives):
            if life.known > 56 or draw.random() < 0.02:
                lives[index] = Life(draw)
            elif draw.random() < 0.05:  # preempted: a new list, and everything to compute again
                life.table, life.computed = [], 0


def test_a_new_table_of_the_same_length_is_not_taken_for_the_old_one() -> None:
    assembler = BatchAssembler(**LIMITS)
    tokens = np.arange(8, dtype=np.int32)
    for table in ([1, 2], [3, 4], [5, 6]):
        batch = assembler.assemble([ScheduledChunk("r", 0, 8, table, True)], [tokens])
        assert batch.block_tables[0, :2].tolist() == table
