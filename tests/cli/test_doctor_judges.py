"""What `aie doctor` says of measured numbers: every verdict both ways, and the cause by its name."""

import inspect
from dataclasses import replace

import pytest

from aie.doctor.contention import judge_neighbours
from aie.doctor.first_request import judge_first
from aie.doctor.measured import (
    Company,
    FirstRequests,
    Load,
    MemoryRounds,
    Neighbours,
    Predictions,
    Refusals,
    Spikes,
)
from aie.doctor.memory_growth import judge_memory, trend
from aie.doctor.reasons import reason_of
from aie.doctor.refusals import judge_refusals
from aie.doctor.remedies import FLAGS, setting
from aie.doctor.sameness import difference, judge_company, judge_predictions
from aie.doctor.spikes import judge_spikes
from aie.doctor.throughput import judge_throughput
from aie.doctor.utilisation import judge_utilisation

QUIET = Neighbours(cores=2, server=1.2, client=0.1, others=0.05, stolen=0.0)
CROWDED = replace(QUIET, others=1.3)
URL = "http://127.0.0.1:8000"


# --- first request


@pytest.mark.parametrize(
    ("first_s", "next_s", "level"),
    [
        (0.11, [0.10, 0.09, 0.10, 0.12], "ok"),
        (0.60, [0.10, 0.09, 0.10, 0.12], "bad"),
        (0.18, [0.10, 0.09, 0.10, 0.12], "note"),
        (0.13, [0.10, 0.09, 0.10, 0.12], "ok"),  # hardly slower than the slowest: noise
        (0.60, [0.10, 0.09, 0.10, 0.55], "ok"),  # one of the next was as slow
        (0.009, [0.002, 0.002, 0.002], "ok"),  # four times, and nobody notices
        (0.60, [0.10, 0.10], "note"),  # too few to judge by
    ],
)
def test_first_request(first_s, next_s, level):
    assert judge_first(FirstRequests(first_s, next_s, "request after the start")).level == level


def test_first_request_says_what_it_paid_for():
    def text(**faults):
        return judge_first(FirstRequests(1.0, [0.1] * 4, "request", **faults)).text

    assert "made at first use" in text()
    assert "made at first use" in text(minor_faults=9, major_faults=2)
    assert "40 pages from disk" in text(minor_faults=9, major_faults=40)
    assert "first to touch 5000 pages" in text(minor_faults=5000, major_faults=0)
    assert "made at first use" in text(minor_faults=100, major_faults=0)


# --- memory

