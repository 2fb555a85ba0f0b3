"""The model repository protocol on the wire, and what an exchange of models does to requests and figures."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from aie_engine import AieError, EngineStats, InvalidInputError
from aie_server import LoadFigures, LoadReport, ServedModel, VersionState

PATH = "/v2/repository/models"


class Pending:
    """A load that ends when the test says so."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version
        self.ended = threading.Event()
        self.error: AieError | None = None

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.ended.wait(timeout_s)

    def result(self) -> LoadReport:
        if self.error is not None:
            raise self.error
        return LoadReport(self.name, self.version, 0.25, "1")


class Control:
    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.pending = Pending("fake", "2")
        self.pending.ended.set()
        self.fault: AieError | None = None

    def load(self, name: str, version: str | None = None) -> Pending:
        self.asked.append(("load", name, version or ""))
        if self.fault is not None:
            raise self.fault
        return self.pending

    def unload(self, name: str) -> None:
        self.asked.append(("unload", name))
        if self.fault is not None:
            raise self.fault

    def index(self) -> Sequence[VersionState]:
        return [VersionState("fake", "1", "READY"), VersionState("fake", "2", "UNAVAILABLE", "it is truncated")]

    def figures(self) -> Mapping[str, LoadFigures]:
        return {"fake": LoadFigures(3, 1, 2.5, 2)}


@pytest.fixture
def control() -> Control:
    return Control()


def test_index(harness: Any, control: Control) -> None:
    harness.serve(control=control)
    ready = {"name": "fake", "version": "1", "state": "READY", "reason": ""}
    broken = {"name": "fake", "version": "2", "state": "UNAVAILABLE", "reason": "it is truncated"}
    assert harness.get("/v2/repository/index").json == [ready, broken]
    assert harness.post("/v2/repository/index", b"").json == [ready, broken]
    assert harness.post("/v2/repository/index", {}).json == [ready, broken]
    assert harness.post("/v2/repository/index", {"ready": True}).json == [ready]


def test_load(harness: Any, control: Control) -> None:
    harness.serve(control=control)
    answer = harness.post(f"{PATH}/fake/load", b"")
    assert answer.status == 200
    assert answer.json == {
        "name": "fake", "version": "2", "state": "READY", "reason": "", "previous_version": "1", "load_s": 0.25,
    }  # fmt: skip
    harness.post(f"{PATH}/org%2Ffake/load", {"parameters": {"version": "7", "config": "of others, ignored"}})
    assert control.asked == [("load", "fake", ""), ("load", "org/fake", "7")]


def test_load_without_waiting(harness: Any, control: Control) -> None:
    harness.serve(control=control)
    control.pending.ended.clear()
    answer = harness.post(f"{PATH}/fake/load", {"parameters": {"wait": False}})
    assert (answer.status, answer.json["state"]) == (202, "LOADING")


def test_health_while_a_load_is_waited_for(harness: Any, control: Control) -> None:
    harness.serve(control=control)
    control.pending.ended.clear()
    waiting = harness.connect().post(f"{PATH}/fake/load", {})
    assert harness.get("/health").status == 200
    assert harness.complete().status == 200
    control.pending.ended.set()
    assert waiting.answer().status == 200


def test_who_hangs_up_gives_up_waiting_not_the_load(harness: Any, control: Control) -> None:
    harness.serve(control=control)
    control.pending.ended.clear()
    harness.connect().post(f"{PATH}/fake/load", {}).close()
    # The harness finds no thread left behind: the handler has noticed.


def test_unload(harness: Any, control: Control) -> None:
    harness.serve(control=control)
    assert harness.post(f"{PATH}/fake/unload", {"parameters": {"unload_dependents": True}}).json == {}
    assert control.asked == [("unload", "fake")]


class BusyError(AieError):
    status, code, retry_after_s = 409, "model_busy", 2.0


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (InvalidInputError("it is truncated"), 400, "invalid_input"),
        (BusyError("it is being loaded"), 409, "model_busy"),
    ],
)
def test_errors_are_the_protocols(harness: Any, control: Control, fault: AieError, status: int, code: str) -> None:
    harness.serve(control=control)
    control.fault = fault
    for verb in ("load", "unload"):
        answer = harness.post(f"{PATH}/fake/{verb}", {})
        assert (answer.status, answer.json) == (status, {"error": str(fault), "code": code})
        assert answer.headers.get("Retry-After") == ("2" if status == 409 else None)


@pytest.mark.parametrize(
    "body", [b"[", [], {"parameters": 1}, {"parameters": {"version": 2}}, {"parameters": {"wait": 1}}]
)
def test_wrong_bodies(harness: Any, control: Control, body: object) -> None:
    harness.serve(control=control)
    answer = harness.post(f"{PATH}/fake/load", body)
    assert answer.status == 400 and isinstance(answer.json["error"], str) and control.asked == []


