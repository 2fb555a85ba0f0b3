"""One request's way through the batcher: several items, hang-ups, deadlines, failures, times, metrics."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from aie_engine import EngineDeadError, PredictorStats, QueueFullError
from aie_engine.errors import PredictionFailedError
from aie_server import AdmitRequest, Server, ServerConfig

ROW = [1, 2, 3, 4]
WAIT_S = 5.0


def wait_for(condition: Any) -> None:
    """For states that no event announces; gives up after a while."""
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.002)):
        if condition():
            return
        pause.wait(0.002)
    raise AssertionError("it did not happen")


def doubled(request: Any) -> dict[str, np.ndarray]:
    return {"out": request.inputs["x"][:3] * 2}


def test_items_of_a_request_are_requests_of_their_own(serve: Any, harness: Any, hand: Any) -> None:
    predictor = hand(doubled)
    serve("plain", predictor=predictor)
    answer = harness.post("/predict/plain", {"input": [[i, i, i, i] for i in range(20)]})
    assert [one["outputs"]["out"][0] for one in answer.json["predictions"]] == [2 * i for i in range(20)]
    assert len({request.request_id for request in predictor.requests}) == 20
    assert all(request.length == 1 and request.client for request in predictor.requests)


def test_a_long_list_has_two_batches_for_each_worker_before_the_next_request(
    serve: Any, harness: Any, hand: Any
) -> None:
    predictor = hand(max_queue=1000)
    serve("plain", predictor=predictor)
    client = harness.connect().post("/predict/plain", {"input": [ROW] * 20})
    predictor.wait_for_requests(8)
    predictor.answer(0, doubled(predictor.requests[0]))
    predictor.wait_for_requests(9)
    for index in range(1, 20):
        predictor.wait_for_requests(index + 1)
        predictor.answer(index, doubled(predictor.requests[index]))
    assert len(client.answer().json["predictions"]) == 20
    assert predictor.most_open == 8


def test_a_long_list_leaves_half_of_the_queue_to_others(serve: Any, harness: Any, hand: Any) -> None:
    predictor = hand(max_queue=8)
    serve("plain", predictor=predictor)
    client = harness.connect().post("/predict/plain", {"input": [ROW] * 10})
    for index in range(10):
        predictor.wait_for_requests(index + 1)
        predictor.answer(index, doubled(predictor.requests[index]))
    assert len(client.answer().json["predictions"]) == 10
    assert predictor.most_open <= 4


def test_a_full_queue_is_waited_for_by_whoever_is_in_it(serve: Any, harness: Any, hand: Any) -> None:
    predictor = hand()
    serve("plain", predictor=predictor)
    submit, refused = predictor.submit, []

    def full_once(request: Any) -> Any:
        if len(predictor.requests) == 2 and not refused:
            refused.append(request)
            predictor.script = doubled
            threading.Thread(target=lambda: [predictor.answer(i) for i in (0, 1)]).start()
            raise QueueFullError("full", retry_after_s=1.0)
        return submit(request)

    predictor.submit = full_once
    answer = harness.post("/predict/plain", {"input": [ROW] * 3})
    assert answer.status == 200 and len(refused) == 1 and len(predictor.requests) == 3


@pytest.mark.parametrize(
    ("error", "status"), [(QueueFullError("full", retry_after_s=1.0), 503), (EngineDeadError("dead"), 503)]
)  # fmt: skip
def test_what_the_predictor_does_not_take(serve: Any, harness: Any, hand: Any, error: Exception, status: int) -> None:
    predictor = hand()
    predictor.fail_submit = error
    serve("plain", predictor=predictor)
    answer = harness.post("/predict/plain", {"input": ROW})
    assert answer.status == status and answer.error["code"] == error.code  # type: ignore[attr-defined]


def test_a_failed_item_fails_its_request_and_frees_the_rest(serve: Any, harness: Any, hand: Any) -> None:
    predictor = hand()
    serve("plain", predictor=predictor)
    client = harness.connect().post("/predict/plain", {"input": [ROW] * 3})
    predictor.wait_for_requests(3)
    predictor.answer(0, PredictionFailedError("no numbers"))
    answer = client.answer()
    assert (answer.status, answer.error["code"]) == (500, "prediction_failed")
    for index in (1, 2):
        predictor.wait_until_resolved(index)
    text = harness.get("/metrics").body.decode()
    assert 'aie_prediction_requests_total{model_name="plain",outcome="failed"} 1' in text


def test_hang_up_cancels_what_waits(serve: Any, harness: Any, hand: Any) -> None:
    predictor = hand()
    serve("plain", predictor=predictor, config=ServerConfig(disconnect_poll_s=0.005))
    client = harness.connect().post("/predict/plain", {"input": [ROW] * 2})
    predictor.wait_for_requests(2)
    client.close()
    for index in (0, 1):
        predictor.wait_until_resolved(index)
        assert predictor.futures[index].error() is not None


def test_a_predictor_that_died_without_a_word(serve: Any, harness: Any, hand: Any) -> None:
    predictor = hand()
    serve("plain", predictor=predictor, config=ServerConfig(disconnect_poll_s=0.005, dead_engine_grace_s=0.0))
    client = harness.connect().post("/predict/plain", {"input": ROW})
    predictor.wait_for_requests(1)
    predictor.is_alive = False
    answer = client.answer()
    assert (answer.status, answer.error["code"]) == (503, "engine_died")
    health = harness.get("/health")
    assert health.status == 503 and "plain" in health.json["reason"]
    assert harness.get("/v2/health/ready").json == {"ready": False}
    assert harness.get("/v2/health/live").json == {"live": True}
    assert harness.get("/v2/models/plain/ready").status == 503


class StrictGate:
    """Lets in so many, with a deadline of no time at all."""

    default_deadline_s = 0.0

    def __init__(self) -> None:
        self.asked: list[AdmitRequest] = []

    @contextmanager
    def admit(self, request: AdmitRequest) -> Iterator[None]:
        self.asked.append(request)
        yield

    def ready(self) -> tuple[bool, str]:
        return True, ""


def test_gate_and_deadline(serve: Any, harness: Any, hand: Any) -> None:
    predictor, gate = hand(), StrictGate()
    serve("plain", predictor=predictor, gate=gate, config=ServerConfig(disconnect_poll_s=0.005, deadline_grace_s=0.0))
    assert harness.post("/predict/plain", {"input": [ROW], "inputs": {}}).status == 400
    answer = harness.post("/predict/plain", {"input": ROW})
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    assert gate.asked[-1].path == "/predict/plain"
    assert predictor.requests[0].deadline_s is not None
    predictor.wait_until_resolved(0)


def test_a_clients_own_patience(serve: Any, harness: Any, hand: Any) -> None:
    predictor = hand()
    serve("plain", predictor=predictor, config=ServerConfig(disconnect_poll_s=0.005, deadline_grace_s=0.0))
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW}
    answer = harness.post("/v2/models/plain/infer", {"inputs": [x], "parameters": {"timeout": 1}})
    assert answer.status == 504 and answer.json["code"] == "deadline_exceeded"
    assert predictor.requests[0].deadline_s is not None
    predictor.script = doubled
    harness.post("/v2/models/plain/infer", {"inputs": [x], "parameters": {"timeout": 0}})
    assert predictor.requests[1].deadline_s is None


def test_times_and_metrics(serve: Any, harness: Any, hand: Any) -> None:
    serve("plain", predictor=hand(doubled))
    answer = harness.post("/predict/plain", {"input": [ROW, ROW]})
    phases = dict(part.split(";dur=") for part in answer.headers["Server-Timing"].split(", "))
    assert list(phases) == ["pre", "queue", "compute", "post"]
    assert (phases["queue"], phases["compute"]) == ("2.000", "3.000") and float(phases["pre"]) > 0
    text = harness.get("/metrics").body.decode()
    for line in (
        'aie_prediction_phase_seconds_count{model_name="plain",phase="pre"} 1',
        'aie_prediction_requests_total{model_name="plain",outcome="ok"} 1',
        'aie_prediction_inputs_total{model_name="plain"} 2',
        'aie_prediction_inputs_waiting{model_name="plain"} 3',
        'aie_prediction_batches_total{model_name="plain",reason="full"} 2',
        'aie_prediction_batch_utilisation{model_name="plain"} 1',
        'aie_prediction_workers{model_name="plain",state="ready"} 2',
        'aie_prediction_workers{model_name="plain",state="absent"} 1',
        'aie_prediction_worker_restarts_total{model_name="plain"} 3',
        'aie_prediction_batches_resent_total{model_name="plain"} 5',
        'aie_requests_total{route="/predict/{model}",status="200"} 1',
    ):
        assert line in text, line


def test_drain_refuses(serve: Any, harness: Any, hand: Any) -> None:
    predictor = hand()
    server = serve("plain", predictor=predictor)
    client = harness.connect().post("/predict/plain", {"input": ROW})
    predictor.wait_for_requests(1)
    late = harness.connect()
    late.send(b"POST /predict/plain HTTP/1.1\r\nHost: test\r\nContent-Length: 20\r\n\r\n")
    late_body = b'{"input": [1,2,3,4]}'
    assert not predictor.is_draining
    server.begin_drain()
    assert predictor.is_draining
    late.send(late_body)
    assert late.answer().status == 503
    predictor.answer(0, doubled(predictor.requests[0]))
    assert client.answer().status == 200


def test_memory_and_what_does_not_generate(serve: Any, harness: Any) -> None:
    serve("rows", "encoder")
    held = harness.get("/debug/memory").json
    assert set(held) == {"rows", "encoder"} and all("hint" in snapshot for snapshot in held.values())
    assert set(harness.get("/debug/memory?model=rows").json) == {"rows"}
    assert harness.get("/debug/memory?model=none").status == 404
    for model, says in (
        ({}, "No model that generates text is served here."),
        ({"model": "rows"}, "The model 'rows' answers at once and generates no text; "),
        ({"model": "gpt"}, "The model 'gpt' does not exist here; there is rows, encoder."),
    ):
        answer = harness.post("/v1/completions", {"prompt": "a", **model})
        assert answer.status == 404 and answer.error["message"].startswith(says)


def test_beside_a_language_model(harness: Any, model: Any) -> None:
    harness.serve(predictors=[model("encoder")])
    assert harness.complete("hi").status == 200
    assert [one["id"] for one in harness.get("/v1/models").json["data"]] == ["fake", "encoder"]
    answer = harness.post("/v1/embeddings", {"input": "a", "model": "fake"})
    assert answer.status == 404 and "generates text" in answer.error["message"]
    assert harness.get("/health").status == 200
    assert "generates no text" in harness.complete("hi", model="encoder").error["message"]
    assert "does not exist" in harness.complete("hi", model="gpt").error["message"]
    assert set(harness.get("/debug/memory").json) == {"fake", "encoder"}


@pytest.mark.parametrize(
    ("stuck_s", "usual_s", "is_well"),
    [(4.9, 0.0, True), (5.1, 0.0, False), (5.1, 0.1, False), (9.9, 1.0, True), (10.1, 1.0, False)],
)
def test_health_notices_that_no_batch_ends(
    serve: Any, harness: Any, hand: Any, stuck_s: float, usual_s: float, is_well: bool
) -> None:
    """More than five seconds, and more than ten times what is usual there."""
    predictor = hand()
    predictor.stats = lambda: PredictorStats(stuck_s=stuck_s, usual_batch_s=usual_s, num_dropped=3)
    serve("plain", predictor=predictor)
    status = 200 if is_well else 503
    health = harness.get("/health")
    assert health.status == status
    if not is_well:
        assert health.json["reason"] == f"the predictor of plain has not finished a batch for {stuck_s:.0f} s"
    assert harness.get("/v2/health/ready").status == harness.get("/v2/models/plain/ready").status == status
    assert harness.get("/v2/health/live").status == 200
    assert 'aie_prediction_inputs_dropped_total{model_name="plain"} 3' in harness.get("/metrics").body.decode()


@pytest.mark.parametrize("given", [None, -100, 0, 7])
def test_priority_reaches_the_batcher(serve: Any, harness: Any, hand: Any, given: int | None) -> None:
    predictor = hand(doubled)
    serve("plain", predictor=predictor)
    assert harness.post("/predict/plain", {"input": ROW, "priority": given}).status == 200
    assert predictor.requests[0].priority == (given or 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict/rows", {"input": ROW}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/classify", {"input": "a"}),
    ],
)
def test_a_priority_out_of_range(serve: Any, harness: Any, path: str, body: dict[str, object]) -> None:
    serve("rows", "encoder", "classifier")
    for wrong in (101, -101, "high", 0.5):
        answer = harness.post(path, {**body, "priority": wrong})
        assert (answer.status, answer.error["param"]) == (400, "priority")


@pytest.mark.parametrize(("level", "priority"), [(0, 0), (1, -100), (100, -1), (102, 1)])
def test_levels_of_the_open_inference_protocol(serve: Any, harness: Any, hand: Any, level: int, priority: int) -> None:
    predictor = hand(doubled)
    serve("plain", predictor=predictor)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW}
    body = {"inputs": [tensor], "parameters": {"priority": level}}
    assert harness.post("/v2/models/plain/infer", body).status == 200
    assert predictor.requests[0].priority == priority
    refused = harness.post("/v2/models/plain/infer", {**body, "parameters": {"priority": 202}})
    assert refused.status == 400 and "from 1, the highest, to 201" in refused.json["error"]


def test_priority_is_no_inversion(serve: Any, harness: Any, model: Any) -> None:
    """Many of low priority wait; one of high priority comes last, and is computed before all but those under way."""
    served = model("rows", None, max_batch_size=1)
    order: list[int] = []
    gate = threading.Event()
    predictor = served.predictor
    original = predictor.submit

    def submit(request: Any) -> Any:
        future = original(request)
        future.add_done_callback(lambda _, priority=request.priority: (order.append(priority), gate.wait(WAIT_S)))
        return future

    predictor.submit = submit
    server = Server(predictors=[served], port=0)
    server.start()
    harness._servers.append(server)
    first = harness.connect(server).post("/predict/rows", {"input": ROW, "priority": 5})
    wait_for(lambda: len(order) == 1)  # the front is held by the first one's callback: all that come now wait
    low = [harness.connect(server).post("/predict/rows", {"input": ROW, "priority": 5}) for _ in range(20)]
    wait_for(lambda: predictor.stats().num_waiting == 20)
    high = harness.connect(server).post("/predict/rows", {"input": ROW, "priority": -5})
    wait_for(lambda: predictor.stats().num_waiting == 21)
    gate.set()
    assert [client.answer().status for client in (first, *low, high)] == [200] * 22
    assert order == [5, -5] + [5] * 20
