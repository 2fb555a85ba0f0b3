"""The service on a port of its own, asked by grpcio with nothing but bytes."""

import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aie_engine import EngineDeadError, EnvironmentLacksError, QueueFullError
from aie_engine.errors import PredictionFailedError
from aie_server import AddressInUseError, HttpLimits, LoadReport, ModelTable, Server, ServerConfig, VersionState
from aie_server.grpc import listener
from aie_server.grpc.protocol import METHODS, SERVICE
from aie_server.grpc.schema import Values, decode, encode

grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install -e '.[grpc]'")

WAIT_S = 5.0
ROWS = [[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]]
X = {"name": "x", "datatype": "FP32", "shape": [2, 4]}
RAW = struct.pack("<8f", *ROWS[0], *ROWS[1])
INFER = {"model_name": "rows", "id": "7", "inputs": [X], "raw_input_contents": [RAW]}
ONE = {"model_name": "plain", "inputs": [{**X, "shape": [1, 4]}], "raw_input_contents": [RAW[:16]]}


class Client:
    def __init__(self, server: Server) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")

    def begin(self, method: str, message: bytes | Values = b"", **kwargs: Any) -> Any:
        raw = message if isinstance(message, bytes) else encode(METHODS[method][0], message)
        return self.channel.unary_unary(f"/{SERVICE}/{method}").future(raw, timeout=WAIT_S, **kwargs)

    def ask(self, method: str, message: bytes | Values = b"", **kwargs: Any) -> Values:
        return decode(METHODS[method][1], self.begin(method, message, **kwargs).result())

    def fail(self, method: str, message: bytes | Values = b"", **kwargs: Any) -> tuple[str, str]:
        return failure(self.begin(method, message, **kwargs))


def failure(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call.result()
    return caught.value.code().name, caught.value.details()


@pytest.fixture
def client(serve: Callable[..., Server]) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def start(*kinds: str, **kwargs: Any) -> Client:
        made.append(Client(serve(*kinds, grpc_port=0, **kwargs)))
        return made[-1]

    yield start
    for one in made:
        one.channel.close()


def doubled(request: Any) -> dict[str, np.ndarray]:
    return {"out": request.inputs["x"][:3] * 2}


def test_health_and_metadata(client: Any) -> None:
    ask = client("rows", "encoder").ask
    assert ask("ServerLive") == {"live": True} and ask("ServerReady") == {"ready": True}
    assert ask("ModelReady", {"name": "rows", "version": "1"}) == {"ready": True}
    assert ask("ServerMetadata")["name"] == "aie"
    assert ask("ModelMetadata", {"name": "rows"}) == {
        "name": "rows",
        "versions": ["1"],
        "platform": "aie",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}],
    }


def test_infer_is_what_http_answers(client: Any, harness: Any) -> None:
    ask = client("rows").ask
    http = harness.post("/v2/models/rows/infer", {"inputs": [{**X, "data": ROWS}]}).json["outputs"][0]["data"]
    raw = ask("ModelInfer", INFER)
    assert (raw["model_name"], raw["model_version"], raw["id"]) == ("rows", "1", "7")
    assert raw["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [2, 3]}]
    np.testing.assert_array_equal(np.frombuffer(raw["raw_output_contents"][0], "<f4"), np.asarray(http, np.float32))
    typed = ask("ModelInfer", {"model_name": "rows", "inputs": [{**X, "contents": {"fp32_contents": RAW}}]})
    assert bytes(typed["outputs"][0]["contents"]["fp32_contents"]) == raw["raw_output_contents"][0]


def test_texts(client: Any) -> None:
    text = {"name": "text", "datatype": "BYTES", "shape": [2], "contents": {"bytes_contents": [b"a b", b"c"]}}
    assert client("encoder").ask("ModelInfer", {"model_name": "encoder", "inputs": [text]})["outputs"][0]["shape"] == [
        2, 2, 6
    ]  # fmt: skip


def test_a_text_that_is_too_long(client: Any) -> None:
    asked = {
        "model_name": "encoder",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1]}],
        "raw_input_contents": [struct.pack("<I", 4) + b"abcd"],
    }
    refused = client("encoder", config=ServerConfig(max_input_chars=3)).fail("ModelInfer", asked)
    assert refused == ("INVALID_ARGUMENT", "text[0] must have at most 3 characters, not 4.")


