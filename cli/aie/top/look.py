"""One look at a server: `/metrics`, and of ours the open requests; one sentence for all that can be in the way."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from aie.bench.client import Endpoint, describe_error, get_text
from aie.top.entries import check_listing, check_request
from aie.top.figures import Figures, figures_of
from aie.top.prometheus import parse
from aie.top.words import printable
from aie_engine import EnvironmentLacksError, InvalidInputError

__all__ = ["Look", "Requests", "explain_request", "look_at"]

_TIMEOUT_S = 12.0  # a busy engine answers between two steps, within ten seconds
_NETWORK = (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Requests:
    """As `/debug/requests` lists them."""

    open: Sequence[Entry] = ()
    recent: Sequence[Entry] = ()
    queues: Mapping[str, Entry] = field(default_factory=dict)  # model → why the first in its queue waits
    num_open_of_others: int = 0
    unanswered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at `at_s`, by the clock that the caller gave."""

    at_s: float
    figures: Figures
    requests: Requests | None
    why_no_requests: str | None = None
    events: Sequence[Entry] | None = None  # since the look before; None: the server tells none


def look_at(endpoint: Endpoint, *, num_recent: int = 5, clock: Callable[[], float] = time.monotonic) -> Look:
    """Raises `EnvironmentLacksError` where nobody answers, or something that is no server of models. Without
    `/debug/requests` there are no requests, and a sentence that says why."""
    text = _get(
        endpoint,
        "/metrics",
        "It may have been started without metrics (llama-server: --metrics; SGLang: --enable-metrics).",
    )
    try:
        figures = figures_of(parse(text))
    except ValueError as error:
        raise EnvironmentLacksError(f"{endpoint.url}/metrics is no Prometheus text: {error}.") from None
    if figures is None:
        raise EnvironmentLacksError(
            f"{endpoint.url}/metrics has no metrics of a server of models; known are those of aie, vLLM, SGLang and "
            "llama-server."
        )
    at_s = clock()
    if figures.server != "aie":
        return Look(at_s, figures, None)
    return _with_requests(Look(at_s, figures, None), endpoint, num_recent)


def explain_request(endpoint: Endpoint, request_id: str) -> Entry:
    """One request in full. Raises `InvalidInputError` for one that is unknown or forgotten there, and
    `EnvironmentLacksError` where the server does not say."""
    status, text = _ask(endpoint, f"/debug/requests/{quote(request_id, safe='')}")
    document = _json(text)
    code, message = _error_of(document)
    if status == 404 and code == "request_not_found":
        raise InvalidInputError(message, param="request")
    if status != 200 or not isinstance(document, dict):
        raise EnvironmentLacksError(f"{_refusal(endpoint, status, document)}.")
    try:
        return check_request(document)
    except ValueError as error:
        raise EnvironmentLacksError(f"{endpoint.url} answers what is no request: {printable(str(error))}.") from None


def _with_requests(look: Look, endpoint: Endpoint, num_recent: int) -> Look:
    try:
        status, text = _ask(endpoint, f"/debug/requests?limit={num_recent}")
    except EnvironmentLacksError as error:
        return Look(look.at_s, look.figures, None, str(error))
    document = _json(text)
    if status in (401, 403) and endpoint.api_key is not None:
        raise EnvironmentLacksError(f"{_refusal(endpoint, status, document)}.")
    if status != 200 or not isinstance(document, dict):
        return Look(look.at_s, look.figures, None, _refusal(endpoint, status, document))
    try:
        found = check_listing(document)
    except ValueError:
        return Look(look.at_s, look.figures, None, f"{endpoint.url}/debug/requests answers what is no list of requests")
    requests = Requests(
        found["open"], found["recent"], found["queues"], found["num_open_of_others"], found["unanswered"]
    )
    return Look(look.at_s, look.figures, requests)


def _get(endpoint: Endpoint, path: str, hint: str) -> str:
    status, text = _ask(endpoint, path)
    if status != 200:
        sentence = _refusal(endpoint, status, _json(text), path)
        raise EnvironmentLacksError(f"{sentence}. {hint}" if status == 404 else f"{sentence}.")
    return text


def _ask(endpoint: Endpoint, path: str) -> tuple[int, str]:
    try:
        return asyncio.run(get_text(endpoint, path, timeout_s=_TIMEOUT_S))
    except _NETWORK as error:
        raise EnvironmentLacksError(f"No server of models answers at {endpoint.url}: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "it closed the connection"
    if isinstance(error, TimeoutError) and not error.args:
        return f"no answer within {_TIMEOUT_S:g} s"
    return str(printable(describe_error(error) if isinstance(error, OSError) else str(error)))


def _refusal(endpoint: Endpoint, status: int, document: object, path: str = "/debug/requests") -> str:
    _, message = _error_of(document)
    if status in (401, 403):
        how = "another --api-key" if endpoint.api_key is not None else "--api-key, or AIE_API_KEY"
        return f"{endpoint.url}{path} asks for a key (HTTP {status}); give {how}"
    if status == 404:
        return f"{endpoint.url} has no {path}"
    return f"{endpoint.url}{path} answers HTTP {status}" + (f": {message.rstrip('.')}" if message else "")


def _json(text: str) -> Any:
    try:
        return printable(json.loads(text, parse_constant=_no_number))
    except (ValueError, RecursionError):
        return None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _error_of(document: object) -> tuple[str, str]:
    """Code and message of an error of ours."""
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return "", ""
    return str(error.get("code") or ""), str(error.get("message") or "")
