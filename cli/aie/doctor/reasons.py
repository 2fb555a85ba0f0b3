"""Why requests that are in flight are not computed together: by the server's own counters, where it has them."""

from collections.abc import Callable, Mapping
from typing import Literal

from aie.doctor.measured import Load
from aie.doctor.remedies import setting

__all__ = ["Reason", "explain", "reason_of"]

Reason = Literal["client", "kv", "batch", "short", "passthrough", "wait", "serial", "outside", "unknown"]

_CLIENT_BUSY = 0.8  # of a core
_KV_FULL = 0.9
_ONE_AT_A_TIME = 1.2  # streams, within what is seen of them
_WAITS = 0.5  # requests in the queue, on average


def reason_of(load: Load) -> Reason:
    """The first that the figures support."""
    if load.neighbours.client > _CLIENT_BUSY:
        return "client"
    if load.cuts:
        return _reason_of_cuts(load)
    held = max(load.held, key=lambda reason: load.held[reason], default=None)
    return _OF_HELD[held] if held in _OF_HELD and not load.preemptions else _reason_of_queue(load)


# Our own engine's word for why the first in its queue waits.
_OF_HELD: Mapping[str | None, Reason] = {"blocks": "kv", "batch_full": "batch", "budget": "short"}


def _reason_of_queue(load: Load) -> Reason:
    """Of other servers it is told by what ran and what waited."""
    if load.running_max is None:
        return "serial"
    waits = (load.waiting_mean or 0.0) >= _WAITS
    if load.preemptions or (waits and (load.kv_usage_max or 0.0) >= _KV_FULL):
        return "kv"
    if not waits:
        return "outside"
    return "batch" if load.running_max < load.clients - 0.5 else "unknown"


def _reason_of_cuts(load: Load) -> Reason:
    """Of a model that answers at once: why most of its batches were sent off. One that is cut "alone" waits for nobody,
    and one that is full below its limit of inputs is full of tokens."""
    half = sum(load.cuts.values()) / 2
    if load.cuts.get("alone", 0.0) > half:
        return "passthrough"
    if load.cuts.get("full", 0.0) + load.cuts.get("preferred", 0.0) <= half:
        return "wait"
    return "short" if load.batch_limit is not None and (load.mean_batch or 0.0) < 0.9 * load.batch_limit else "batch"


def explain(reason: Reason, load: Load, server: str) -> tuple[str, str]:
    """What was seen, and what to change."""
    return _EXPLAINED[reason](load, server)


def _client(load: Load, _server: str) -> tuple[str, str]:
    return (
        f"this program was busy itself ({load.neighbours.client:.0%} of a core): the client is the limit",
        "measure from another machine, or with more of them",
    )


def _kv(load: Load, server: str) -> tuple[str, str]:
    usage = "" if load.kv_usage_max is None else f", {load.kv_usage_max:.0%} of its KV cache in use at most"
    put_back = f", {load.preemptions:.0f} requests were put back to make room" if load.preemptions else ""
    return f"{_waited(load)} for KV blocks{usage}{put_back}", f"raise {setting(server, 'kv')}, or shorter contexts"


def _batch(load: Load, server: str) -> tuple[str, str]:
    most = load.batch_limit or load.running_max or load.mean_batch or 1.0
    queue = f"{_waited(load)} meanwhile" if load.waiting_mean is not None else "batches were full"
    return (
        f"it never computes more than {most:.0f} at once; {queue}",
        f"raise {setting(server, 'batch')} to {load.clients} or more",
    )


def _short(_load: Load, server: str) -> tuple[str, str]:
    return (
        "steps were full of tokens before they were full of requests",
        "raise --max-batch-tokens" if server == "aie" else f"raise {setting(server, 'prefill')}",
    )


def _passthrough(_load: Load, server: str) -> tuple[str, str]:
    return "its batches are sent off one by one, whoever waits", f"set {setting(server, 'batcher')} to dynamic"


def _wait(load: Load, server: str) -> tuple[str, str]:
    cuts = ", ".join(f"{name} {count:.0f}" for name, count in sorted(load.cuts.items()) if count)
    return (
        f"batches were cut before company came ({cuts})",
        f"raise {setting(server, 'wait')}, if the latency can be spared",
    )


def _serial(load: Load, server: str) -> tuple[str, str]:
    seen = load.seen_batch or 0.0
    how = "answers come one after another" if seen < _ONE_AT_A_TIME else f"about {seen:.0f} answers are written at once"
    return (
        f"it has no /metrics that say why; {how}",
        f"raise {setting(server, 'batch')}, and let it have /metrics (llama-server: --metrics) to tell why",
    )


def _outside(_load: Load, _server: str) -> tuple[str, str]:
    return (
        "what is missing neither ran nor waited in its engine: the time goes before or behind it (HTTP, tokenizer, the "
        "connection)",
        "`aie top URL` shows phases of single requests; look at the front's CPU",
    )


def _unknown(load: Load, _server: str) -> tuple[str, str]:
    return f"{_waited(load)}, and its counters do not say for what", "`aie top URL` shows who waits, and for what"


def _waited(load: Load) -> str:
    return f"{load.waiting_mean or 0.0:.1f} waited"


_EXPLAINED: Mapping[Reason, Callable[[Load, str], tuple[str, str]]] = {
    "client": _client, "kv": _kv, "batch": _batch, "short": _short, "passthrough": _passthrough, "wait": _wait,
    "serial": _serial, "outside": _outside, "unknown": _unknown,
}  # fmt: skip
