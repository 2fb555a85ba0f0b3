"""Metrics of a server as text, looks made of them, and a server that answers what a test says."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from aie.top.figures import figures_of
from aie.top.history import History
from aie.top.look import Look, Requests
from aie.top.prometheus import parse

OURS = """\
# HELP aie_num_requests_running Requests in the running batch.
# TYPE aie_num_requests_running gauge
aie_num_requests_running{{model_name="tiny"}} 3
aie_num_requests_waiting{{model_name="tiny"}} 2
aie_kv_cache_usage_perc{{model_name="tiny"}} 0.75
aie_kv_blocks{{model_name="tiny",state="used"}} 60
aie_kv_blocks{{model_name="tiny",state="free"}} 20
aie_prompt_tokens_total{{model_name="tiny"}} {prompt}
aie_generation_tokens_total{{model_name="tiny"}} {generated}
aie_prefix_cache_queries_total{{model_name="tiny"}} {prompt}
aie_prefix_cache_hits_total{{model_name="tiny"}} {hits}
aie_spec_decode_num_draft_tokens_total{{model_name="tiny"}} 0
aie_spec_decode_num_accepted_tokens_total{{model_name="tiny"}} 0
aie_num_preemptions_total{{model_name="tiny"}} {preempted}
aie_engine_steps_total{{model_name="tiny"}} {steps}
aie_engine_step_requests_total{{model_name="tiny"}} {step_requests}
aie_engine_step_seconds_total{{model_name="tiny"}} 2
aie_engine_execute_seconds_total{{model_name="tiny"}} 1.5
aie_engine_resident_memory_bytes{{model_name="tiny"}} 104857600
aie_time_to_first_token_seconds_bucket{{model_name="tiny",le="0.1"}} {fast}
aie_time_to_first_token_seconds_bucket{{model_name="tiny",le="0.5"}} {all}
aie_time_to_first_token_seconds_bucket{{model_name="tiny",le="+Inf"}} {all}
aie_time_to_first_token_seconds_count{{model_name="tiny"}} {all}
aie_prediction_inputs_waiting{{model_name="mini"}} 4
aie_prediction_inputs_running{{model_name="mini"}} 8
aie_prediction_inputs_total{{model_name="mini"}} {prompt}
aie_prediction_batch_inputs_total{{model_name="mini"}} {prompt}
aie_prediction_batches_total{{model_name="mini",reason="full"}} {steps}
aie_prediction_batches_total{{model_name="mini",reason="waited"}} 10
aie_prediction_phase_seconds_bucket{{model_name="mini",phase="queue",le="0.01"}} {all}
aie_prediction_phase_seconds_bucket{{model_name="mini",phase="queue",le="+Inf"}} {all}
aie_prediction_batch_utilisation{{model_name="mini"}} 0.5
aie_process_resident_memory_bytes 52428800
"""
FIRST = {
    "prompt": 100, "generated": 50, "hits": 0, "preempted": 0, "steps": 10, "step_requests": 10, "fast": 10, "all": 10,
}  # fmt: skip
SECOND = {
    "prompt": 500, "generated": 450, "hits": 300, "preempted": 2, "steps": 50, "step_requests": 130, "fast": 60,
    "all": 210,
}  # fmt: skip

LLAMA = """\
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 5
llamacpp:prompt_tokens_total 6886
llamacpp:tokens_predicted_total 3469
llamacpp:n_decode_total 100
llamacpp:n_busy_slots_per_decode 1.75
"""


LISTING: dict[str, Any] = {
    "open": [
        {
            "request_id": "waits", "state": "waiting", "status": None, "total_us": 3_200_000, "prompt_tokens": 120,
            "generated_tokens": 0, "phases_us": {"blocks": 3_000_000, "turn": 200_000}, "stalled_by": [],
            "held_by": [{"who": "big", "us": 3_000_000, "blocks": 44}],
        },
        {
            "request_id": "runs", "state": "decode", "status": None, "total_us": 9_000_000, "prompt_tokens": 7,
            "generated_tokens": 40, "phases_us": {"decode": 6_000_000, "stalled": 3_000_000}, "held_by": [],
            "stalled_by": [{"who": "waits", "us": 3_000_000}], "preemptions": 2,
        },
    ],
    "recent": [
        {"request_id": "went", "state": "done", "status": 200, "total_us": 850, "phases_us": {"queue": 850},
         "num_inputs": 3, "batch": {"size": 8, "cut": "full"}},
    ],
    "queues": {
        "tiny": {"request_id": "waits", "reason": "blocks", "for_us": 3_000_000, "blocks_needed": 9, "blocks_free": 2,
                 "holders": [{"who": "big", "blocks": 44}]},
    },
    "num_open_of_others": 3,
    "unanswered": {},
}  # fmt: skip


def look_of(text: str, at_s: float, requests: Any = None, why: str | None = None) -> Look:
    figures = figures_of(parse(text))
    assert figures is not None
    return Look(at_s, figures, Requests(**requests) if requests else None, why)


def history_of(*looks: Look) -> History:
    history = History()
    for look in looks:
        history.add(look)
    return history


def text_of(picture: Any, width: int = 120, height: int | None = None) -> str:
    out = StringIO()
    Console(file=out, width=width, height=height, markup=False, emoji=False, highlight=False).print(picture)
    return out.getvalue()


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that gives these answers, one for each connection, and then hangs up on everybody."""
    listener = socket.create_server(("127.0.0.1", 0))
    left = list(answers)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(left.pop(0) if left else b"")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def http(body: str | bytes, status: str = "200 OK") -> bytes:
    data = body.encode() if isinstance(body, str) else body
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data


@pytest.fixture
def top() -> SimpleNamespace:
    """All of the above, by name."""
    names = (OURS, FIRST, SECOND, LLAMA, LISTING)
    return SimpleNamespace(
        **dict(zip(("OURS", "FIRST", "SECOND", "LLAMA", "LISTING"), names, strict=True)),
        METRICS=http(OURS.format(**FIRST)), look_of=look_of, history_of=history_of, text_of=text_of,
        answering=answering, http=http, first=partial(look_of, OURS.format(**FIRST)),
        second=partial(look_of, OURS.format(**SECOND)),
    )  # fmt: skip
