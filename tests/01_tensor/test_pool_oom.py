"""Out of memory: the ladder, and the report that is on the disk before the error is raised."""

import os
from pathlib import Path

import pytest

from aie_tensor import EnvironmentLacksError, HostUpstream, Ledger, MemoryPool, OutOfMemoryError, Region
from aie_tensor.memdebug import save_snapshot, take_snapshot
from aie_tensor.memory.ring import EventRing

KIB, MIB = 1 << 10, 1 << 20


class Stingy(HostUpstream):
    """A system that has only so much."""

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes

    def reserve(self, nbytes: int, *, zeroed: bool) -> Region:
        if nbytes > self.left:
            raise MemoryError
        self.left -= nbytes
        return super().reserve(nbytes, zeroed=zeroed)

    def give_back(self, region: Region) -> None:
        self.left += region.nbytes


def test_what_the_system_refuses_empties_the_cache_first() -> None:
    pool = MemoryPool(upstream=Stingy(8 * MIB))
    for block in [pool.allocate(4 * MIB), pool.allocate(2 * MIB)]:
        block.release()
    held = pool.allocate(8 * MIB)
    with pytest.raises(OutOfMemoryError, match="the system refused"):
        pool.allocate(KIB)
    held.release()


def test_the_report_is_complete_and_replaces_the_last(tmp_path: Path) -> None:
    path = tmp_path / "oom.txt"
    path.write_text("an old one")
    pool = MemoryPool(name="scratch", budget_bytes=4 * MIB, oom_report=path)
    held = [pool.allocate(MIB + 1, owner=f"holder {number}") for number in range(2)]
    with pytest.raises(OutOfMemoryError, match=r"report: .*oom\.txt"):
        pool.allocate(MIB, owner="activations")
    report = path.read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["oom.txt"]
    for part in (
        "1,048,576 bytes for 'activations'",
        "Pool 'scratch' on cpu",
        "ask the upstream: reserved 4,194,304",
        "return cached segments",
        "wait for streams",
        "collect garbage",
        "Would fit if defragmented: no",
        "2,097,152 bytes in 1 blocks: holder 0",
        "Raise classes_per_doubling (now 1)",
        "Ledger(enabled=True)",
    ):
        assert part in report
    del held


def test_the_report_names_ten_holders_and_no_requests(tmp_path: Path) -> None:
    path = tmp_path / "oom.txt"
    pool = MemoryPool(budget_bytes=16 * MIB, oom_report=path)
    held = [pool.allocate(MIB, owner=f"holder {number:02}") for number in range(16)]
    with pytest.raises(OutOfMemoryError):
        pool.allocate(MIB)
    assert path.read_text().count("in 1 blocks: holder") == 10
    del held


def test_advice_is_not_given_where_it_is_followed_already(tmp_path: Path) -> None:
    path = tmp_path / "oom.txt"
    pool = MemoryPool(
        classes_per_doubling=8, segment_bytes=0, budget_bytes=4 * MIB, ledger=Ledger(enabled=True), oom_report=path
    )
    held = pool.allocate(4 * MIB, owner="cache")
    with pytest.raises(OutOfMemoryError):
        pool.allocate(MIB)
    report = path.read_text()
    assert f"4,194,304 bytes in 1 pieces: cache, asked for at {held.allocated_at[0]}" in report
    for advice in ("classes_per_doubling", "Ledger(", "segment_bytes", "budget_bytes"):
        assert advice not in report
    held.release()


def test_fragmentation_is_told_from_want(tmp_path: Path) -> None:
    path = tmp_path / "oom.txt"
    pool = MemoryPool(budget_bytes=MIB, oom_report=path)
    pinned = pool.allocate(KIB)  # one live kibibyte keeps the mebibyte around it
    with pytest.raises(OutOfMemoryError, match="Lower segment_bytes"):
        pool.allocate(512 * KIB)
    assert "Would fit if defragmented: yes" in path.read_text()
    pinned.release()
    assert pool.allocate(512 * KIB).nbytes == 512 * KIB


def test_a_report_that_cannot_be_written_does_not_hide_the_error(tmp_path: Path) -> None:
    pool = MemoryPool(budget_bytes=0, oom_report=tmp_path / "missing" / "oom.txt")
    with pytest.raises(OutOfMemoryError, match="could not be written"):
        pool.allocate(1)


def test_the_report_replaces_ordinary_files_only_and_takes_any_owner(tmp_path: Path) -> None:
    """As root one could replace /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutOfMemoryError, match="no ordinary file"):
        MemoryPool(budget_bytes=10, oom_report=pipe).allocate(100)
    assert pipe.is_fifo()
    report = tmp_path / "report"
    with pytest.raises(OutOfMemoryError, match="report: "):
        MemoryPool(budget_bytes=10, oom_report=report).allocate(100, owner="a file's name \udcff")
    assert "name \\udcff" in report.read_text("utf-8")
    with pytest.raises(EnvironmentLacksError, match="no ordinary file"):
        EventRing.create(pipe)
    pool = MemoryPool()
    with pytest.raises(EnvironmentLacksError, match="no ordinary file"):
        save_snapshot(take_snapshot([pool], pool.ledger, process="test"), pipe)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["pipe", "report"]
