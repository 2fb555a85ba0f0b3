"""What a watched folder makes the server do. Every look is made by the test."""

import logging
import os
import shutil
from pathlib import Path

import pytest

from aie_engine import InvalidInputError
from aie_loader import ModelRepository
from aie_reliability import ModelBusyError, RepositoryWatcher


class Control:
    """Writes down what it is asked for."""

    def __init__(self):
        self.asked = []
        self.fault = None

    def load(self, name, version=None):
        if self.fault is not None:
            raise self.fault
        self.asked.append(f"load {name} {version}")

    def unload(self, name):
        self.asked.append(f"unload {name}")

    def take(self):
        asked, self.asked = self.asked, []
        return asked


def put(path: Path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def control():
    return Control()


@pytest.fixture
def watcher(tmp_path, control):
    put(tmp_path / "m" / "1" / "model.gguf")
    repository = ModelRepository(tmp_path)
    watcher = RepositoryWatcher(repository, control, [repository.find("m")])
    watcher.look(), watcher.look()
    assert control.take() == [], "what is served already is not loaded again"
    return watcher


def looks(watcher, control, count=2):
    for _ in range(count):
        watcher.look()
    return control.take()


def test_a_version_that_is_renamed_into_place(watcher, control, tmp_path):
    put(tmp_path / "m" / "2.tmp" / "model.gguf")
    assert looks(watcher, control) == []
    os.rename(tmp_path / "m" / "2.tmp", tmp_path / "m" / "2")
    assert looks(watcher, control, 1) == [], "one look could be at something half done"
    assert looks(watcher, control, 1) == ["load m 2"]
    assert looks(watcher, control, 3) == []


def test_a_copy_in_place_is_left_alone_while_it_grows(watcher, control, tmp_path):
    for size in range(1, 4):
        put(tmp_path / "m" / "2" / "model.gguf", "x" * size)
        assert looks(watcher, control, 1) == []
    assert looks(watcher, control, 1) == ["load m 2"]


def test_a_new_model(watcher, control, tmp_path):
    put(tmp_path / "new.gguf")
    assert looks(watcher, control) == ["load new 1"]


def test_files_that_are_replaced(watcher, control, tmp_path):
    put(tmp_path / "m" / "1.tmp", "another")
    os.replace(tmp_path / "m" / "1.tmp", tmp_path / "m" / "1" / "model.gguf")
    assert looks(watcher, control) == ["load m 1"]


def test_going_back(watcher, control, tmp_path):
    put(tmp_path / "m" / "2" / "model.gguf")
    assert looks(watcher, control) == ["load m 2"]
    shutil.rmtree(tmp_path / "m" / "2")
    assert looks(watcher, control) == ["load m 1"]


def test_an_old_version_that_is_tidied_away(watcher, control, tmp_path):
    put(tmp_path / "m" / "2" / "model.gguf")
    assert looks(watcher, control) == ["load m 2"]
    shutil.rmtree(tmp_path / "m" / "1")
    assert looks(watcher, control) == []


@pytest.mark.parametrize("what", ["m", "m/1"])
def test_a_model_that_is_removed(watcher, control, tmp_path, what):
    shutil.rmtree(tmp_path / what)
    assert looks(watcher, control, 1) == []
    assert looks(watcher, control, 1) == ["unload m"]
    assert looks(watcher, control, 3) == []


def test_busy_means_at_the_next_look(watcher, control, tmp_path):
    put(tmp_path / "m" / "2" / "model.gguf")
    control.fault = ModelBusyError("busy", retry_after_s=1.0)
    assert looks(watcher, control, 3) == []
    control.fault = None
    assert looks(watcher, control, 2) == ["load m 2"]


def test_a_refusal_is_final_until_the_files_change(watcher, control, tmp_path):
    put(tmp_path / "m" / "2" / "model.gguf")
    control.fault = InvalidInputError("no")
    looks(watcher, control, 3)
    control.fault = None
    assert looks(watcher, control, 3) == []
    put(tmp_path / "m" / "2" / "model.gguf", "repaired")
    assert looks(watcher, control) == ["load m 2"]


def test_a_folder_that_is_away_for_a_while_unloads_nothing(watcher, control, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    away = tmp_path.with_name(tmp_path.name + "-away")
    os.rename(tmp_path, away)
    assert looks(watcher, control, 3) == []
    assert len(caplog.records) == 1, "said once"
    os.rename(away, tmp_path)
    assert looks(watcher, control, 3) == []


def test_the_thread_ends_with_close(control, tmp_path):
    watcher = RepositoryWatcher(ModelRepository(tmp_path), control)
    watcher.start()
    watcher.close()
    assert not watcher._thread.is_alive()
    watcher.close()