@pytest.mark.parametrize(
    ("method", "message", "code", "says"),
    [
        ("ModelInfer", {**INFER, "model_name": "none"}, "NOT_FOUND", "none"),
        ("ModelInfer", {**INFER, "model_version": "2"}, "NOT_FOUND", "no version '2'"),
        ("ModelReady", {"name": "none"}, "NOT_FOUND", "rows"),
        ("ModelMetadata", {}, "NOT_FOUND", "rows"),
        ("ModelInfer", b"\xff", "INVALID_ARGUMENT", "ends within"),
        ("ModelInfer", {**INFER, "raw_input_contents": [RAW[:-1]]}, "INVALID_ARGUMENT", "31 came"),
        ("ModelInfer", {**INFER, "raw_input_contents": [b"\xff" * 32]}, "INVALID_ARGUMENT", "NaN"),
        ("ModelInfer", {**INFER, "inputs": [{**X, "name": "z"}]}, "INVALID_ARGUMENT", "z"),
        ("ModelInfer", {**INFER, "outputs": [{"name": "z"}]}, "INVALID_ARGUMENT", "no output 'z'"),
        (
            "ModelInfer",
            {**INFER, "inputs": [{**X, "shape": [3000, 4]}], "raw_input_contents": [bytes(48_000)]},
            "INVALID_ARGUMENT",
            "1 to 2048 entries",
        ),
        (
            "ModelInfer",
            {**INFER, "inputs": [{**X, "shape": [1, 0, 1 << 40, 1 << 40]}], "raw_input_contents": [b""]},
            "INVALID_ARGUMENT",
            "no tensor can have the shape",
        ),
        (
            "ModelInfer",
            {**INFER, "inputs": [{**X, "datatype": "BYTES", "shape": [1, 3000]}], "raw_input_contents": [b"not read"]},
            "INVALID_ARGUMENT",
            "1 to 2048 entries, not 3000",
        ),
        ("RepositoryIndex", b"", "UNIMPLEMENTED", "there is ServerLive"),
        ("ModelConfig", b"", "UNIMPLEMENTED", "ModelConfig is not served here"),
        ("Nonsense", b"", "UNIMPLEMENTED", "Nonsense"),
    ],
)
def test_refusals(client: Any, method: str, message: Any, code: str, says: str) -> None:
    got, sentence = client("rows").fail(method, message)
    assert got == code and says in sentence


def test_a_stream_is_refused_before_anything_comes(client: Any) -> None:
    silent = threading.Event()

    def nothing() -> Iterator[bytes]:
        silent.wait(WAIT_S)
        yield from ()

    call = client("rows").channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(nothing(), timeout=WAIT_S)
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    silent.set()
    assert caught.value.code().name == "UNIMPLEMENTED"


def test_limits_of_a_message(client: Any) -> None:
    one = client("rows", config=ServerConfig(http=HttpLimits(max_body_bytes=4096)))
    assert one.fail("ModelInfer", bytes(5000))[0] == "RESOURCE_EXHAUSTED"
    assert one.fail("ModelInfer", INFER, compression=grpc.Compression.Gzip)[0] == "UNIMPLEMENTED"
    assert one.ask("ModelInfer", INFER)["id"] == "7"


def test_a_client_that_sends_no_message_is_cut_off(client: Any) -> None:
    one = client("rows", config=ServerConfig(http=HttpLimits(body_timeout_s=0.02)))
    silent = threading.Event()

    def nothing() -> Iterator[bytes]:
        silent.wait(WAIT_S)
        yield from ()

    ask = one.channel.stream_unary(f"/{SERVICE}/ModelInfer")
    assert failure(ask.future(nothing(), timeout=WAIT_S))[0] == "CANCELLED"
    silent.set()
    assert failure(ask.future(iter(()), timeout=WAIT_S)) == ("INVALID_ARGUMENT", "The call ended without a message.")
    assert one.ask("ModelInfer", INFER)["id"] == "7"


