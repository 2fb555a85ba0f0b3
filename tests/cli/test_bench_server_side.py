"""What servers of each kind say of the time in which a level ran."""

import asyncio

import pytest

from aie.bench.client import Endpoint
from aie.bench.load import LevelResult, Sampler
from aie.bench.report import summarize
from aie.bench.sections import sections
from aie.bench.server_report import server_lines, server_table
from aie.bench.server_side import ServerWatch, ServerWindow
from aie.bench.streaming_levels import print_tables

OURS = """# TYPE aie_num_requests_running gauge
aie_num_requests_running{{model_name="m"}} {running}
aie_num_requests_waiting{{model_name="m"}} {waiting}
aie_kv_cache_usage_perc{{model_name="m"}} {kv}
aie_engine_steps_total{{model_name="m"}} {steps}
aie_engine_step_requests_total{{model_name="m"}} {step_requests}
aie_prefix_cache_queries_total{{model_name="m"}} {queries}
aie_prefix_cache_hits_total{{model_name="m"}} {hits}
aie_num_preemptions_total{{model_name="m"}} {preemptions}
aie_generation_tokens_total{{model_name="m"}} {steps}
aie_time_to_first_token_seconds_bucket{{model_name="m",le="0.1"}} {fast}
aie_time_to_first_token_seconds_bucket{{model_name="m",le="+Inf"}} {fast}
aie_engine_resident_memory_bytes{{model_name="m"}} 3e8
aie_process_resident_memory_bytes 1e8
"""
FIRST = OURS.format(
    running=0, waiting=0, kv=0.1, steps=100, step_requests=100, queries=10, hits=10, preemptions=3, fast=7
)
SECOND = OURS.format(
    running=4, waiting=9, kv=0.9, steps=150, step_requests=280, queries=50, hits=20, preemptions=4, fast=8
)
LAST = OURS.format(
    running=2, waiting=1, kv=0.5, steps=200, step_requests=400, queries=110, hits=60, preemptions=5, fast=9
)


def watch(*texts, model="m"):
    """A server that answers so, one text after the other."""
    answers = list(texts)

    async def run():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + answers.pop(0).encode())
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            seconds = iter(range(100))
            endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], "", False)
            seen = ServerWatch(endpoint, model, clock=lambda: float(next(seconds)))
            return [await seen.look() for _ in texts], seen

    return asyncio.run(run())


def test_our_own_server():
    found, seen = watch(FIRST, SECOND, LAST, LAST)
    window = seen.window()
    assert found == [True] * 4 and window.server == "aie"
    assert (window.waiting_mean, window.waiting_max) == (5.0, 9.0)  # without those before and after
    assert (window.running_mean, window.running_max, window.kv_usage_max) == (3.0, 4.0, 0.9)
    assert window.mean_batch == 3.0 and window.prefix_hit_share == 0.5 and window.preemptions == 2.0
    assert window.generated_tokens == 100.0 and window.ttft_p50_ms == pytest.approx(50)  # two, below 100 ms
    assert window.memory_bytes_max == 4e8 and seen.gauges["waiting"] == 1.0


