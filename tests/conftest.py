"""Fixtures for every stage's tests."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from aie_tensor import AieError
from aie_tensor.native import build as kernel_build

# For runs by hand: the kernels of every test in this process are compiled with these flags instead of for this CPU,
# "-mavx2 -mfma -mf16c" for another instruction set, "-fsanitize=address,undefined" (see tests/01_tensor/sanitize.py).
if _flags := os.environ.get("AIE_TEST_KERNEL_FLAGS"):
    kernel_build.target_flags = lambda: [tuple(_flags.split())]
    os.environ.pop("LD_PRELOAD", None)  # a sanitizer's library: this process has it, and the compiler is slow with it


# A shell starts jobs in the background with Ctrl-C ignored, and what they start inherits that; the tests of Ctrl-C
# would then wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The default model's GGUF file; tests that use it are marked `real_model` and skipped where it is missing."""
    from aie_loader import resolve

    try:
        return resolve("smollm2-135m")
    except AieError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def golden() -> list[dict[str, Any]]:
    """Twelve prompts and what transformers in float32 made of them: ids, margins, log-probabilities."""
    records: list[dict[str, Any]] = json.loads(
        (Path(__file__).parent / "golden" / "smollm2_f32.json").read_text("utf-8")
    )
    return records


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated Llama of two layers as a safetensors folder; do not change it."""
    from aie_loader import write_tiny_llama

    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a GGUF file with Q8_0 matrices; do not change it."""
    from aie_loader import write_tiny_gguf

    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny-llama.gguf")
