"""`python -m aie_tensor`: it runs, shows what it promises, and explains itself where there is no compiler."""

import pytest

from aie_tensor import NativeUnavailableError, native
from aie_tensor.__main__ import main
from aie_tensor.demo_kernels import show_kernels


def test_the_demo_shows_reuse_misuse_and_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "MemoryPool" in shown
    assert "double free of 1048576 bytes (owner 'logits of request 7')" in shown
    assert shown.index("in _prepare_request") < shown.index("first freed at") < shown.index("in _finish_request")
    assert "20 × 'attention scratch', 1,310,720 bytes still held" in shown
    assert "NumPy, blocks expanded at each call" in shown


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


def test_wrong_arguments_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--threads", "0"])
    assert stopped.value.code == 2
    assert "--threads must be at least 1" in capsys.readouterr().err
