"""`aie memdebug -- script.py`: a person's own program in this process, every pool that it makes watched.

The program runs as `python script.py` would run it: as `__main__`, with its own arguments and folder. It is run here by
hand rather than by `runpy`, which takes the module apart when it ends: what the program's globals still hold is part of
the answer, and so is their name.
"""

import gc
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from aie.console import format_bytes, note
from aie.memdebug.outputs import Outputs
from aie.memdebug.show import chain, growth_json, print_growth, say, screen
from aie_engine import InvalidInputError
from aie_tensor import Allocation, Ledger, MemoryPool, Tensor, watch_pools
from aie_tensor.memdebug import Growth, MemorySnapshot, cycles, holders, take_snapshot

if TYPE_CHECKING:
    from aie_tensor import LedgerEntry

__all__ = ["Ended", "run_script"]

_MAX_HANDLES, _MAX_CHAINS, _MAX_CYCLES = 3, 3, 3


class Ended:
    """How the program ended."""

    def __init__(self) -> None:
        self.code = 0


def run_script(program: Path, arguments: Sequence[str], outputs: Outputs) -> int:
    """Runs the program, then prints what it still holds. Gives the program's own exit code if that is not 0, else
    1 when something is held and 0 when nothing is. Raises `InvalidInputError` for what is no Python program."""
    code = _compiled(program)
    outputs = outputs.absolute()  # the program may go to another folder
    with outputs.recording() as wanted:
        pools = _Pools(wanted.record)
        try:
            with watch_pools(pools.watch):
                module, ended = _execute(program, code, arguments)
            gc.unfreeze()  # an engine in the program put what it loaded out of the collector's sight
            gc.collect()
            snapshot = _without_us(take_snapshot(pools.all, pools.ledger(), process=program.name))
            # In the order in which a person asks: did it end well, what is held, by which line, by whom.
            leaks = [_as_growth(snapshot, index) for index in range(len(snapshot.groups))]
            held_by = _holders(pools.all)
            in_cycles = [str(cycle) for cycle in cycles((Allocation, Tensor))] if leaks else []
        finally:
            pools.close()
        _print(snapshot, leaks, held_by, in_cycles, pools.all)
        wanted.write_snapshots([snapshot])
    del module  # until here it kept the program's globals, which are part of the answer
    outputs.write_report(
        {
            "script": str(program),
            "exit_code": ended.code,
            "leaks": [growth_json(change) for change in leaks],
            "held_by": held_by,
            "in_cycles": in_cycles,
            "snapshot": snapshot.to_json(),
        }
    )
    return ended.code or (1 if leaks else 0)


class _Pools:
    """The pools of the program, and their ledgers, which are switched on as they appear."""

    def __init__(self, record: Path | None) -> None:
        from aie_tensor.memdebug import AllocationLog

        self.all: list[MemoryPool] = []
        self._ledgers: dict[int, Ledger] = {}
        self._log = AllocationLog(record) if record is not None else None

    def watch(self, pool: MemoryPool) -> None:
        """For `watch_pools`."""
        self.all.append(pool)
        if id(pool.ledger) not in self._ledgers:
            self._ledgers[id(pool.ledger)] = pool.ledger
            pool.ledger.enabled, pool.ledger.sample_every = True, 1  # nothing is left to chance here
            if self._log is not None:
                pool.ledger.sinks.append(self._log.append)

    def ledger(self) -> Ledger:
        """All of them as one."""
        return _Together(tuple(self._ledgers.values()))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            if self._log.error is not None:
                note(self._log.error)


