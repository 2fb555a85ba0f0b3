"""The allocation log: what is written comes back; what is damaged is refused with its line."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aie_tensor.errors import EnvironmentLacksError, InvalidInputError
from aie_tensor.memdebug.log import AllocationLog, LoggedEvent, iter_log, logged, read_log
from aie_tensor.memory.events import EventKind, MemoryEvent
from aie_tensor.memory.owner import Owner
from aie_tensor.stacks import RawStack, StackTable

TABLE = StackTable()


def stack_here() -> RawStack:
    return TABLE.capture()


def event(kind: EventKind = EventKind.ALLOCATE, address: int = 64, stack: RawStack | None = None) -> MemoryEvent:
    return MemoryEvent(kind, 1.5, address, 1000, 1024, "copy", Owner("kv", "r-1", "gpt2"), stack)


def write(path: Path, *events: MemoryEvent) -> None:
    with AllocationLog(path) as log:
        for each in events:
            log.append(each)


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "log"
    events = [
        event(stack=stack_here()),
        event(EventKind.FREE),
        MemoryEvent(EventKind.REQUEST, 2, 0, 0, 0, "", Owner(), None),
    ]
    write(path, *events)
    assert read_log(path) == [logged(each) for each in events]
    first = read_log(path)[0]
    assert isinstance(first, LoggedEvent)
    assert first.stack[0].endswith("in stack_here")
    assert first.owner == Owner("kv", "r-1", "gpt2")


def test_a_stack_is_written_once(tmp_path: Path) -> None:
    path, stack = tmp_path / "log", stack_here()
    write(path, *[event(address=64 * n, stack=stack) for n in range(1, 101)])
    assert path.read_bytes().count(b"stack_here") == 1
    assert len({each.stack for each in read_log(path)}) == 1


def test_more_stacks_than_are_kept_in_mind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aie_tensor.memdebug.log.MAX_STACKS", 2)
    codes = [compile("stack()", f"file{n}.py", "eval") for n in range(5)]
    stacks: list[RawStack] = [eval(code, {"stack": stack_here}) for code in codes]
    write(tmp_path / "log", *[event(stack=stack) for stack in stacks * 2])
    assert [each.stack[1].split(":")[0] for each in read_log(tmp_path / "log")] == [f"file{n}.py" for n in range(5)] * 2


def test_an_earlier_log_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, event())
    write(path)
    assert read_log(path) == []
    assert len(read_log(tmp_path / "log.previous")) == 1


@pytest.mark.parametrize("lost", [1, 2, 40])
def test_a_half_line_is_refused_unless_it_may_be_missing(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "cut.log"
    write(path, event(), event(), event())
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(InvalidInputError, match=r"cut\.log is cut off in line 4"):
        read_log(path)
    assert len(read_log(path, allow_cut=True)) == 2


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"log":"aie memory events","version":1}', b"\xff\n", b"[]\n", b'{"log":"x","version":1}\n']
)
@pytest.mark.parametrize("allow_cut", [False, True])
def test_what_is_no_log_is_refused(tmp_path: Path, content: bytes, allow_cut: bool) -> None:
    path = tmp_path / "other.txt"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"other\.txt is not a memory log"):
        read_log(path, allow_cut=allow_cut)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"log":"aie memory events","version":2}\n')
    with pytest.raises(InvalidInputError, match="version 2"):
        read_log(path)


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"nonsense",
        b'{"kind":99,"at_s":1,"owner":{}}',
        b'{"kind":1,"at_s":1,"owner":{},"nbytes":-1}',
        b'{"kind":1,"at_s":1,"owner":{},"nbytes":"1"}',
        b'{"kind":1,"at_s":1,"owner":{"who":"x"}}',
        b'{"kind":1,"at_s":1,"owner":{},"stack":7}',
        b'{"kind":1,"at_s":1,"owner":{"what":3}}',
        b"[" * 100_000,
        b"\x00" * (1 << 20),
    ],
)
@pytest.mark.parametrize("allow_cut", [False, True])
def test_a_damaged_line_is_refused_with_its_number(tmp_path: Path, line: bytes, allow_cut: bool) -> None:
    path = tmp_path / "log"
    write(path, event())
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(InvalidInputError, match="damaged in line 3"):
        read_log(path, allow_cut=allow_cut)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot read the memory log"):
        read_log(tmp_path / "none")
    with pytest.raises(InvalidInputError, match="cannot read the memory log"):
        read_log(tmp_path)
    with pytest.raises(EnvironmentLacksError, match="cannot write the memory log"):
        AllocationLog(tmp_path)


def test_a_full_disk_ends_the_log_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AllocationLog(tmp_path / "log")
    log.append(event())

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        log.append(event())
    log.append(event())
    assert log.error is not None and "No space left" in log.error
    assert len(read_log(tmp_path / "log")) == 1


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    write(tmp_path / "log", event(), event())
    assert len(read_log(tmp_path / "log")) == 2


def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from aie_tensor.memdebug import AllocationLog\n"
        "from aie_tensor.memory.ledger import Ledger\n"
        "from aie_tensor.memory.pool import MemoryPool\n"
        "ledger = Ledger(True); ledger.sinks.append(AllocationLog(Path(sys.argv[1])).append)\n"
        "pool = MemoryPool(ledger=ledger)\n"
        "held = [pool.allocate(1000, owner='kv') for _ in range(50)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "log")], check=False, timeout=120)
    assert done.returncode == -9
    events = read_log(tmp_path / "log")
    assert sum(each.kind is EventKind.ALLOCATE for each in events) == 50


def test_closed_twice_and_written_after(tmp_path: Path) -> None:
    log = AllocationLog(tmp_path / "log")
    log.close()
    log.close()
    log.append(event())
    assert read_log(tmp_path / "log") == []


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    with AllocationLog(tmp_path / "log") as log:
        threads = [
            threading.Thread(target=lambda: [log.append(event(stack=stack_here())) for _ in range(200)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read_log(tmp_path / "log")) == 800


def test_reading_is_one_event_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, event(), event())
    path.write_bytes(path.read_bytes() + b"damaged\n")
    events = iter_log(path)
    assert (next(events).address, next(events).address) == (64, 64)
    with pytest.raises(InvalidInputError):
        next(events)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
def test_a_log_that_takes_no_first_line_is_refused_at_once() -> None:
    with pytest.raises(EnvironmentLacksError, match=r"/dev/full.*No space left"):
        AllocationLog(Path("/dev/full"))