def test_keys(client: Any) -> None:
    one = client("rows", api_keys=["secret"])
    assert one.ask("ServerLive") == {"live": True} and one.ask("ServerReady") == {"ready": True}
    assert one.fail("ModelInfer", INFER)[0] == "UNAUTHENTICATED"
    assert one.fail("ModelMetadata", {"name": "rows"}, metadata=(("authorization", "Bearer no"),)) == (
        "UNAUTHENTICATED", "This API key is not known."
    )  # fmt: skip
    key = (("authorization", "Bearer secret"), ("x-request-id", "mine"), ("some-bin", b"\xff"))
    assert one.ask("ModelInfer", INFER, metadata=key)["id"] == "7"
    answered, refused = one.begin("ModelInfer", INFER, metadata=key), one.begin("ModelInfer", INFER)
    answered.result()
    assert ("x-request-id", "mine") in answered.trailing_metadata()
    assert failure(refused)[0] == "UNAUTHENTICATED" and dict(refused.trailing_metadata())["x-request-id"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (QueueFullError("The queue is full.", retry_after_s=2.0), "UNAVAILABLE"),
        (EngineDeadError("It stopped."), "UNAVAILABLE"),
        (PredictionFailedError("It failed."), "INTERNAL"),
        (RuntimeError("inside"), "INTERNAL"),
    ],
)
def test_errors_of_the_predictor(client: Any, hand: Any, error: Exception, code: str) -> None:
    predictor = hand()
    predictor.fail_submit = error
    call = client("plain", predictor=predictor).begin("ModelInfer", ONE)
    got, sentence = failure(call)
    assert got == code and "inside" not in sentence
    if isinstance(error, QueueFullError):
        assert sentence == "The queue is full." and ("retry-after", "2") in call.trailing_metadata()


class ShortGate:
    default_deadline_s: float | None = 0.0

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def admit(self, request: Any) -> "ShortGate":
        assert request.path == f"/{SERVICE}/ModelInfer" and request.client_key == "127.0.0.1"
        return self

    def ready(self) -> tuple[bool, str]:
        return False, "closed"


def test_the_gate_and_its_deadline(client: Any, hand: Any) -> None:
    config = ServerConfig(disconnect_poll_s=0.001, deadline_grace_s=0.0)
    one = client("plain", predictor=hand(), gate=ShortGate(), config=config)
    assert one.fail("ModelInfer", ONE)[0] == "DEADLINE_EXCEEDED"
    assert one.ask("ServerReady") == {}  # false, which is left out


def test_a_cancelled_call_cancels_the_prediction(client: Any, hand: Any, harness: Any) -> None:
    predictor = hand()
    one = client("plain", predictor=predictor, config=ServerConfig(disconnect_poll_s=0.001))
    call = one.begin("ModelInfer", ONE)
    predictor.wait_for_requests(1)
    call.cancel()
    predictor.wait_until_resolved(0)


def test_drain_lets_a_call_end_and_refuses_the_next(client: Any, hand: Any, harness: Any) -> None:
    predictor = hand(doubled)
    predictor.script = None
    one = client("plain", predictor=predictor)
    (server,) = harness._servers
    call = one.begin("ModelInfer", ONE)
    predictor.wait_for_requests(1)
    server.begin_drain()
    assert server.num_busy_connections == 1 and not server.drain(0.0)
    assert one.ask("ServerReady") == {}
    assert one.fail("ModelInfer", ONE)[0] == "UNAVAILABLE"
    predictor.answer(0, doubled(predictor.requests[0]))
    assert decode(METHODS["ModelInfer"][1], call.result())["outputs"][0]["name"] == "out"
    assert server.drain(WAIT_S) and server.num_busy_connections == 0


def test_close_cancels_what_is_in_progress(client: Any, hand: Any, harness: Any) -> None:
    predictor = hand()
    one = client("plain", predictor=predictor, config=ServerConfig(disconnect_poll_s=0.001))
    call = one.begin("ModelInfer", ONE)
    predictor.wait_for_requests(1)
    harness._servers[0].close()
    assert failure(call)[0] in ("UNAVAILABLE", "CANCELLED")
    predictor.wait_until_resolved(0)


def test_calls_are_counted(client: Any, harness: Any) -> None:
    one = client("rows")
    one.ask("ModelInfer", INFER)
    one.fail("ModelReady", {"name": "none"})
    text = harness.get("/metrics").body.decode()
    assert f'aie_requests_total{{route="/{SERVICE}/ModelInfer",status="200"}} 1' in text
    assert f'aie_requests_total{{route="/{SERVICE}/ModelReady",status="404"}} 1' in text


class Control:
    """A `ModelControl` whose loads are done at once."""

    name, version = "rows", "2"

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None]] = []

    def load(self, name: str, version: str | None = None) -> Any:
        self.calls.append((name, version))
        return self

    def wait(self, timeout_s: float | None = None) -> bool:
        return True

    def result(self) -> LoadReport:
        return LoadReport("rows", "2", 0.0, "1")

    def unload(self, name: str) -> None:
        self.calls.append((name, "unload"))

    def index(self) -> list[VersionState]:
        return [VersionState("other", "1", "UNAVAILABLE", "not loaded")]

    def figures(self) -> dict[str, Any]:
        return {}


