"""Fixtures: a made-up CuPy for the logic, the real one for what only a GPU can show."""

import importlib.util
import sys
from pathlib import Path

import pytest

from aie_tensor import EnvironmentLacksError
from aie_tensor.memory.cuda import Device


def load(name):
    """A module beside this file; the tests are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FAKE = load("fake_cupy")


@pytest.fixture
def make_fake(monkeypatch):
    """Puts a made-up CuPy in the place of the real one, with the given capacity and number of GPUs."""

    def make(**options):
        cupy = FAKE.FakeCupy(**options)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setitem(sys.modules, "pynvml", None)
        return cupy

    return make


@pytest.fixture
def fake(make_fake):
    """A made-up CuPy with 64 MiB on each of two GPUs."""
    return make_fake()


@pytest.fixture
def made_up():
    """The same, without taking the real one's place."""
    return FAKE.FakeCupy()


@pytest.fixture
def peek():
    """(address, nbytes) → the bytes there, as an array: device memory of the made-up CuPy."""
    return FAKE.read


@pytest.fixture
def compile_kernels():
    """The script that compiles the CUDA source without a GPU."""
    return load("compile_kernels")


@pytest.fixture(scope="session")
def gpu():
    """The first GPU; skips, with the reason, where there is none that CuPy can use."""
    try:
        return Device(0)
    except EnvironmentLacksError as error:
        pytest.skip(str(error))
