"""A model whose file breaks a rule is served when that rule, by name, is waived, and not before."""

from pathlib import Path

import pytest

from aie_engine import EngineConfig, GenerateRequest, InvalidInputError, LocalEngine, SamplingParams, load_text_model
from aie_loader import write_tiny_gguf


def test_a_waived_rule_holds_for_weights_and_text(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(InvalidInputError, match="trailing-bytes"):
        load_text_model(path)
    with pytest.raises(InvalidInputError, match="trailing-bytes"):
        LocalEngine(EngineConfig(path, kernels="numpy"))
    text = load_text_model(path, lenient=("trailing-bytes",))
    engine = LocalEngine(EngineConfig(path, kernels="numpy", lenient=("trailing-bytes",), max_batch_size=1))
    prompt = tuple(text.tokenizer.encode("The queue"))
    stream = engine.submit(GenerateRequest("r", prompt, SamplingParams(temperature=0.0, max_tokens=2)))
    assert [event.finish_reason for event in stream][-1] is not None
    engine.close()


def test_an_unknown_rule_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no difference named 'all'"):
        EngineConfig(tmp_path / "none.gguf", lenient=("all",))