MB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "level", "says"),
    [
        ([100 * MB] * 8, "ok", "no growth shown"),
        ([100 * MB, 100 * MB + 9000, 100 * MB + 3000, 100 * MB + 8000, 100 * MB + 2000], "ok", "no growth shown"),
        ([(100 + n) * MB for n in range(8)], "bad", "125.0 MiB for a thousand"),
        ([100 * MB + n * MB + (n % 2) * MB // 2 for n in range(10)], "bad", "grows with the requests"),
        ([100 * MB, 104 * MB, 106 * MB, 107 * MB, 107 * MB, 107 * MB, 107 * MB, 107 * MB], "note", "levels off"),
        ([100 * MB, 140 * MB, 90 * MB, 150 * MB, 100 * MB, 145 * MB], "note", "too restless"),
        ([100 * MB + 1000 * n for n in range(12)], "ok", "no growth shown"),  # a kilobyte a round is nobody's leak
        ([100 * MB, 101 * MB, 102 * MB], "note", "only 3 rounds"),
    ],
)
def test_memory(sizes, level, says):
    finding = judge_memory(MemoryRounds(sizes, 8, "resident memory"), "aie", URL)
    assert (finding.level, says in finding.text) == (level, True), finding.text
    if level == "bad":
        assert f"aie memdebug --url {URL}" in finding.change


def test_blocks_that_are_used_for_the_first_time_are_no_growth():
    sizes, first_use = [(100 + n) * MB for n in range(8)], [n * MB for n in range(8)]
    finding = judge_memory(MemoryRounds(sizes, 8, "resident memory", first_use), "aie", URL)
    assert finding.level == "ok" and "7.0 MiB of it KV blocks" in finding.text


def test_memory_of_a_server_that_refuses_nearly_all_says_nothing():
    finding = judge_memory(MemoryRounds([100 * MB] * 8, 8, "memory", answered=0.1), "aie", URL)
    assert finding.level == "note" and "10% of the requests were answered" in finding.text


def test_of_other_servers_no_tool_of_ours_is_named():
    finding = judge_memory(MemoryRounds([(100 + n) * MB for n in range(8)], 8, "memory"), "vLLM", URL)
    assert finding.level == "bad" and "memdebug" not in finding.change


def test_trend_is_a_line_with_an_interval():
    line = trend([1.0, 3.0, 5.0, 7.0])
    assert line.slope == pytest.approx(2) and (line.low, line.high) == (pytest.approx(2), pytest.approx(2))
    # Of 0, 1, 1, 2: slope 0.6, rest 0.2 in 2 degrees of freedom, spread 5, t = 4.3027: ± 4.3027 √0.02.
    line = trend([0.0, 1.0, 1.0, 2.0])
    assert line.slope == pytest.approx(0.6) and line.high - line.slope == pytest.approx(4.3027 * 0.02**0.5, rel=1e-4)


# --- utilisation and its reasons


def load(clients=8, per_s=100.0, **given):
    given = {"in_flight": float(clients), "num_answered": 20, "neighbours": QUIET} | given
    return Load(clients=clients, per_s=per_s, **given)


@pytest.mark.parametrize(
    ("figures", "level", "reason", "change"),
    [
        ({"mean_batch": 6.5, "running_max": 8.0, "waiting_mean": 0.1}, "ok", None, ""),
        ({"mean_batch": 1.0, "running_max": 1.0, "waiting_mean": 7.0}, "bad", "batch", "--max-batch-size to 8"),
        ({"mean_batch": 4.0, "running_max": 4.0, "waiting_mean": 4.0}, "note", "batch", "--max-batch-size"),
        (
            {"mean_batch": 1.0, "running_max": 8.0, "waiting_mean": 7.0, "held": {"batch_full": 9}},
            "bad",
            "batch",
            "size",
        ),
        (
            {"mean_batch": 2.0, "running_max": 2.0, "waiting_mean": 6.0, "held": {"blocks": 9}},
            "bad",
            "kv",
            "--kv-memory",
        ),
        (
            {"mean_batch": 2.0, "running_max": 3.0, "waiting_mean": 5.0, "kv_usage_max": 0.98},
            "bad",
            "kv",
            "--kv-memory",
        ),
        ({"mean_batch": 2.0, "running_max": 8.0, "waiting_mean": 0.0, "preemptions": 5.0}, "bad", "kv", "--kv-memory"),
        ({"mean_batch": 2.0, "running_max": 3.0, "waiting_mean": 0.1}, "bad", "outside", "aie top"),
        ({"mean_batch": 3.0, "running_max": 8.0, "waiting_mean": 2.0, "held": {"budget": 5}}, "bad", "short", "tokens"),
        (
            {"mean_batch": 2.0, "running_max": 8.0, "neighbours": replace(QUIET, client=0.95)},
            "bad",
            "client",
            "another",
        ),
        ({"seen_batch": 0.9}, "bad", "serial", "--max-batch-size"),
        ({"seen_batch": 3.0}, "note", "serial", "--max-batch-size"),
        ({"seen_batch": 4.0}, "ok", None, ""),  # the rest of the time their prompts were computed
    ],
)
def test_utilisation(figures, level, reason, change):
    finding = judge_utilisation(load(**figures), "aie")
    assert (finding.level, finding.figures.get("reason")) == (level, reason), finding.text
    assert change in finding.change


@pytest.mark.parametrize(
    ("figures", "level", "reason", "change"),
    [
        ({"mean_batch": 4.0, "cuts": {"waited": 30.0}}, "ok", None, ""),  # the other four gather meanwhile
        ({"mean_batch": 1.0, "cuts": {"alone": 30.0}}, "bad", "passthrough", "--batcher to dynamic"),
        ({"mean_batch": 1.5, "cuts": {"waited": 30.0, "full": 1.0}}, "bad", "wait", "--max-wait-ms"),
        ({"mean_batch": 1.0, "cuts": {"full": 30.0}, "batch_limit": 1.0}, "bad", "batch", "--max-batch-size"),
        ({"mean_batch": 1.5, "cuts": {"full": 30.0}, "batch_limit": 32.0}, "bad", "short", "--max-batch-tokens"),
    ],
)
def test_utilisation_of_models_that_answer_at_once(figures, level, reason, change):
    finding = judge_utilisation(load(**figures), "aie")
    assert (finding.level, finding.figures.get("reason")) == (level, reason), finding.text
    assert change in finding.change


def test_utilisation_of_which_nothing_can_be_said():
    assert judge_utilisation(None, "aie").level == "note"
    assert "only 1 requests" in judge_utilisation(load(num_answered=1, seen_batch=1.0), "aie").text
    assert "does not apply" in judge_utilisation(load(), "aie").text
    assert "only 0.1 requests" in judge_utilisation(load(in_flight=0.1, mean_batch=1.0), "aie").text


def test_what_the_counters_do_not_explain_may_be_due_to_others():
    figures = {"mean_batch": 2.0, "running_max": 3.0, "waiting_mean": 0.1}
    assert judge_utilisation(load(**figures), "aie").level == "bad"
    crowded = judge_utilisation(load(**figures, neighbours=CROWDED), "aie")
    assert crowded.level == "note" and "other programs used 1.3" in crowded.text
    named = judge_utilisation(load(**ONE_AT_ONCE, neighbours=CROWDED), "aie")
    assert named.level == "bad" and "--max-batch-size" in named.change


def test_the_engines_own_word_goes_before_what_is_guessed():
    told = load(mean_batch=2.0, running_max=2.0, waiting_mean=6.0, kv_usage_max=0.99, held={"batch_full": 8})
    assert reason_of(told) == "batch" and reason_of(replace(told, held={})) == "kv"


# --- throughput


def curve(*per_s, last=None, **given):
    levels = [load(2**n, value, mean_batch=0.9 * 2**n, **given) for n, value in enumerate(per_s)]
    return [*levels[:-1], replace(levels[-1], **(last or {}))]


FLAT = (100, 101, 102, 103)
ONE_AT_ONCE = {"mean_batch": 1.0, "running_max": 1.0, "waiting_mean": 7.0}
FOR_BLOCKS = {"mean_batch": 1.0, "running_max": 2.0, "waiting_mean": 7.0, "held": {"blocks": 9}}


@pytest.mark.parametrize(
    ("levels", "level", "says"),
    [
        (curve(100, 180, 300, 400), "ok", "4.0 times"),
        (curve(100, 180, 300, 280), "ok", "the knee is at 4"),
        (curve(100, 180, 181, 182), "ok", "the knee is at 2"),
        (curve(*FLAT, last=ONE_AT_ONCE), "bad", "more than 1 at once"),
        (curve(*FLAT, last=FOR_BLOCKS), "bad", "KV"),
        (curve(*FLAT, neighbours=replace(QUIET, server=1.95)), "note", "keeps 1.9 of 2 cores busy already"),
        (curve(*FLAT, neighbours=replace(QUIET, server=0.9)), "bad", "threads are too few"),
        (curve(*FLAT, neighbours=replace(QUIET, server=0.9), workers=1.0), "bad", "1 worker"),
        (curve(*FLAT, neighbours=CROWDED), "note", "other programs used 1.3 of 2 cores"),
        (curve(100, 120, 300, 100, neighbours=replace(QUIET, client=0.9)), "bad", "falls under load"),
        (curve(*FLAT, neighbours=replace(QUIET, client=0.9)), "bad", "this program is the limit"),
        (curve(100, 180, 300, 400)[:1], "note", "only 1 level"),
    ],
)  # fmt: skip
def test_throughput(levels, level, says):
    finding = judge_throughput(levels, "aie", "tokens/s")
    assert (finding.level, says in finding.text) == (level, True), finding.text


def test_throughput_that_refusals_keep_flat():
    def change(refusals):
        finding = judge_throughput(curve(*FLAT), "aie", "tokens/s", refusals)
        assert finding.level == "bad" and "refused" in finding.text
        return finding.change

    assert "--rate-limit" in change(Refusals(100, too_many=50))
    assert "--max-queue" in change(Refusals(100, unavailable=50))


# --- spikes


def spikes(steady_s=(0.01,) * 700, **given):
    return Spikes(**{"steady_s": steady_s, "mixed_s": (), "streams": 4, "prompt_tokens": 256, "wall_s": 6.0,
                     "neighbours": QUIET} | given)  # fmt: skip


SPIKY = (0.01,) * 680 + (0.3,) * 20


@pytest.mark.parametrize(
    ("seen", "level", "says", "change"),
    [
        (spikes(), "ok", "P99 of the gaps with 4 at once 10 ms", ""),
        (spikes(SPIKY), "bad", "nothing that is seen from here", "--rows"),
        (spikes(SPIKY, preemptions=7.0), "bad", "7 requests were put back", "--kv-memory"),
        (spikes(SPIKY, gc_pause_s=1.4, gc_runs=20.0), "bad", "stopped it for 1400 ms in 20 runs", "gc.freeze()"),
        (spikes(SPIKY, gc_pause_s=0.001, gc_runs=20.0), "bad", "its garbage collector hardly ran", "--rows"),
        (spikes(SPIKY, neighbours=CROWDED), "bad", "other programs used 1.3", "taskset"),
        (spikes(SPIKY, neighbours=replace(QUIET, stolen=0.4)), "bad", "(steal)", "taskset"),
        (spikes(SPIKY, neighbours=replace(QUIET, throttled=0.2)), "bad", "CPU quota", ""),
        (spikes((0.01,) * 680 + (0.05,) * 20), "note", "", ""),
        (spikes((0.001,) * 680 + (0.015,) * 20), "ok", "", ""),  # fifteen times, and nobody notices
        (spikes(standstills_s=[0.2, 0.25, 0.3]), "bad", "stood still for 250 ms", "--max-prefill-tokens"),
        (spikes(standstills_s=[0.2, 0.25, 0.3], preemptions=2.0), "bad", "put back for those", "--kv-memory"),
        (spikes(SPIKY, standstills_s=[0.9, 0.9, 0.9], neighbours=CROWDED), "bad", "while a prompt is", "--max-prefill"),
        (spikes(SPIKY, standstills_s=[0.3, 0.3, 0.3], neighbours=CROWDED), "bad", "other programs", "taskset"),
        (spikes(standstills_s=[0.011, 0.012, 0.012]), "ok", "stood still for 12 ms", ""),
        (spikes(standstills_s=[0.2]), "ok", "too few long prompts", ""),
        (spikes(of="answers", mixed_s=SPIKY + SPIKY), "bad", "inputs arrived 300 ms", "--max-batch-tokens"),
        (spikes((0.01,) * 80 + (0.3,) * 20), "bad", "P90", ""),  # too few for the outermost percentile
        (spikes((0.01,) * 10), "note", "only 10 gaps", "quieter"),
        (spikes(gc_pause_s=0.002), "ok", "stopped it for 2 ms of 6 s", ""),
    ],
)  # fmt: skip
def test_spikes(seen, level, says, change):
    finding = judge_spikes(seen, "aie")
    assert (finding.level, says in finding.text, change in finding.change) == (level, True, True), finding


# --- the same answer


@pytest.mark.parametrize(
    ("case", "level", "says"),
    [
        (Company("a b", "a b", {4: "a b", 8: "a b"}), "ok", "among 4 and 8"),
        (Company("a b", "a c", {4: "a b"}), "bad", "asked again"),
        (Company("a b", "a b", {4: "a b", 8: "a c"}), "bad", "among 8 requests"),
        (Company("a b", "a b", {8: "a c"}, margin=0.004), "note", "undecided there, 0.004 nats"),
        (Company("a b", "a b", {8: "a c"}, margin=2.5), "bad", "sure there (2.50 nats)"),
        (Company("a b", "a b", {}), "note", "none was answered"),
    ],
)
def test_the_same_answer(case, level, says):
    finding = judge_company([Company("x", "x", {4: "x", 8: "x"} if case.among else {}), case])
    assert (finding.level, says in finding.text) == (level, True), finding.text
    if says == "among 8 requests":
        assert "padding_side" in finding.change
    assert judge_company([]).level == "note"


@pytest.mark.parametrize(
    ("again", "among", "level", "says"),
    [
        ([1.0, -2.0], [1.0, -2.0], "ok", "bit for bit"),
        ([1.0, -2.0], [1.0, -2.00001], "note", "rounding"),
        ([1.0, -2.0], [1.0, -1.5], "bad", "padding"),
        ([1.0, -2.0], [1.0], "bad", "padding"),
        ([1.0, -1.0], [1.0, -2.0], "bad", "computed twice"),
        ([1.0, -2.00001], [1.0, -2.0], "note", "computed twice"),
    ],
)
def test_the_same_numbers(again, among, level, says):
    finding = judge_predictions([Predictions([1.0, -2.0], again, {"in a batch": among})])
    assert (finding.level, says in finding.text + finding.change) == (level, True), finding
    assert judge_predictions([]).level == "note"


def test_difference_is_relative_to_the_largest_number():
    assert difference([100.0, 1.0], [100.0, 2.0]) == 0.01
    assert difference([0.0], [0.0]) == 0.0
    assert difference([1.0], [float("nan")]) == float("inf") == difference([], [])


# --- refusals, neighbours, remedies


def test_refusals():
    (fine,) = judge_refusals(Refusals(100), "aie")
    few, many = (judge_refusals(Refusals(100, too_many=n), "aie")[0] for n in (2, 30))
    assert (fine.level, few.level, many.level) == ("ok", "note", "bad") and "--rate-limit" in many.change
    (full,) = judge_refusals(Refusals(100, unavailable=30), "SGLang")
    assert full.level == "bad" and "--max-queued-requests" in full.change
    (failed,) = judge_refusals(Refusals(100, failed={"a": 1, "the stream was cut off": 2}), "aie")
    assert failed.level == "bad" and "3 of 100" in failed.text and "cut off" in failed.text


def test_neighbours():
    assert judge_neighbours(QUIET).level == "ok"
    assert "others 0.1" in judge_neighbours(replace(QUIET, others=0.12)).text
    for crowded, says in (
        (CROWDED, "1.3 of 2"), (replace(QUIET, others=None, load=9.0), "load average was 9.0"),
        (replace(QUIET, swapped_pages=12), "12 pages"),
    ):  # fmt: skip
        finding = judge_neighbours(crowded)
        assert finding.level == "note" and says in finding.text


def test_every_flag_that_is_recommended_is_there():
    from aie.serve import serve

    known = {f"--{name.replace('_', '-')}" for name in inspect.signature(serve).parameters}
    assert set(FLAGS["aie"].values()) | {"--max-batch-tokens", "--memdebug", "--quantize", "--threads"} <= known


def test_settings_of_other_servers_by_their_names():
    assert setting("vLLM", "batch") == "--max-num-seqs" and setting("llama-server", "kv") == "--ctx-size"
    assert "vLLM: --max-num-seqs" in setting("the server", "batch")
    assert setting("vLLM", "rate") == "its limit on requests per second"
