"""Fixtures for every stage's tests."""

from pathlib import Path

import pytest

from aie_tensor import AieError


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The default model's GGUF file; tests that use it are marked `real_model` and skipped where it is missing."""
    from aie_loader import resolve

    try:
        return resolve("smollm2-135m")
    except AieError as error:
        pytest.skip(str(error))
