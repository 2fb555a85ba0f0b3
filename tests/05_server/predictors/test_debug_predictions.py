"""GET /debug/requests of models that answer at once: phases that add up, and why the batch was cut."""

from typing import Any

import numpy as np

from aie_engine import QueueFullError

ROW = [1, 2, 3, 4]
NAMED = {"X-Request-Id": "mine"}


def doubled(request: Any) -> dict[str, np.ndarray]:
    return {"out": request.inputs["x"][:3] * 2}


def test_a_finished_one(serve: Any, harness: Any, hand: Any) -> None:
    serve("plain", predictor=hand(doubled))
    assert harness.post("/predict/plain", {"input": [ROW] * 3}, **NAMED).status == 200
    found = harness.get("/debug/requests/mine").json
    assert (found["state"], found["status"], found["path"], found["model"]) == ("done", 200, "/predict/plain", "plain")
    assert (found["num_inputs"], found["batch"]) == (3, {"size": 1, "cut": "full"})
    phases = found["phases_us"]
    assert list(phases) == ["read", "validate", "gate", "pre", "queue", "compute", "gather", "post"]
    assert sum(phases.values()) == found["total_us"] and min(phases.values()) >= 0
    (entry,) = harness.get("/debug/requests").json["recent"]
    assert entry["batch"] == found["batch"] and sum(entry["phases_us"].values()) == found["total_us"]


def test_one_that_is_computed_and_one_that_was_refused(serve: Any, harness: Any, hand: Any) -> None:
    predictor = hand()
    serve("plain", predictor=predictor)
    client = harness.connect().post("/predict/plain", {"input": ROW}, NAMED)
    predictor.wait_for_requests(1)
    (entry,) = harness.get("/debug/requests").json["open"]
    assert (entry["state"], entry["status"]) == ("computing", None)
    assert sum(entry["phases_us"].values()) == entry["total_us"] and entry["phases_us"]["engine"] > 0
    predictor.answer(0, doubled(predictor.requests[0]))
    assert client.answer().status == 200
    predictor.fail_submit = QueueFullError("full", retry_after_s=1.0)
    assert harness.post("/predict/plain", {"input": ROW}, **NAMED).status == 503
    found = harness.get("/debug/requests/mine").json
    assert (found["status"], found["num_of_same_id"]) == (503, 2) and "batch" not in found
