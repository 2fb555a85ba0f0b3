"""The engine measured without a server: every request once, so many open at a time."""

import json

import pytest

from aie.bench.engine_alone import engine_table, measure_engine
from aie.bench.options import BenchOptions
from aie.bench.streaming_plan import Traffic
from aie.main import main
from aie_engine import InvalidInputError


def test_every_token_is_counted_and_the_shares_add_up(tiny_model):
    traffic = Traffic((4, 9), (3, 6), seed=2)
    arguments = ["--kernels", "numpy", "--max-seq-len", "64", "--speculate", "0"]
    alone, together = measure_engine(str(tiny_model), [1, 3], traffic, requests=5, serve_args=arguments)
    for row, level in ((alone, 1), (together, 3)):
        assert (row.open_requests, row.requests) == (level, 5)
        assert row.output_tokens == sum(one.max_tokens for one in traffic.requests(5, level))
        assert 0 < row.python_share < 1 and row.ttft_p50_ms > 0 and row.step_ms > 0
        assert row.prompt_tokens >= 4 * 5
    assert alone.mean_batch == 1.0 < together.mean_batch <= 3.0
    assert alone.steps == alone.output_tokens  # one token per step, the first with its prompt
    assert [*engine_table([alone, together]).columns[0].cells] == ["1", "3"]


def test_flags_of_the_server_reach_the_engine(tiny_model):
    traffic = Traffic((4, 4), (2, 2))
    with pytest.raises(InvalidInputError, match="kernels"):
        measure_engine(str(tiny_model), [1], traffic, requests=1, serve_args=["--kernels", "none"])


@pytest.mark.parametrize(
    "options", [{"url": "http://x"}, {"rate": "3"}, {"slo": "ttft<1s"}, {"cancel": "0.1@2"}, {"repeat": 2}]
)
def test_what_needs_a_server_is_refused(options):
    with pytest.raises(InvalidInputError, match="--engine"):
        BenchOptions(engine=True, **options)


def test_the_command_writes_its_figures(tiny_model, tmp_path, monkeypatch, capsys):
    out = tmp_path / "engine.json"
    monkeypatch.setattr(
        "sys.argv",
        ["aie", "bench", "--engine", "--model", str(tiny_model), "--concurrency", "2", "--requests", "2",
         "--input-tokens", "4", "--output-tokens", "2", "--serve-args=--kernels numpy", "--json", str(out)],
    )  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    report = json.loads(out.read_text())
    assert report["levels"][0]["output_tokens"] == 4 and report["complete"]
    assert "The engine alone" in capsys.readouterr().out
