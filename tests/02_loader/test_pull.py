"""Pulling with a small program in pip's place: real processes and files, no network."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections import namedtuple
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

import pytest

from aie_loader import KNOWN_MODELS, KnownModel, ModelNotFoundError, PullError, PullProgress, pull
from aie_loader.fetching import pip_command, pulling
from aie_loader.fetching.known_models import KnownFile

# What pip is asked for, and what it does about it: modes are words in the script's first argument.
FAKE_PIP = """
import json, os, pathlib, shutil, sys, time
mode, wheel, log = sys.argv[1:4]
arguments = sys.argv[4:]
pathlib.Path(log).write_text(json.dumps(arguments))
if mode == "offline":
    print("WARNING: Retrying after connection broken")
    print("ERROR: Could not find a version that satisfies the requirement")
    print("ERROR: No matching distribution found for demo==1.0")
    print("[notice] A new release of pip is available")
    sys.exit(1)
if mode == "full":
    print("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device")
    sys.exit(1)
if mode == "mute":
    sys.exit(1)
growing = pathlib.Path(os.environ["TMPDIR"]) / "pip-unpack" / "demo.whl.part"
growing.parent.mkdir()
growing.write_bytes(pathlib.Path(wheel).read_bytes()[:1000])
if mode == "hang":
    time.sleep(600)