def test_the_repository(client: Any) -> None:
    control = Control()
    ask = client("rows", control=control).ask
    ready = {"name": "rows", "version": "1", "state": "READY"}
    other = {"name": "other", "version": "1", "state": "UNAVAILABLE", "reason": "not loaded"}
    assert ask("RepositoryIndex") == {"models": [other, ready]}
    assert ask("RepositoryIndex", {"ready": True}) == {"models": [ready]}
    version = {"key": "version", "value": {"string_param": "2"}}
    assert ask("RepositoryModelLoad", {"model_name": "other", "parameters": [version]}) == {}
    assert ask("RepositoryModelUnload", {"model_name": "other"}) == {}
    assert control.calls == [("other", "2"), ("other", "unload")]
    assert ask("ServerMetadata")["extensions"] == ["model_repository"]


def test_a_port_in_use(serve: Any) -> None:
    server = serve("rows", grpc_port=0)
    with pytest.raises(AddressInUseError, match="--grpc-port"):
        Server(ModelTable(may_be_empty=True), port=0, grpc_port=server.grpc_port)


def test_a_server_that_never_started_closes() -> None:
    Server(ModelTable(may_be_empty=True), port=0, grpc_port=0).close()


def test_without_grpcio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(listener.importlib.sys.modules, "grpc", None)  # type: ignore[attr-defined]
    with pytest.raises(EnvironmentLacksError, match=r"aie\[grpc\]"):
        listener.load_grpc()


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:4711", "127.0.0.1"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[::1]:4711", "::1"),
        ("ipv6:[::ffff:127.0.0.1]:4711", "127.0.0.1"),
        ("unix:", "unix:"),
    ],
)
def test_addresses(peer: str, address: str) -> None:
    assert listener._address(peer) == address


def test_more_calls_than_there_may_be(client: Any, hand: Any) -> None:
    predictor = hand()
    one = client("plain", predictor=predictor, config=ServerConfig(http=HttpLimits(max_connections=1)))
    call = one.begin("ModelInfer", ONE)
    predictor.wait_for_requests(1)
    assert one.fail("ServerLive")[0] == "RESOURCE_EXHAUSTED"
    predictor.answer(0, doubled(predictor.requests[0]))
    assert call.result()


@pytest.mark.parametrize(
    ("call_s", "timeout_us", "budget_s"),
    [(None, None, None), (4.0, None, 4.0), (None, 2_000_000, 2.0), (4.0, 9_000_000, 4.0)],
)
def test_a_deadline_reaches_the_predictor(
    serve: Any, hand: Any, call_s: float | None, timeout_us: int | None, budget_s: float | None
) -> None:
    predictor = hand(doubled)
    server = serve("plain", predictor=predictor, grpc_port=0)
    asked: dict[str, Any] = dict(ONE)
    if timeout_us is not None:
        asked["parameters"] = [{"key": "timeout", "value": {"int64_param": timeout_us}}]
    began_s = time.monotonic()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        ask = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        ask(encode(METHODS["ModelInfer"][0], asked), timeout=call_s)
    (request,) = predictor.requests
    if budget_s is None:
        assert request.deadline_s is None
    else:
        assert began_s < request.deadline_s < time.monotonic() + budget_s + 1  # gRPC counts on the clock of the wall


@pytest.mark.parametrize(("level", "priority"), [(0, 0), (1, -100), (101, 0), (201, 100)])
def test_priority(client: Any, hand: Any, level: int, priority: int) -> None:
    predictor = hand(doubled)
    asked = {**ONE, "parameters": [{"key": "priority", "value": {"uint64_param": level}}]}
    client("plain", predictor=predictor).ask("ModelInfer", asked)
    assert predictor.requests[0].priority == priority


@pytest.mark.parametrize(
    ("value", "says"), [({"uint64_param": 202}, "1, the highest, to 201"), ({"string_param": "high"}, "a whole number")]
)
def test_no_such_priority(client: Any, value: Values, says: str) -> None:
    code, sentence = client("plain").fail("ModelInfer", {**ONE, "parameters": [{"key": "priority", "value": value}]})
    assert code == "INVALID_ARGUMENT" and says in sentence
