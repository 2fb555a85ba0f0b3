"""Call stacks: where they begin, how they are interned, and that the table is bounded."""

from pathlib import Path

import pytest

from aie_tensor import Ledger, MemoryPool, Tensor, stacks
from aie_tensor.stacks import RawStack, StackTable, resolve, skip_frames_of


def take(table: StackTable) -> RawStack:
    return table.capture()


def make_asker(path: str) -> dict[str, object]:
    """A module in another file that asks for stacks and calls back."""
    source = "def ask(table):\n    return table.capture()\ndef call(function, *args):\n    return function(*args)\n"
    module: dict[str, object] = {}
    exec(compile(source, path, "exec"), module)
    return module


def test_equal_stacks_are_one_object_and_other_lines_are_not() -> None:
    table = StackTable()
    first, second = [take(table) for _ in range(2)]
    other = take(table)
    assert first is second
    assert first is not other
    assert resolve(first)[0] == resolve(other)[0]  # the line in `take`
    assert resolve(first)[1].line < resolve(other)[1].line


def test_a_stack_has_at_most_the_frames_asked_for() -> None:
    assert len(take(StackTable(max_frames=2))) == 2


def test_memory_that_a_tensor_takes_is_asked_for_by_the_callers_line() -> None:
    pool = MemoryPool(ledger=Ledger(enabled=True))
    tensor = Tensor.zeros(pool, (4,), owner="activations")
    (entry,) = pool.ledger.outstanding()
    assert entry.stack[0].file == __file__
    tensor.release()


def test_a_registered_file_never_begins_a_stack_but_stays_further_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_SERVING_FILES", set(stacks._SERVING_FILES))
    path = str(Path("observers.py").absolute())
    module = make_asker(path)
    table = StackTable()
    assert resolve(module["ask"](table))[0].file == path  # type: ignore[operator]
    skip_frames_of(path)
    assert resolve(module["ask"](table))[0].file == __file__  # type: ignore[operator]
    frames = resolve(module["call"](take, table))  # type: ignore[operator]
    assert [frame.file for frame in frames[:3]] == [__file__, path, __file__]
    assert str(frames[1]) == "observers.py:4 in call"


def test_a_full_table_begins_anew_and_old_stacks_stay_readable() -> None:
    table = StackTable(max_stacks=4)
    taken = [make_asker(f"generated-{number}.py")["ask"](table) for number in range(10)]  # type: ignore[operator]
    assert len(table) <= 4
    assert [resolve(stack)[0].file for stack in taken] == [f"generated-{number}.py" for number in range(10)]
    again = take(table)
    assert resolve(again)[0].function == "take"