shutil.copy(wheel, arguments[arguments.index("--dest") + 1])
"""


class World:
    """A known model `demo`, its wheel, a cache, and the command line of a false pip."""

    def __init__(self, root: Path) -> None:
        self.cache, self.wheel, self.log = root / "cache", root / "demo-1.0-py3-none-any.whl", root / "arguments.json"
        self.script = root / "pip.py"
        self.script.write_text(FAKE_PIP)
        self.contents = {"model.bin": os.urandom(3 << 20), "sub/config.json": b"{}"}
        self.write_wheel(self.contents)
        self.model = KnownModel(
            alias="demo", what="a demonstration", package="demo-model", version="1.0",
            wheel_bytes=self.wheel.stat().st_size, wheel_sha256=hashlib.sha256(self.wheel.read_bytes()).hexdigest(),
            files=tuple(
                KnownFile(f"demo/{name}", name, len(data), hashlib.sha256(data).hexdigest())
                for name, data in self.contents.items()
            ),
        )  # fmt: skip

    def write_wheel(self, contents: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("demo/__init__.py", "raise SystemExit('code of the package was run')")
            for name, data in contents.items():
                archive.writestr(f"demo/{name}", data)

    def pip(self, mode: str = "good") -> list[str]:
        return [sys.executable, str(self.script), mode, str(self.wheel), str(self.log)]

    @property
    def models(self) -> Path:
        return self.cache / "models"

    def pull(self, mode: str = "good", progress: Callable[[PullProgress], None] | None = None) -> Path:
        return pull("demo", cache=self.cache, pip=self.pip(mode), progress=progress)

    def assert_nothing_left(self) -> None:
        assert not self.models.exists() or list(self.models.iterdir()) == []


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setattr(pulling, "KNOWN_MODELS", MappingProxyType({"demo": world.model}))
    return world


def pin_wheel(world: World, monkeypatch: pytest.MonkeyPatch, model: KnownModel) -> None:
    """Make the wheel as it is now the pinned one, so that the checks of the files inside are reached."""
    raw = world.wheel.read_bytes()
    pinned = KnownModel(
        model.alias, model.what, model.package, model.version, len(raw), hashlib.sha256(raw).hexdigest(), model.files
    )
    monkeypatch.setattr(pulling, "KNOWN_MODELS", MappingProxyType({"demo": pinned}))


def test_pull(world: World) -> None:
    seen: list[PullProgress] = []
    folder = world.pull(progress=seen.append)
    assert folder == world.models / "demo"
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert files == world.contents, "the model's files and nothing else of the wheel"
    assert [path.name for path in world.models.iterdir()] == ["demo"], "no temporary folder stays"
    phases = {phase: list(group) for phase, group in groupby(seen, key=lambda step: step.phase)}
    assert list(phases) == ["download", "verify", "extract", "done"]
    for steps in phases.values():
        assert steps[-1].done_bytes == steps[-1].total_bytes
        assert [step.done_bytes for step in steps] == sorted(step.done_bytes for step in steps)
    arguments = json.loads(world.log.read_text())
    assert arguments[0] == "download"
    assert arguments[-1] == "demo-model==1.0"
    assert {"--no-deps", "--only-binary", "--no-cache-dir"} <= set(arguments)


def test_what_is_there_is_checked_and_not_fetched_again(world: World) -> None:
    folder = world.pull()
    world.log.unlink()
    phases: list[str] = []
    assert world.pull("offline", progress=lambda step: phases.append(step.phase)) == folder
    assert set(phases) == {"verify", "done"}
    assert not world.log.exists(), "pip was not even started"
    damaged = bytearray(world.contents["model.bin"])
    damaged[100] ^= 1
    (folder / "model.bin").write_bytes(damaged)
    world.pull()
    assert (folder / "model.bin").read_bytes() == world.contents["model.bin"]


def test_a_single_file_is_returned_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    single = KnownModel(
        "demo", "", "demo", "1.0", world.model.wheel_bytes, world.model.wheel_sha256, world.model.files[:1]
    )
    monkeypatch.setattr(pulling, "KNOWN_MODELS", MappingProxyType({"demo": single}))
    assert world.pull() == world.models / "demo" / "model.bin"


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (
            "offline",
            r"found for demo==1\.0 \(the index did not answer\)\. Check the network.*place the model yourself at.*demo",
        ),
        ("mute", "printed nothing"),
        ("full", r"bytes free, but the pull needs [\d,]+; make room"),
    ],
)
def test_pip_fails(world: World, mode: str, says: str) -> None:
    with pytest.raises(PullError, match=says) as caught:
        world.pull(mode)
    assert caught.value.exit_code == 3
    world.assert_nothing_left()


def test_pip_cannot_be_started(world: World) -> None:
    with pytest.raises(PullError, match="cannot be started"):
        pull("demo", cache=world.cache, pip=[str(world.cache / "no-such-program")])
    world.assert_nothing_left()


def test_other_bytes_than_the_pinned_ones(world: World) -> None:
    world.write_wheel({**world.contents, "model.bin": os.urandom(3 << 20)})
    with pytest.raises(PullError, match=r"not the file that aie knows.*expected.*deleted"):
        world.pull()
    world.assert_nothing_left()


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({"model.bin": b"short", "sub/config.json": b"{}"}, r"model\.bin in the wheel is not the file"),
        ({"model.bin": bytes(4 << 20), "sub/config.json": b"{}"}, r"model\.bin in the wheel is not the file"),
        ({"sub/config.json": b"{}"}, "cannot be unpacked"),
    ],
)
def test_wrong_files_in_the_wheel(
    world: World, monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes], says: str
) -> None:
    world.write_wheel(contents)
    pin_wheel(world, monkeypatch, world.model)
    with pytest.raises(PullError, match=says):
        world.pull()
    world.assert_nothing_left()


def test_not_a_zip_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.wheel.write_bytes(b"this is no zip file")
    pin_wheel(world, monkeypatch, world.model)
    with pytest.raises(PullError, match="cannot be unpacked"):
        world.pull()


def test_disk_full_before_anything_is_fetched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1000, 999, 1))
    with pytest.raises(PullError, match=r"has 1 bytes free, but the pull needs [\d,]+; make room"):
        world.pull()
    assert not world.log.exists()


def test_disk_full_while_extracting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(PullError, match="make room"):
        world.pull()
    world.assert_nothing_left()


def test_cache_that_is_a_file(world: World) -> None:
    world.cache.write_text("in the way")
    with pytest.raises(PullError, match=r"cache folder .* cannot be used .*AIE_CACHE"):
        world.pull()


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG, errno.ESTALE, errno.EIO])
def test_whatever_the_disk_of_the_cache_says_is_a_sentence(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pulling.tempfile, "mkdtemp", refuse)
    with pytest.raises(PullError, match=f"cannot be used .{os.strerror(number)}.*AIE_CACHE"):
        world.pull()


def test_read_only_cache(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(pulling.tempfile, "mkdtemp", read_only)  # root may write where the mode forbids it
    with pytest.raises(PullError, match="Read-only file system"):
        world.pull()


def test_unknown_alias(world: World) -> None:
    with pytest.raises(ModelNotFoundError, match="known are demo"):
        pull("other", cache=world.cache)


def test_interrupt_ends_pip_and_cleans_up(world: World) -> None:
    """The callback raises as a Ctrl-C would, while pip hangs."""
    started: list[int] = []

    def interrupt(step: PullProgress) -> None:
        if step.done_bytes >= 1000:  # pip has written something, so it runs
            started.append(step.done_bytes)
            raise KeyboardInterrupt

    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        world.pull("hang", progress=interrupt)
    assert started == [1000]
    assert time.monotonic() - before < 60, "the hanging pip was ended"
    world.assert_nothing_left()


def test_two_at_once(world: World) -> None:
    failures: list[Exception] = []

    def run() -> None:
        try:
            world.pull()
        except Exception as error:  # shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (world.models / "demo" / "model.bin").read_bytes() == world.contents["model.bin"]
    assert [path.name for path in world.models.iterdir()] == ["demo"]


def test_leftovers_of_a_killed_pull_go_after_a_day(world: World) -> None:
    old, new = world.models / ".pull-demo-old", world.models / ".pull-demo-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 100_000,) * 2)
    world.pull()
    assert not old.exists()
    assert new.exists(), "it may belong to a pull that is running"


def test_which_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Own pip, then the PATH, then the bundled wheel, then uv, then a sentence that says what to do."""
    has_pip = True
    on_path: dict[str, str] = {"pip3": "/bin/pip3", "uv": "/bin/uv"}
    bundled = [tmp_path / "pip-1-py3-none-any.whl"]
    answering = {"/bin/pip3", sys.executable}
    monkeypatch.setattr(pip_command.importlib.util, "find_spec", lambda _: object() if has_pip else None)
    monkeypatch.setattr(pip_command.shutil, "which", on_path.get)
    monkeypatch.setattr(pip_command, "_answers", lambda command: command[0] in answering)
    monkeypatch.setattr(pip_command, "_bundled_wheels", lambda: bundled)
    assert pip_command.find_pip() == [sys.executable, "-m", "pip"]
    has_pip = False
    assert pip_command.find_pip() == ["/bin/pip3"]
    answering.remove("/bin/pip3")
    assert pip_command.find_pip() == [sys.executable, str(bundled[0] / "pip")]
    bundled.clear()
    assert pip_command.find_pip() == ["/bin/uv", "tool", "run", "--python", sys.executable, "--from", "pip", "pip"]
    on_path.clear()
    with pytest.raises(PullError, match="ensurepip"):
        pip_command.find_pip()


def test_the_bundled_pip_can_be_run() -> None:
    wheels = pip_command._bundled_wheels()
    if not wheels:
        pytest.skip("this Python comes without ensurepip's wheels")
    done = subprocess.run([sys.executable, str(wheels[0] / "pip"), "--version"], capture_output=True, check=True)
    assert done.stdout.startswith(b"pip ")


def test_pins_are_complete() -> None:
    for alias, model in KNOWN_MODELS.items():
        assert alias == model.alias
        assert all(len(digest) == 64 for digest in (model.wheel_sha256, *(file.sha256 for file in model.files)))
        assert all(".." not in file.name and not file.name.startswith("/") for file in model.files)


@pytest.mark.real_model
def test_the_real_model_in_the_cache_is_the_pinned_one(real_model: Path) -> None:
    (file,) = KNOWN_MODELS["smollm2-135m"].files
    assert real_model.name == file.name
    assert hashlib.sha256(real_model.read_bytes()).hexdigest() == file.sha256