@pytest.mark.parametrize(
    ("prefix", "text", "server", "expected"),
    [
        (
            "vllm:",
            'vllm:num_requests_running{{model_name="org/m"}} {a}\nvllm:num_requests_waiting{{model_name="org/m"}} {b}\n'
            'vllm:kv_cache_usage_perc{{model_name="org/m"}} 0.25\nvllm:prefix_cache_queries_total 1{c}\n'
            "vllm:prefix_cache_hits_total {c}\n",
            "vLLM",
            {"running_mean": 5.0, "waiting_max": 7.0, "kv_usage_max": 0.25, "mean_batch": None},
        ),
        (
            "sglang:",
            'sglang:num_running_reqs{{model_name="m"}} {a}\nsglang:num_queue_reqs{{model_name="m"}} {b}\n'
            'sglang:token_usage{{model_name="m"}} 0.5\n',
            "SGLang",
            {"running_max": 5.0, "waiting_mean": 7.0, "kv_usage_max": 0.5, "preemptions": None},
        ),
        (
            "llamacpp:",
            "llamacpp:requests_processing {a}\nllamacpp:requests_deferred {b}\nllamacpp:n_decode_total {c}0\n"
            "llamacpp:n_busy_slots_per_decode {c}\nllamacpp:tokens_predicted_total {c}00\n",
            "llama-server",
            # 10 steps of 1 before, 30 of 3 on average after: 80 in 20 steps.
            {"running_mean": 5.0, "waiting_mean": 7.0, "mean_batch": 4.0, "generated_tokens": 200.0},
        ),
        (
            "vllm:",
            'vllm:num_requests_running{{model_name="m"}} {a}\nvllm:iteration_tokens_total_count {c}\n'
            "vllm:iteration_tokens_total_sum {c}0\nvllm:request_queue_time_seconds_sum {c}\n"
            "vllm:request_prefill_time_seconds_sum {c}\nvllm:request_decode_time_seconds_sum {b}\n"
            'vllm:request_queue_time_seconds_bucket{{le="0.2"}} {c}\n'
            'vllm:request_queue_time_seconds_bucket{{le="+Inf"}} {c}\n'
            'vllm:request_time_per_output_token_seconds_bucket{{le="0.02"}} {c}\n'
            'vllm:request_time_per_output_token_seconds_bucket{{le="+Inf"}} {c}\n',
            "vLLM",
            # 2 s in the queue, 2 s of prompts, 7 s of answers
            {
                "tokens_per_step": 10.0,
                "queued_p50_ms": 100.0,
                "tpot_p50_ms": 10.0,
                "phase_shares": {"queue": 2 / 11, "prefill": 2 / 11, "decode": 7 / 11},
            },
        ),
        (
            "sglang:",
            'sglang:num_running_reqs{{tp_rank="0"}} {a}\nsglang:num_running_reqs{{tp_rank="1"}} {a}\n'
            'sglang:prompt_tokens_total {c}00\nsglang:cached_tokens_total{{cache_source="device"}} {c}0\n'
            'sglang:cached_tokens_total{{cache_source="host"}} {c}5\nsglang:num_retracted_requests_total {b}\n',
            "SGLang",
            {"running_max": 5.0, "prefix_hit_share": 0.2, "preemptions": 7.0, "mean_batch": None},
        ),
        (
            "llamacpp:",
            "llamacpp:requests_processing {a}\nllamacpp:prompt_tokens_total {c}00\n"
            "llamacpp:prompt_tokens_cached_total {c}00\n",
            "llama-server",
            {"prefix_hit_share": 0.5, "prompt_tokens": 200.0},  # its prompt tokens are those that were computed
        ),
        (
            "nv_",
            'nv_inference_request_success{{model="m",version="1"}} {c}0\n'
            'nv_inference_request_failure{{model="m",version="1",reason="REJECTED"}} {c}\n'
            'nv_inference_request_failure{{model="m",version="1",reason="OTHER"}} {c}\n'
            'nv_inference_count{{model="m",version="1"}} {c}00\nnv_inference_exec_count{{model="m",version="1"}} {c}0\n'
            'nv_inference_pending_request_count{{model="m",version="1"}} {b}\n'
            'nv_inference_queue_duration_us{{model="m",version="1"}} {c}000000\n'
            'nv_inference_compute_infer_duration_us{{model="m",version="1"}} {c}000000\n'
            'nv_gpu_utilization{{gpu_uuid="a"}} 0.5\nnv_gpu_utilization{{gpu_uuid="b"}} 1\n'
            'nv_gpu_memory_used_bytes{{gpu_uuid="a"}} 1e9\nnv_gpu_memory_used_bytes{{gpu_uuid="b"}} 1e9\n'
            'nv_gpu_power_usage{{gpu_uuid="a"}} {c}0\nnv_energy_consumption{{gpu_uuid="a"}} {c}0.5\n',
            "Triton",
            {
                "ended": 20.0,
                "failed": 4.0,
                "mean_batch": 10.0,
                "waiting_max": 7.0,
                "running_max": None,
                "phase_shares": {"queue": 0.5, "infer": 0.5},
                "gpu_utilisation_mean": 0.75,
                "gpu_memory_bytes_max": 2e9,
                "gpu_power_w_mean": 30.0,
                "gpu_energy_j": 20.0,
            },
        ),
    ],
)
def test_servers_of_others(prefix, text, server, expected):
    found, seen = watch(text.format(a=0, b=0, c=1), text.format(a=5, b=7, c=3))
    window = seen.window()
    assert found == [True, True] and window.server == server
    assert all(getattr(window, name) == pytest.approx(value) for name, value in expected.items()), window


