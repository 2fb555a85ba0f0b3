"""`aie simulate`: the real batchers on a virtual clock; sums by hand, the trap of equal lengths, wrong use."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.simulate_cost import fit_line, measure_cost, parse_cost
from aie_engine import AieError, InvalidInputError
from aie_loader import load_predictor, write_tiny_gguf
from aie_loader.graph_file import graph_to_json

COST = ("--cost", "3ms+0.05ms*tokens")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def rows(path: Path, *arguments: object) -> list[dict[str, Any]]:
    run("--json", path, *arguments)
    document: dict[str, Any] = json.loads(path.read_text())
    assert document["simulated"] is True
    return list(document["rows"])


def test_one_request_takes_its_wait_and_its_cost(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"arrival_s": 7.5, "length": 40}\n')
    row, _ = rows(tmp_path / "out.json", *COST, "--arrivals", tmp_path / "one.jsonl", "--max-wait-ms", 20)
    assert row["e2e"]["p50"] == pytest.approx(0.020 + 0.003 + 40 * 0.05e-3)
    assert row["reasons"] == {"waited": 1}


def test_equal_lengths_flatter(tmp_path: Path) -> None:
    given, equal = rows(tmp_path / "out.json", *COST, "--rate", 100, "--seconds", 10)
    assert (given["lengths"], equal["lengths"]) == ("as given", "all equal")
    assert given["padding_share"] > 0.3 > equal["padding_share"] == 0.0
    assert given["e2e"]["p99"] > 2 * equal["e2e"]["p99"]


def test_packing_and_buckets_waste_less(tmp_path: Path) -> None:
    options = (*COST, "--rate", 120, "--seconds", 10)
    off, quantiles, packed = (
        rows(tmp_path / "out.json", *options, *more)[0]
        for more in ((), ("--buckets", "quantiles:6"), ("--padding", "packed"))
    )
    assert packed["padding_share"] == 0.0 < quantiles["padding_share"] < off["padding_share"]
    assert packed["done_per_s"] > 1.3 * off["done_per_s"]


def test_the_sweep_is_a_table_and_a_curve(tmp_path: Path) -> None:
    shown = run(*COST, "--rate", "20,40", "--max-wait-ms", "0,10", "--seconds", 3, "--lengths", "uniform 8-64")
    assert "[SIMULATED] policy dynamic" in shown
    assert "as stated, not measured: 3 ms + 0.05 ms per token" in shown
    assert "o max_wait 0 ms   x max_wait 10 ms" in shown
    assert "Batch sizes at 40/s" in shown


def test_same_seed_same_figures(tmp_path: Path) -> None:
    options = (*COST, "--arrivals", "burst", "--seconds", 5)
    first, again, other = (rows(tmp_path / "out.json", *options, "--seed", seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("policy", ["dynamic", "static", "passthrough", "continuous"])
@pytest.mark.parametrize("outputs", ["fixed 1", "uniform 1-9"])
def test_every_policy_serves_everybody(tmp_path: Path, policy: str, outputs: str) -> None:
    options = ("--policy", policy, "--outputs", outputs, "--rate", 20, "--seconds", 4.98, "--arrivals", "constant")
    for row in rows(tmp_path / "out.json", *COST, *options):
        assert (row["num_done"], row["num_refused"], row["num_expired"]) == (99, 0, 0)


def test_impatient_requests_are_counted(tmp_path: Path) -> None:
    options = ("--rate", 400, "--seconds", 5, "--patience-ms", 100, "--max-queue", 50)
    row, _ = rows(tmp_path / "out.json", *COST, *options)
    assert row["num_expired"] > 0 < row["num_refused"]
    assert row["num_done"] + row["num_expired"] + row["num_refused"] == pytest.approx(2000, rel=0.1)


def test_requests_that_fit_no_batch_are_lost_and_not_the_simulation(tmp_path: Path) -> None:
    options = ("--lengths", "fixed 600", "--max-len", 1000, "--max-batch-tokens", 500, "--seconds", 5)
    row, _ = rows(tmp_path / "out.json", *COST, *options)
    assert row["num_done"] == 0 < row["num_refused"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give the cost of a batch"),
        ((*COST, "--measure", "minilm-l6"), "give the cost of a batch"),
        (("--cost", "3+1*token"), "write it as"),
        (("--cost", "0+0*tokens"), "must cost something"),
        ((*COST, "--policy", "best"), "policy is 'best'; it must be one of continuous, dynamic"),
        ((*COST, "--padding", "round"), "padding is 'round'"),
        ((*COST, "--buckets", "5,x"), "--buckets is '5,x'"),
        ((*COST, "--buckets", "quantiles:0"), "quantiles takes 1 to 64"),
        ((*COST, "--rate", "nan"), "--rate is 'nan'"),
        ((*COST, "--rate", "1e7"), "at most 500000 are simulated"),
        ((*COST, "--seconds", "-1"), "above 0"),
        ((*COST, "--rate", "0.01", "--seconds", "1"), "nobody came in 1 s"),
        ((*COST, "--max-wait-ms", ""), "--max-wait-ms is ''"),
        ((*COST, "--max-wait-ms", ",".join(map(str, range(65)))), "more than 64 simulations"),
        ((*COST, "--lengths", "normal(1,2)"), "lengths is 'normal"),
        ((*COST, "--lengths", "uniform 9-3"), "lengths are from 1"),
        ((*COST, "--lengths", "lognormal(900,1)"), "mu from -20 to 20"),
        ((*COST, "--arrivals", "often"), "--arrivals is 'often'"),
        ((*COST, "--arrivals", "not-here.jsonl"), "not-here.jsonl cannot be read"),
        ((*COST, "--preferred", "64"), "sizes are from 1 to max_batch_size"),
        ((*COST, "--patience-ms", "0"), "--patience-ms must be above 0"),
        ((*COST, "--max-batch-size", "0"), "max_batch_size must be at least 1"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(AieError, match=message.replace("(", r"\(")) as caught:
        run(*arguments)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"arrival_s": 1}', "length must be a number from 1"),
        ('{"arrival_s": "now", "length": 3}', "arrival_s must be a number"),
        ('{"arrival_s": NaN, "length": 3}', "arrival_s must be a number"),
        ('{"arrival_s": 1, "length": 3, "patience_s": -1}', "patience_s must be a number"),
    ],
)
def test_recorded_file_is_refused_by_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_text('{"arrival_s": 0, "length": 3}\n' + line + "\n")
    with pytest.raises(InvalidInputError, match=f"line 2: {message}"):
        run(*COST, "--arrivals", path)


def test_cost_in_any_unit() -> None:
    for text in ("3ms+0.05ms*tokens", "3 + 50us * tokens", "0.003s+5e-5s*tokens"):
        cost = parse_cost(text)
        assert (cost.per_batch_s, cost.per_token_s) == (pytest.approx(3e-3), pytest.approx(5e-5))


def test_the_line_through_exact_points_is_exact() -> None:
    points = [(tokens, 0.004 + 2e-5 * tokens) for tokens in (8, 64, 512, 2048)]
    assert fit_line(points) == (pytest.approx(0.004), pytest.approx(2e-5))


def test_readme_shows_what_the_command_really_prints() -> None:
    readme = (Path(__file__).parents[2] / "stages" / "03_scheduler" / "README.md").read_text(encoding="utf-8")
    command, _, shown = readme.split("$ aie simulate ")[1].split("```")[0].partition("\n")
    printed = run(*command.split())
    assert shown.strip() == printed[: printed.index("\n", printed.index("29–32"))].strip()


def test_cost_is_measured_on_models_of_items_and_of_texts_alike(tmp_path: Path) -> None:
    weights = {"a.weight": np.ones((16, 8), np.float32), "b.weight": np.ones((3, 16), np.float32)}
    np.savez(tmp_path / "weights.npz", **weights)
    graph = load_predictor(tmp_path / "weights.npz", input_shape=(8,)).graph
    (tmp_path / "graph.json").write_text(json.dumps(graph_to_json(graph)))
    cost, miss = measure_cost(str(tmp_path), num_threads=1)
    assert cost.per_batch_s > 0 <= cost.per_token_s
    assert miss >= 0


def test_cost_of_a_generating_model_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="generates text; --measure is for encoders"):
        measure_cost(str(write_tiny_gguf(tmp_path / "tiny.gguf")), num_threads=1)


def test_a_shared_beginning_is_computed_once(tmp_path: Path) -> None:
    traffic = ("--policy", "continuous", "--outputs", "fixed 16", "--rate", 4, "--seconds", 10)
    plain, _ = rows(tmp_path / "out.json", "--cost", "6ms+0.9ms*tokens", *traffic)
    shared, _ = rows(tmp_path / "out.json", "--cost", "6ms+0.9ms*tokens", *traffic, "--shared-prefix", 400)
    assert (plain["num_hit_tokens"], shared["num_done"]) == (0, plain["num_done"])
    assert shared["num_hit_tokens"] == 400 * (shared["num_done"] - 1)
    assert "%, 0" in run("--cost", "6ms+0.9ms*tokens", *traffic, "--shared-prefix", 400)


def test_a_small_cache_preempts(tmp_path: Path) -> None:
    traffic = ("--policy", "continuous", "--outputs", "fixed 200", "--rate", 20, "--seconds", 5)
    small, _ = rows(tmp_path / "out.json", "--cost", "6ms+0.9ms*tokens", *traffic, "--kv-tokens", 2000)
    assert small["num_preemptions"] > 0
    assert small["num_refused"] == 0
