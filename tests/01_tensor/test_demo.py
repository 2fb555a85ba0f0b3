"""`python -m aie_tensor`: it runs, shows what it promises, and explains itself where there is no compiler."""

import re

import pytest

from aie_tensor import NativeUnavailableError, native
from aie_tensor.__main__ import main
from aie_tensor.demo_fragmentation import show_fragmentation
from aie_tensor.demo_kernels import show_kernels
from aie_tensor.demo_leaks import show_leaks
from aie_tensor.demo_memory import show_rounding
from aie_tensor.demo_misuse import show_misuse
from aie_tensor.demo_streams import show_streams


def test_the_demo_has_all_its_parts_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^(\d)\. ", shown, re.MULTILINE) == ["1", "2", "3", "4", "5", "6", "7"]
    assert "MemoryPool" in shown
    assert "NumPy, blocks expanded at each call" in shown
    assert max(len(line) for line in shown.splitlines()) <= 140


def test_rounding_is_shown_for_each_model_and_spacing(capsys: pytest.CaptureFixture[str]) -> None:
    show_rounding()
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if "MiB" in line}
    assert rows["Qwen2.5-0.5B"][1:] == ["942", "MiB", "46.8%", "30.5%", "17.0%", "8.0%", "0.0%"]
    assert len(rows) == 4


def test_fragmentation_shows_what_a_living_block_pins(capsys: pytest.CaptureFixture[str]) -> None:
    show_fragmentation()
    shown = capsys.readouterr().out
    rows = [line.partition(":")[2].split() for line in shown.splitlines() if ": " in line]
    maps = [row for row in rows if row and all(len(segment) == 16 for segment in row)]
    assert maps[0] == ["█" * 16] * 4
    assert [sum(segment.count("█") for segment in row) for row in maps] == [64, 5, 2]
    assert len(maps[2]) < 4  # a segment without a living block went back


def test_streams_show_who_gets_the_block(capsys: pytest.CaptureFixture[str]) -> None:
    show_streams()
    shown = capsys.readouterr().out
    steps = [line for line in shown.splitlines() if "the same block" in line or "another block" in line]
    assert ["the same block" in step for step in steps] == [True, False, True]
    assert "nothing noticed" not in shown


def test_misuse_shows_both_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    show_misuse()
    shown = capsys.readouterr().out
    assert "double free of 1048576 bytes (owner 'logits of request 7')" in shown
    assert shown.index("in _prepare_request") < shown.index("first freed at") < shown.index("in _finish_request")
    assert "use after free of 1048576 bytes" in shown
    assert "write after free" in shown.lower()


def test_all_four_leaks_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    show_leaks()
    shown = capsys.readouterr().out
    assert "NOT the planted line" not in shown
    for name in ("exception", "cycle", "cache", "logger"):
        assert f"{name}.py:" in shown
    assert shown.count("held by ") == 4
    assert "nothing keeps growing over 200 requests" in shown


def test_one_part_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--part", "2"]) == 0
    assert re.findall(r"^(\d)\. ", capsys.readouterr().out, re.MULTILINE) == ["2"]


def test_without_a_compiler_it_says_how_to_get_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise NativeUnavailableError("No C compiler was found. Install one: pip install ziglang.")

    monkeypatch.setattr(native, "load", refuse)
    show_kernels(1)
    shown = capsys.readouterr().out
    assert "would run on NumPy. No C compiler was found" in shown
    assert "pip install ziglang" in shown
    assert "C kernel on the blocks" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--threads", "0"], "--threads must be at least 1"), (["--part", "8"], "--part must be 1 to 7, not 8")],
)
def test_wrong_arguments_are_wrong_usage(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
