"""What `aie serve` is told reaches the engine's steps, and its help says what holds without being told."""

import json
import socket
from pathlib import Path
from typing import get_type_hints

import pytest
from typer.testing import CliRunner

from aie import service
from aie.app import app
from aie.assemble import engine_config
from aie.serve import serve
from aie.settings import ServeSettings, load_settings
from aie_engine import (
    EngineConfig,
    EnvironmentLacksError,
    GenerateRequest,
    InvalidInputError,
    PredictorConfig,
    SamplingParams,
)
from aie_engine.build import build_engine


def config_of(path, **flags):
    flags = {"kernels": "numpy", "kv_memory": "4MiB", "max_batch_size": 4, "speculate": 0, **flags}
    return engine_config(load_settings(flags, environ={}), path, "tiny")


def prefill_steps(config: EngineConfig, num_prompt: int) -> int:
    """In how many steps a prompt is read that comes while another request decodes."""
    parts = build_engine(config, lambda line: None)
    try:
        core = parts.core
        sampling = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        core.add(GenerateRequest("first", (5, 6, 7), sampling))
        core.step()
        core.add(GenerateRequest("long", tuple(range(20, 20 + num_prompt)), sampling))
        while core.has_work:
            core.step()
        (report,) = core.timelines.explain(["long"], core.clock()).requests
        return report.prefill_steps
    finally:
        parts.close()


def test_the_prompt_budget_of_a_step(tiny_model):
    budgets = {budget: prefill_steps(config_of(tiny_model, max_prefill_tokens=budget), 96) for budget in (0, 16, 48)}
    assert budgets[0] == prefill_steps(config_of(tiny_model), 96) == 1  # below the default, so it is read whole
    assert budgets[16] == 96 // 16
    assert budgets[16] > budgets[48] > 1


def test_the_prompt_budget_wherever_it_comes_from(tmp_path):
    def budget(settings):
        return engine_config(settings, Path("model.gguf"), "m").max_prefill_tokens

    file = tmp_path / "aie.toml"
    file.write_text("max-prefill-tokens = 64\n")
    assert budget(load_settings({}, environ={})) == EngineConfig(Path("m")).max_prefill_tokens == 256
    assert budget(load_settings({}, config_file=file, environ={})) == 64
    assert budget(load_settings({}, config_file=file, environ={"AIE_MAX_PREFILL_TOKENS": "0"})) is None
    with pytest.raises(InvalidInputError, match=r"--max-prefill-tokens is -1; it must be from 0 \(no limit\)"):
        load_settings({"max_prefill_tokens": -1}, environ={})
    with pytest.raises(InvalidInputError, match="max_prefill_tokens must be at least 1"):
        EngineConfig(Path("m"), max_prefill_tokens=0)


@pytest.fixture
def taken():
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("flag", ["port", "grpc_port"])
def test_a_port_in_use_is_known_before_a_model_is_looked_for(taken, flag, monkeypatch):
    if flag == "grpc_port":
        pytest.importorskip("grpc", reason="needs grpcio (pip install -e '.[grpc]')")

    def too_early(*_):
        raise AssertionError("a model was looked for")

    monkeypatch.setattr(service, "find_model", too_early)
    settings = load_settings({"port": 0, flag: taken}, environ={})
    with pytest.raises(EnvironmentLacksError, match=f"Port {taken} .*--{flag.replace('_', '-')}") as caught:
        service.build_service(settings)
    assert caught.value.exit_code == 3
    with pytest.raises(AssertionError, match="looked for"):
        service.build_service(load_settings({"port": 0}, environ={}))


def test_the_help_names_the_defaults_of_both_kinds_of_models():
    settings, predictor = ServeSettings(), PredictorConfig(Path("m"))
    helps = {name: hint.__metadata__[0].help for name, hint in get_type_hints(serve, include_extras=True).items()
             if hasattr(hint, "__metadata__")}  # fmt: skip
    for name in ("max_batch_size", "max_batch_tokens", "max_queue"):
        assert f"[{getattr(settings, name)}; {getattr(predictor, name)} " in helps[name]
    assert f"[{settings.max_prefill_tokens}]" in helps["max_prefill_tokens"]


@pytest.mark.parametrize(
    ("words", "environ", "what"),
    [
        (["--log-format", "json", "--port", "70000"], {}, "--port is 70000; it must be from 0 to 65535."),
        (["--log-format", "json", "--log-level", "loud"], {}, "log_level is 'loud'"),
        (["--port", "70000"], {"AIE_LOG_FORMAT": "json"}, "--port is 70000"),
        (["--log-format", "json"], {"AIE_PORT": "\n"}, "AIE_PORT gives port the value"),
        (["--log-format", "json", "--max-prefill-tokens", "9" * 20], {}, "it must be from 0 (no limit) to 1073741824."),
    ],
)
def test_settings_that_are_refused_are_an_object_for_who_asked_for_objects(words, environ, what):
    found = CliRunner().invoke(app, ["serve", *words], env={"AIE_LOG_FORMAT": None, "AIE_PORT": None, **environ})
    line = json.loads(found.stderr)
    assert (line["level"], line["logger"]) == ("error", "aie.serve")
    assert what in line["message"]
    assert found.exit_code == InvalidInputError.exit_code == 2
    assert found.stdout == ""


def test_settings_that_are_refused_are_a_sentence_for_anybody_else():
    found = CliRunner().invoke(app, ["serve", "--port", "70000"], env={"AIE_LOG_FORMAT": None})
    assert isinstance(found.exception, InvalidInputError)
