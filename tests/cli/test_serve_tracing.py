"""Whether there are spans: the flag, OpenTelemetry's own variables, and a library that is not there."""

import logging
import sys
from typing import Any

import pytest

import aie.assemble
from aie.assemble import span_sink
from aie.settings import ServeSettings, load_settings
from aie_engine import EnvironmentLacksError, InvalidInputError

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Where spans were to be sent; None: where the library's variables say."""
    calls: list[Any] = []
    monkeypatch.setattr(aie.assemble, "load_tracing", lambda endpoint: calls.append(endpoint) or "sink")
    return calls


@pytest.mark.parametrize(
    ("flag", "environ", "expected"),
    [
        (None, {}, []),
        ("http://c:4318", {}, ["http://c:4318"]),
        ("http://c:4318", COLLECTOR, ["http://c:4318"]),
        (None, COLLECTOR, [None]),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, [None]),
        (None, COLLECTOR | {"OTEL_TRACES_EXPORTER": "none"}, []),
        (None, COLLECTOR | {"OTEL_TRACES_EXPORTER": "otlp"}, [None]),
        (None, COLLECTOR | {"OTEL_SDK_DISABLED": "true"}, []),
        ("http://c:4318", {"OTEL_SDK_DISABLED": "true"}, []),
    ],
)
def test_who_says_where(asked: list[Any], flag: str | None, environ: dict[str, str], expected: list[Any]) -> None:
    sink = span_sink(ServeSettings(otel_endpoint=flag), environ)
    assert asked == expected and (sink is None) is (not expected)


def test_a_protocol_that_is_not_spoken_is_a_warning(asked: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    assert span_sink(ServeSettings(), COLLECTOR | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) is None
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line == "There are no spans: OTEL_EXPORTER_OTLP_PROTOCOL is grpc; spans are sent over HTTP only."
    assert asked == []


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(EnvironmentLacksError, match=r"pip install 'aie\[otel\]'") as caught:
        span_sink(ServeSettings(otel_endpoint="http://localhost:4318"), {})
    assert caught.value.exit_code == 3
    assert span_sink(ServeSettings(), COLLECTOR) is None, "a variable for all programs is no order to this one"
    assert [record.name for record in caplog.records] == ["aie.tracing"]


def test_settings_of_the_log() -> None:
    made = load_settings({}, environ={"AIE_LOG_FORMAT": "json", "AIE_LOG_EVERY": "0"})
    assert (made.log_format, made.log_every, ServeSettings().log_every) == ("json", 0, 100)
    with pytest.raises(InvalidInputError, match="--log-format is 'xml'; choose text or json"):
        load_settings({"log_format": "xml"}, environ={})
    with pytest.raises(InvalidInputError, match="--log-every is -1"):
        load_settings({"log_every": -1}, environ={})
