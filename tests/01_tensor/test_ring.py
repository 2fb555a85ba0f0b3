"""The event ring: it outlives its writer, and what is not whole in it is recognised."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aie_tensor import EnvironmentLacksError, InvalidInputError, Ledger
from aie_tensor.memory.events import EventKind, MemoryEvent
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.ring import EventRing
from aie_tensor.memory.ring_reader import BODY, HEADER_BYTES, RECORD_BYTES, format_events

WRITER = """
import sys
from aie_tensor.memory.events import EventKind, MemoryEvent
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.ring import EventRing
ring = EventRing.create(sys.argv[1], num_records=64)
number = 0
while True:
    number += 1
    ring.append(MemoryEvent(EventKind.ALLOCATE, 1.0 * number, number, number, 64, "", Owner("kv", f"r-{number}"), None))
    if number % 100 == 0:
        print(number, flush=True)
"""


def event(number: int, owner: Owner | None = None, **changed: object) -> MemoryEvent:
    """An allocation of `number` bytes at `number` seconds."""
    plain = MemoryEvent(EventKind.ALLOCATE, float(number), 64 * number, number, 1024, "", owner or Owner("kv"), None)
    return plain._replace(**changed)  # type: ignore[arg-type]


def filled(path: Path, count: int, num_records: int = 8) -> None:
    ring = EventRing.create(path, num_records=num_records)
    for number in range(1, count + 1):
        ring.append(event(number))
    ring.close()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    ledger = Ledger(enabled=True, clock=lambda: 12.5)
    ring = EventRing.create(tmp_path / "ring")
    ledger.sinks.append(ring.append)
    owner = Owner("kv", "r-17", "tiny", "engine-0", "aie_engine")
    ledger.record("block", 4 << 20, owner, block_bytes=8 << 20, stream="copy", address=1 << 40)
    ledger.forget("block")
    ledger.count_request()
    assert ledger.sink_error is None
    contents = EventRing.read(tmp_path / "ring")
    taken, freed, ended = contents.events
    assert (contents.num_written, contents.num_torn, contents.num_texts_lost) == (3, 0, 0)
    assert (taken.kind, taken.at_s, taken.address) == (EventKind.ALLOCATE, 12.5, 1 << 40)
    assert (taken.nbytes, taken.block_bytes, taken.stream, taken.owner) == (4 << 20, 8 << 20, "copy", owner)
    assert "test_ring.py:" in taken.stack[0]
    assert taken.stack[0].endswith("in test_what_is_written_is_read_back")
    assert (freed.kind, freed.owner, freed.stack) == (EventKind.FREE, owner, ())
    assert ended.kind is EventKind.REQUEST


def test_only_the_newest_are_kept_oldest_first(tmp_path: Path) -> None:
    filled(tmp_path / "ring", 21)
    contents = EventRing.read(tmp_path / "ring")
    assert [kept.nbytes for kept in contents.events] == list(range(14, 22))
    assert contents.num_written == 21


def test_a_ring_goes_on_where_another_writer_ended(tmp_path: Path) -> None:
    filled(tmp_path / "ring", 5)
    ring = EventRing.open(tmp_path / "ring")
    ring.append(event(6, Owner("arena")))
    contents = EventRing.read(tmp_path / "ring")
    assert [kept.sequence for kept in contents.events] == [1, 2, 3, 4, 5, 6]
    assert {str(kept.owner) for kept in contents.events} == {"kv", "arena"}


def test_a_new_ring_replaces_an_old_one_whose_writer_goes_on(tmp_path: Path) -> None:
    old = EventRing.create(tmp_path / "ring", num_records=4096)
    new = EventRing.create(tmp_path / "ring", num_records=1)
    old.append(event(1))
    new.append(event(2))
    assert [kept.nbytes for kept in EventRing.read(tmp_path / "ring").events] == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["ring"]
    assert (tmp_path / "ring").stat().st_mode & 0o777 == 0o600  # owners and files are nobody else's business


def test_it_survives_a_writer_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(30):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        said = [3000, *(int(line) for line in writer.stdout.read().split())]
    assert writer.returncode == -signal.SIGKILL
    contents = EventRing.read(path)
    assert contents.num_written >= said[-1]
    assert contents.pid == writer.pid
    assert contents.num_torn <= 1  # the one that the signal cut
    newest = contents.num_written
    expected = list(range(newest - 63 + contents.num_torn, newest + 1))
    assert [kept.sequence for kept in contents.events] == expected
    assert [kept.owner.request_id for kept in contents.events] == [f"r-{number}" for number in expected]


@pytest.mark.parametrize("cut_at", [0, 8, 9, 20, RECORD_BYTES - 8, RECORD_BYTES - 1])
def test_a_half_written_record_is_left_out(tmp_path: Path, cut_at: int) -> None:
    """The record of event 4 as a writer leaves it that dies after `cut_at` bytes, having cleared the closing number."""
    path = tmp_path / "ring"
    filled(path, 11)
    content = bytearray(path.read_bytes())
    start = HEADER_BYTES + 4 * RECORD_BYTES  # slot 4 holds event 4; event 12 was to replace it
    replacing = BODY.pack(12, 12.0, 0, 12, 12, 0, 0, 0, 1) + (12).to_bytes(8, "little")
    content[start + BODY.size : start + RECORD_BYTES] = bytes(8)
    content[start : start + cut_at] = replacing[:cut_at]
    path.write_bytes(content)
    contents = EventRing.read(path)
    whole = cut_at == RECORD_BYTES - 1  # all but zeros arrived
    assert [kept.sequence for kept in contents.events] == [5, 6, 7, 8, 9, 10, 11, *([12] if whole else [])]
    assert contents.num_torn == (0 if whole else 1)


def test_texts_go_round_and_the_newest_events_keep_theirs(tmp_path: Path) -> None:
    """Owners by the thousand in an area that holds a few dozen: old texts are lost, and never mistaken for others."""
    ring = EventRing.create(tmp_path / "ring", num_records=1000, strings_bytes=4096)
    for number in range(1, 3001):
        ring.append(event(number, Owner("kv", f"request-{number}")))
        ring.append(event(number, Owner("weights")))
    contents = EventRing.read(tmp_path / "ring")
    assert len(contents.events) == 1000
    requests = [kept for kept in contents.events if kept.owner.request_id]
    assert all(kept.owner.request_id == f"request-{kept.nbytes}" for kept in requests)
    assert [kept.nbytes for kept in requests[-20:]] == list(range(2981, 3001))
    assert contents.events[-1].owner == Owner("weights")
    assert contents.num_texts_lost > 0


def test_a_text_larger_than_the_area_costs_only_itself(tmp_path: Path) -> None:
    ring = EventRing.create(tmp_path / "ring", strings_bytes=4096)
    wide = "\N{HEAVY BLACK HEART}" * 5000
    ring.append(event(1, Owner(wide, wide, wide, wide, wide), stream="copy"))
    (kept,) = EventRing.read(tmp_path / "ring").events
    assert (kept.nbytes, kept.owner, kept.stream) == (1, Owner(), "copy")


def test_positions_wrap(tmp_path: Path) -> None:
    ring = EventRing.create(tmp_path / "ring", num_records=100, strings_bytes=4096)
    ring._mark = (1 << 32) - 100  # as after 32 GiB of texts
    for number in range(1, 101):
        ring.append(event(number, Owner("kv", f"r-{number}")))
    contents = EventRing.read(tmp_path / "ring")
    assert ring._mark < 1 << 20
    assert all(kept.owner.request_id in ("", f"r-{kept.nbytes}") for kept in contents.events)
    assert [kept.owner.request_id for kept in contents.events[-20:]] == [f"r-{n}" for n in range(81, 101)]


def test_threads_write_without_mixing(tmp_path: Path) -> None:
    ring = EventRing.create(tmp_path / "ring", num_records=5000)

    def work(thread: int) -> None:
        for step in range(1000):
            ring.append(event(thread * 1000 + step, Owner("kv", f"r-{thread * 1000 + step}")))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    contents = EventRing.read(tmp_path / "ring")
    assert (contents.num_written, contents.num_torn) == (4000, 0)
    assert all(kept.owner.request_id == f"r-{kept.nbytes}" for kept in contents.events)
    assert {kept.nbytes for kept in contents.events} == set(range(4000))


def test_the_last_events_as_lines(tmp_path: Path) -> None:
    ledger = Ledger(enabled=True, clock=iter([1.0, 3.5, 4.0]).__next__)
    ring = EventRing.create(tmp_path / "ring")
    ledger.sinks.append(ring.append)
    ledger.record("block", 4 << 20, Owner("kv", "r-17"), stream="copy")
    ledger.emit(EventKind.SEGMENT_RESERVE, 0, 0, 1 << 30, "", "")
    ledger.count_request()
    contents = EventRing.read(tmp_path / "ring")
    first, *others = format_events(contents)
    assert first.startswith("3.000 s before the newest: allocate 4.0 MiB for kv of request r-17 on stream copy at ")
    assert others == [
        "0.500 s before the newest: reserve a segment of 1.0 GiB",
        "0.000 s before the newest: a request ended",
    ]
    assert format_events(contents, last=1) == others[1:]
    assert format_events(contents, last=0) == []


def test_events_that_read_alike_are_one_line(tmp_path: Path) -> None:
    """A long prompt takes its KV blocks one by one; a screenful of those would hide all that came before."""
    ledger = Ledger(enabled=True, clock=iter([float(at) for at in range(9)]).__next__)
    ring = EventRing.create(tmp_path / "ring")
    ledger.sinks.append(ring.append)
    ledger.count_request()
    for _ in range(7):
        ledger.emit(EventKind.SEGMENT_RESERVE, 0, 0, 1 << 20, "", "")
    ledger.count_request()
    assert format_events(EventRing.read(tmp_path / "ring")) == [
        "8.000 s before the newest: a request ended",
        "1.000 s before the newest: 7 × reserve a segment of 1.0 MiB",
        "0.000 s before the newest: a request ended",
    ]


def test_files_that_are_no_whole_ring_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    with pytest.raises(InvalidInputError, match="cannot read"):
        EventRing.read(path)
    path.write_bytes(b"not a ring at all" * 10)
    with pytest.raises(InvalidInputError, match="no event ring"):
        EventRing.read(path)
    filled(path, 3)
    whole = path.read_bytes()
    for nbytes in (0, 63, 64, 100, len(whole) - 1):
        path.write_bytes(whole[:nbytes])
        with pytest.raises(InvalidInputError, match=r"cut off|no event ring"):
            EventRing.open(path)
    path.write_bytes(whole[:8] + (2).to_bytes(4, "little") + whole[12:])
    with pytest.raises(InvalidInputError, match="version 2; this program reads version 1"):
        EventRing.read(path)


@pytest.mark.parametrize("sizes", [(1.5, 4096), ("1", 4096), (1 << 62, 4096), (1, 1 << 70), (1, 1 << 36), (True, 4096)])
def test_absurd_sizes_leave_no_file(tmp_path: Path, sizes: tuple[int, int]) -> None:
    with pytest.raises(InvalidInputError):
        EventRing.create(tmp_path / "ring", *sizes)
    assert list(tmp_path.iterdir()) == []


def test_a_ring_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="cannot make the event ring"):
        EventRing.create(tmp_path / "missing" / "ring")
    for sizes in ({"num_records": 0}, {"strings_bytes": 10}):
        with pytest.raises(InvalidInputError):
            EventRing.create(tmp_path / "ring", **sizes)


def test_a_closed_ring_is_dropped_by_the_ledger_and_nothing_else_breaks(tmp_path: Path) -> None:
    ledger = Ledger(enabled=True)
    ring = EventRing.create(tmp_path / "ring")
    ledger.sinks.append(ring.append)
    ring.close()
    ring.close()
    assert ledger.record("block", 1, "kv") is not None
    assert isinstance(ledger.sink_error, ValueError)
    assert ledger.sinks == []