class _Together(Ledger):
    """Several ledgers read as one."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        super().__init__(enabled=True)
        self._ledgers = ledgers
        self.num_requests = sum(ledger.num_requests for ledger in ledgers)

    @property
    def num_lost(self) -> int:
        return sum(ledger.num_lost for ledger in self._ledgers)

    def outstanding(self) -> "list[LedgerEntry]":
        return [entry for ledger in self._ledgers for entry in ledger.outstanding()]


def _compiled(program: Path) -> CodeType:
    try:
        source = program.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"The program {program} cannot be read: {error.strerror or error}.") from None
    try:
        return compile(source, str(program), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InvalidInputError(f"{program} is not a Python program{where}: {error.args[0]}.") from None


def _execute(program: Path, code: CodeType, arguments: Sequence[str]) -> tuple[ModuleType, Ended]:
    """Runs `code` to its end, however it ends, and says how."""
    module = ModuleType("__main__")
    module.__file__ = str(program)
    module.__dict__["__builtins__"] = __builtins__
    ended = Ended()
    before = set(threading.enumerate())
    with _as_main(module, program, arguments):
        try:
            exec(code, module.__dict__)
        except SystemExit as end:
            ended.code = _exit_code(end)
        except KeyboardInterrupt:
            ended.code = 130
        except BaseException as error:
            # The program's own error: shown as Python would, without our frames above it. It must not outlive this
            # line, for its traceback holds every local variable of the frames that it passed through.
            inner = error.__traceback__.tb_next if error.__traceback__ is not None else None
            traceback.print_exception(type(error), error, inner)
            ended.code = 1
        _wait_for_threads(before)
    return module, ended


def _wait_for_threads(before: set[threading.Thread]) -> None:
    """As Python does at its end: those that are no daemons finish first."""
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join()


@contextmanager
def _as_main(module: ModuleType, program: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, path, main = sys.argv[:], sys.path[:], sys.modules["__main__"]
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.argv[:] = [str(program), *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(program)))
    sys.modules["__main__"] = module
    try:
        yield
    finally:
        with suppress(OSError, ValueError):  # closed, or nobody reads it
            sys.stdout.flush()
        sys.stdin, sys.stdout, sys.stderr = streams
        if sys.stdout.closed:  # then the report goes where something can still be read
            sys.stdout = sys.stderr
        sys.argv[:], sys.path[:] = argv, path
        sys.modules["__main__"] = main


def _exit_code(end: SystemExit) -> int:
    """As Python has it: none is 0, text is printed and is 1."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    note(str(end.code))
    return 1


def _without_us(snapshot: MemorySnapshot) -> MemorySnapshot:
    """Call stacks end where the program begins."""
    us = f"{Path(__file__).parent.name}/{Path(__file__).name}:"
    groups = []
    for group in snapshot.groups:
        ours = [number for number, frame in enumerate(group.stack) if us in frame]
        groups.append(replace(group, stack=group.stack[: ours[0]]) if ours else group)
    return replace(snapshot, groups=tuple(groups))


def _as_growth(snapshot: MemorySnapshot, index: int) -> Growth:
    """What is held at the end, grown from nothing."""
    group = snapshot.groups[index]
    rate = group.nbytes * 1000 / snapshot.num_requests if snapshot.num_requests else None
    return Growth(group, group.count, group.nbytes, group.block_bytes, rate)


def _holders(pools: Sequence[MemoryPool]) -> list[str]:
    """Who holds the largest of the handles that still live."""
    known = set(map(id, pools))
    # By weak references, or we would be among those who hold them.
    handles = [
        (found.nbytes, weakref.ref(found)) for found in gc.get_objects()
        if isinstance(found, Allocation) and id(found.pool) in known and found.num_references > 0
    ]  # fmt: skip
    handles.sort(key=lambda entry: -entry[0])
    lines = []
    for nbytes, handle in handles[:_MAX_HANDLES]:
        chains = [str(chain) for chain in holders(handle())][:_MAX_CHAINS]
        lines += [f"{chain} ({format_bytes(nbytes)})" for chain in chains or ["nobody that Python can name"]]
    return lines


def _print(
    snapshot: MemorySnapshot,
    leaks: Sequence[Growth],
    held_by: Sequence[str],
    in_cycles: Sequence[str],
    pools: Sequence[MemoryPool],
) -> None:
    if not pools:
        say("The program made no memory pool of aie_tensor; there is nothing to report.")
        return
    say(screen(snapshot))
    print_growth("STILL HELD when the program ended", leaks)
    for title, lines in (("Who holds it", held_by), ("Held in a reference cycle", in_cycles[:_MAX_CYCLES])):
        if lines:
            say(f"\n{title}:")
        for text in lines:
            say(chain(text))
    num_dropped = sum(pool.stats.num_dropped for pool in snapshot.pools)
    if num_dropped:
        say(f"\n{num_dropped} handles were dropped without a release: Python gave them back, when it got to it.")
    if leaks:
        total = sum(leak.nbytes for leak in leaks)
        say(f"\n{len(leaks)} leak{'s' if len(leaks) > 1 else ''}, {format_bytes(total)} in all.")
    else:
        num_made = sum(pool.stats.num_allocations for pool in snapshot.pools)
        say(f"\nNo leak: {num_made:,} allocation{'' if num_made == 1 else 's'}, all given back.")