def test_keys_routes_and_methods(harness: Any, control: Control) -> None:
    harness.serve(control=control, api_keys=["secret"])
    for path in (f"{PATH}/fake/load", f"{PATH}/fake/unload", "/v2/repository/index"):
        assert harness.post(path, {}).status == 401
        assert harness.post(path, {}, Authorization="Bearer secret").status == 200
    assert harness.get(f"{PATH}/fake/load", Authorization="Bearer secret").status == 405
    for path in (f"{PATH}/fake", f"{PATH}/load", f"{PATH}//load", f"{PATH}/fake/load/more"):
        assert harness.post(path, {}, Authorization="Bearer secret").status == 404
    assert control.asked == [("load", "fake", ""), ("unload", "fake")]


def test_a_server_whose_models_stay_has_no_such_routes(harness: Any) -> None:
    harness.serve()
    assert harness.post(f"{PATH}/fake/load", {}).status == 404


def test_a_request_ends_on_the_version_it_began_with(harness: Any, make_engine: Any, script: Any) -> None:
    server = harness.serve(make_engine())
    client = harness.connect().post("/v1/completions", {"prompt": "hi", "stream": True, "max_tokens": 10})
    harness.engine.emit("one ")
    client.head()
    words: list[str] = []
    old = server.models.put(ServedModel("fake", make_engine(script("new")), harness.text, version="2"))
    old.retire(lambda: words.append("unused"))
    assert harness.complete().json["choices"][0]["text"] == "new"
    assert harness.get("/v1/models").json["data"][0]["version"] == "2" and words == []
    harness.engine.emit("two", finish_reason="length")
    events = client.answer_of_chunks().events
    text = "".join(choice["text"] for event in events[:-1] for choice in event["choices"])
    assert (text, words) == ("one two", ["unused"])


@pytest.mark.parametrize("how", ["error", "refused", "hang-up", "invalid", "too long"])
def test_a_lease_is_given_back_however_a_request_ends(harness: Any, make_engine: Any, how: str) -> None:
    engine = make_engine()
    server = harness.serve(engine)
    fields: dict[str, object] = {"prompt": "hi", "stream": True, "max_tokens": 10}
    if how == "refused":
        engine.fail_submit = InvalidInputError("no")
    if how == "invalid":
        fields["temperature"] = "hot"
    if how == "too long":
        fields["prompt"] = "a" * 1000
    client = harness.connect().post("/v1/completions", fields)
    if how == "error":
        engine.emit(finish_reason="deadline")
    if how == "hang-up":
        engine.emit("a")
        client.head()
        client.close()
        engine.wait_for_cancel()
    else:
        client.answer()
    unused = threading.Event()
    server.models.remove("fake").retire(unused.set)
    assert unused.wait(5), "somebody still holds it"
    assert harness.complete().error["code"] == "model_not_found"
    assert harness.get("/health").json["reason"] == "no model is loaded"


def metric(harness: Any, name: str) -> str | None:
    lines = harness.get("/metrics").body.decode().splitlines()
    return next((line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"aie_{name} ")), None)


def test_figures_of_loads(harness: Any, control: Control) -> None:
    harness.serve(control=control)
    model = '{model_name="fake"}'
    names = ("model_loads_total", "model_load_failures_total", "model_load_seconds_total", "model_versions")
    assert [metric(harness, name + model) for name in names] == ["3", "1", "2.5", "2"]


def test_totals_go_on_over_an_exchange_and_gauges_end_with_their_model(harness: Any, make_engine: Any) -> None:
    server = harness.serve(make_engine())
    steps, running = 'engine_steps_total{model_name="fake"}', 'num_requests_running{model_name="fake"}'
    harness.engine.figures = EngineStats(steps=10)
    assert metric(harness, steps) == "10"
    new = make_engine()
    new.figures = EngineStats(steps=25, num_running=1)
    server.models.put(ServedModel("fake", new, harness.text, version="2"))
    assert (metric(harness, steps), metric(harness, running)) == ("35", "1")
    assert metric(harness, steps) == "35"
    server.models.remove("fake")
    assert (metric(harness, steps), metric(harness, running)) == ("35", None)


def test_a_files_name_that_is_no_utf8_can_be_told(harness: Any, control: Control) -> None:
    harness.serve(control=control)
    control.fault = InvalidInputError("/models/\udcff/1 cannot be read.")
    answer = harness.post(f"{PATH}/fake/load", {})
    assert (answer.status, answer.json["error"]) == (400, "/models/?/1 cannot be read.")