PREDICTOR = """aie_prediction_inputs_waiting{{model_name="m"}} {waiting}
aie_prediction_batches_total{{model_name="m",reason="waited"}} {waited}
aie_prediction_batches_total{{model_name="m",reason="full"}} {full}
aie_prediction_batches_total{{model_name="other",reason="full"}} 1000
aie_prediction_batch_inputs_total{{model_name="m"}} {inputs}
aie_prediction_tokens_total{{model_name="m"}} {tokens}
aie_prediction_batch_utilisation{{model_name="m"}} {utilisation}
aie_prediction_phase_seconds_sum{{model_name="m",phase="queue"}} {queue}
aie_prediction_phase_seconds_sum{{model_name="m",phase="compute"}} 1.0
aie_process_resident_memory_bytes 5e6
"""


def test_a_model_of_ours_that_answers_at_once():
    # 2 batches of 1 before (a tenth of 10), then 3 full ones of 10 and 1 of 4.
    before = PREDICTOR.format(waiting=0, waited=2, full=0, inputs=2, tokens=20, utilisation=0.1, queue=1.0)
    after = PREDICTOR.format(waiting=3, waited=3, full=3, inputs=36, tokens=700, utilisation=0.6, queue=4.0)
    seen = watch(before, after)[1].window()
    assert seen.mean_batch == 8.5 and seen.utilisation == pytest.approx(0.85)
    assert seen.reasons == {"waited": 1, "full": 3} and seen.prompt_tokens == 680
    assert seen.phase_shares == {"queue": 1.0, "compute": 0.0} and seen.waiting_max == 3.0
    assert seen.memory_bytes_max == 5_000_000
    assert server_lines("8 clients", seen) == [
        "8 clients: batches 85% full · 4 batches, cut as full 75%, waited 25% · "
        "time in the server: queue 100% · compute 0%"
    ]
    assert server_lines("8 clients", seen, is_in_table=False)[0].startswith(
        "8 clients: queue 3.0, at most 3 · batches 85%"
    )
    still = watch(after, after)[1].window()
    assert (still.mean_batch, still.utilisation, still.reasons, still.phase_shares) == (None, None, {}, {})


def test_a_server_that_tells_its_largest_batch():
    limit = 'aie_max_batch_size{model_name="m"} 12\n'
    assert watch(FIRST + limit, SECOND + limit, LAST + limit)[1].window().utilisation == 0.25


def test_lines_of_a_gpu_and_of_failures():
    assert server_lines("m", ServerWindow("Triton")) == []
    told = ServerWindow("Triton", failed=2.0, gpu_utilisation_mean=0.5, gpu_memory_bytes_max=2**31, gpu_power_w_mean=30)
    assert server_lines("m", told) == [
        "m: GPU 50% busy, 2.0 GiB used, 30 W", "m: the server counted 2 failed requests, whoever sent them.",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "<html>", "python_info 1\n"])
def test_a_server_without_such_metrics_says_nothing(text):
    found, seen = watch(text, text)
    assert found == [False, False] and seen.window() is None and seen.gauges == {}
    assert server_table([("1", None, 3.0)]) is None


def test_a_server_that_once_fails_to_answer_keeps_what_was_seen():
    _, seen = watch(FIRST, SECOND, "busy")
    sampler = Sampler(seen.endpoint, None, lambda: None)
    sampler.server = seen
    asyncio.run(sampler.look())  # nobody is there any more
    assert sampler.server is seen and seen.window().mean_batch == 3.6


def test_one_look_is_no_window():
    assert watch(FIRST)[1].window() is None


def test_among_several_models_only_the_named_one_is_meant():
    two = FIRST + 'aie_num_requests_running{model_name="other"} 5\n'
    assert watch(two, model="unknown")[0] == [False]
    assert watch(two, model="other")[0] == [True]


def test_it_stands_beside_the_clients_figures(capsys):
    _, seen = watch(FIRST, SECOND, LAST, LAST)
    sampler = Sampler(seen.endpoint, None, lambda: None)
    sampler.server = seen
    result = LevelResult(4, [], 1.0)
    sampler.add_to(result)
    row = summarize(result)
    assert (row.mean_batch, row.peak_rss_bytes) == (3.0, 400_000_000)
    print_tables([row])
    shown = capsys.readouterr().out
    assert "What aie counted meanwhile" in shown
    assert any(
        line.split() == ["4", "5.0", "9", "3.0", "4", "90%", "50%", "2", "50", "–"] for line in shown.splitlines()
    )
    assert max(map(len, shown.splitlines())) <= 80
    (*_, told) = sections({"levels": [row.as_json()], "knee": None})
    assert told.title == "What the server counted meanwhile"
    assert dict(zip(told.header, told.rows[0], strict=True))["preemptions"] == "2.00"
