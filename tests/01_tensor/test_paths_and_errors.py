"""The cache folder, the error tree, and what importing the stage does not do."""

import subprocess
import sys
from pathlib import Path

import pytest

import aie_tensor
from aie_tensor import AieError, cache_dir


def test_cache_dir_takes_argument_then_variable_then_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIE_CACHE", str(tmp_path / "chosen"))
    assert cache_dir(tmp_path) == tmp_path
    assert cache_dir() == tmp_path / "chosen"
    monkeypatch.delenv("AIE_CACHE")
    assert cache_dir().name == "aie"


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="the XDG variable is Linux'")
def test_cache_dir_ignores_a_relative_xdg_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AIE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "aie"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == Path.home() / ".cache" / "aie"


def test_every_error_has_a_code_of_its_own_and_stands_in_the_tree() -> None:
    names = [name for name in aie_tensor.__all__ if name.endswith("Error")]
    classes = [getattr(aie_tensor, name) for name in names]
    assert all(issubclass(kind, AieError) for kind in classes)
    assert len({kind.code for kind in classes}) == len(classes)
    assert aie_tensor.errors.__doc__ is not None
    assert [name for name in names if name not in aie_tensor.errors.__doc__] == []


def test_importing_the_stage_compiles_nothing_and_starts_no_process() -> None:
    program = (
        "import subprocess\n"
        "def refuse(*a, **k): raise SystemExit('a process was started')\n"
        "subprocess.Popen.__init__ = refuse\n"
        "import aie_tensor\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
