"""`aie top`: the text format, the names that servers use, and what the figures between two looks come to."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from aie.top.figures import figures_of, rates
from aie.top.prometheus import Buckets, parse
from aie.top.summary import summaries

VLLM = """\
vllm:num_requests_running{engine="0",model_name="big"} 7.0
vllm:num_requests_running{engine="1",model_name="big"} 1.0
vllm:num_requests_waiting{engine="0",model_name="big"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="big"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="big"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="big"} 250.0
vllm:generation_tokens_total{engine="0",model_name="big"} 1.2e+03
vllm:time_per_output_token_seconds_bucket{engine="0",le="0.01",model_name="big"} 100.0
vllm:time_per_output_token_seconds_bucket{engine="0",le="+Inf",model_name="big"} 100.0
process_resident_memory_bytes 1.0e+09
"""
SGLANG = """\
sglang:num_running_reqs{model_name="meta/Llama"} 161.0
sglang:num_queue_reqs{model_name="meta/Llama"} 2826.0
sglang:token_usage{model_name="meta/Llama"} 0.28
sglang:cache_hit_rate{model_name="meta/Llama"} 0.0075
sglang:generation_tokens_total{model_name="meta/Llama"} 7.5e+06
"""
LLAMA = """\
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 5
llamacpp:prompt_tokens_total 6886
llamacpp:tokens_predicted_total 3469
llamacpp:n_decode_total 100
llamacpp:n_busy_slots_per_decode 1.75
"""


# The text format


def test_the_format_is_read_as_the_client_library_reads_it() -> None:
    registry = CollectorRegistry()
    Counter("c", "Counts\nlines.", ["who"], registry=registry).labels('a"b\\c\nd{},=').inc(2.5)
    histogram = Histogram("h", "Measures.", ["m"], buckets=(0.1, 1.0), registry=registry)
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.labels("x").observe(value)
    text = generate_latest(registry).decode()
    ours = parse(text)
    theirs = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert theirs and all((dict(one.labels), one.value) in ours.samples[one.name] for one in theirs)
    assert ours.buckets("h", m="x") == Buckets((0.1, 1.0, float("inf")), (2, 3, 4))
    assert ours.total("nothing") is None and ours.buckets("nothing") is None
    assert parse("a 1 1700000000\nb NaN\nc +Inf\nd{} 3\n# EOF\n").total("a") == 1


@pytest.mark.parametrize("text", ["", "# TYPE a gauge\n", "<html>hello</html>", "a\n", "a b c", '{"a": 1}', "a{b=1 2"])
def test_what_is_no_such_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d|no sample"):
        parse(text)


def test_quantiles_by_a_straight_line_in_the_bucket() -> None:
    buckets = Buckets((0.1, 0.2, 0.4, float("inf")), (10, 30, 30, 40))
    assert buckets.quantile(0.25) == pytest.approx(0.1)
    assert buckets.quantile(0.5) == pytest.approx(0.15)
    assert buckets.quantile(0.99) == 0.4, "above the last bound nothing is known"
    assert Buckets((0.1,), (0,)).quantile(0.5) is None
    before = Buckets((0.1, 0.2, 0.4, float("inf")), (10, 10, 10, 20))
    assert buckets.since(before).counts == (0, 20, 20, 20)
    assert buckets.since(Buckets(buckets.bounds, (50, 50, 50, 50))) == buckets, "the server began anew"
    assert buckets.since(Buckets((1.0,), (1,))) == buckets


# Figures


def test_rates_and_percentiles_between_two_looks(top: Any) -> None:
    history = top.history_of(top.first(10.0), top.second(14.0))
    tiny, mini = sorted(summaries(history), key=lambda one: one.model.name, reverse=True)
    assert (tiny.generated_per_s, tiny.prompt_per_s, tiny.preemptions, tiny.steps_per_s) == (100.0, 100.0, 2, 10.0)
    assert (tiny.hit_share, tiny.mean_batch, tiny.accepted_share, tiny.execute_share) == (0.75, 3.0, None, None)
    ttft = tiny.latencies["ttft"]
    assert ttft.count == 200 and ttft.p50 == pytest.approx(100 + 400 * 50 / 150)
    assert tiny.latencies.keys() == {"ttft"} and mini.latencies.keys() == {"queue"}
    assert mini.model.is_predictor and (mini.inputs_per_s, mini.mean_batch) == (100.0, 10.0)
    assert mini.cuts == {"full": 1.0}, "of the batches of this time"


def test_few_observations_make_no_percentile(top: Any) -> None:
    history = top.history_of(top.first(10.0))
    tiny = next(one for one in summaries(history) if one.model.name == "tiny")
    assert tiny.latencies["ttft"].count == 10
    assert tiny.latencies["ttft"].p90 is not None and tiny.latencies["ttft"].p99 is None
    assert tiny.generated_per_s is None and tiny.window_s is None and tiny.seconds is None


def test_a_server_that_was_started_anew_counts_from_nothing(top: Any) -> None:
    before, now = (figures_of(parse(top.OURS.format(**facts))) for facts in (top.SECOND, top.FIRST))
    assert before is not None and now is not None
    found = rates(before.models["tiny"], now.models["tiny"], 2.0)
    assert found.per_s("generated_tokens") == 25.0 and found.histograms["ttft"].count == 10


def test_the_window_moves_on(top: Any) -> None:
    history = top.history_of(*(top.first(float(at)) for at in range(0, 100, 7)))
    assert history.lately("tiny").seconds == 35.0 and history.latest("tiny").seconds == 7.0


@pytest.mark.parametrize(
    ("text", "server", "name", "expected"),
    [
        (VLLM, "vLLM", "big", {"running": 8, "waiting": 4, "kv_usage": 0.5}),
        (SGLANG, "SGLang", "meta/Llama", {"running": 161, "waiting": 2826, "kv_usage": 0.28, "hit_rate": 0.0075}),
        (LLAMA, "llama-server", "", {"running": 2, "waiting": 5, "mean_batch": 1.75}),
    ],
)
def test_other_servers_names(text: str, server: str, name: str, expected: dict[str, float]) -> None:
    figures = figures_of(parse(text))
    assert figures is not None and figures.server == server
    gauges = figures.models[name].gauges
    assert {key: gauges[key] for key in expected} == expected
    assert "generated_tokens" in figures.models[name].counters


def test_what_serves_no_models() -> None:
    assert figures_of(parse("node_cpu_seconds_total 1\nup 1\n")) is None


@pytest.mark.parametrize("prefix", ["vllm:", "my_"])
def test_ours_under_another_prefix(top: Any, prefix: str) -> None:
    figures = figures_of(parse(top.OURS.format(**top.FIRST).replace("aie_", prefix)))
    assert figures is not None and figures.server == "aie"
    gauges = figures.models["tiny"].gauges
    assert (gauges["running"], gauges["waiting"], gauges["kv_usage"]) == (3, 2, 0.75)
