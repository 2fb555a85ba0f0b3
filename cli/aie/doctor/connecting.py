"""Which server it is, which of its models, and how that is asked."""

import asyncio
import json
import time
from dataclasses import dataclass

from aie.bench.target import Target
from aie.doctor.asking import Asker, Kind, get
from aie.doctor.server import Look, Process, find_process, look_at_metrics
from aie_engine import EnvironmentLacksError

__all__ = ["Patient", "connect_to"]

_PROBE_S = 20.0  # a server that takes longer for one token cannot be looked at in a minute
_TRIED: tuple[Kind, ...] = ("completions", "chat", "embeddings", "predict")


@dataclass(frozen=True, slots=True)
class Patient:
    """The server that is looked at."""

    asker: Asker
    server: str  # whose it is, as its metrics tell; "the server" where they do not
    process: Process | None
    look: Look | None  # at its metrics, before anything was asked
    is_fresh: bool  # nothing was asked of the model before
    max_length: int | None

    @property
    def has_metrics(self) -> bool:
        return self.look is not None


def connect_to(target: Target, pid: int | None, kind: Kind | None) -> Patient:
    """kind: how it is asked; None: found out by asking, of a server that runs. Raises `EnvironmentLacksError` where it
    answers nothing of all that is known here."""
    return asyncio.run(_connect(target, pid, kind))


async def _connect(target: Target, pid: int | None, kind: Kind | None) -> Patient:
    endpoint, model = target.endpoint, target.model
    look = await look_at_metrics(endpoint, model)
    process = find_process(endpoint) if pid is None else Process(pid)
    is_fresh = kind is not None or (look is not None and not any(_asked(look).values()))
    if kind is None:
        kind = await _find_kind(target, look)
    server = look.server if look is not None and look.server != "a server" else "the server"
    return Patient(Asker(endpoint, model, kind), server, process, look, is_fresh, await _max_length(target))


def _asked(look: Look) -> dict[str, float]:
    """Counters that grow with every request."""
    return {
        name: look.model.counters[name]
        for name in ("generated_tokens", "prompt_tokens", "inputs", "ended")
        if name in look.model.counters
    }


async def _find_kind(target: Target, look: Look | None) -> Kind:
    """By asking for as little as there is. A server of ours says by its metrics what the model is."""
    if look is not None and look.server == "aie":
        tried: tuple[Kind, ...] = ("embeddings", "predict") if look.model.is_predictor else ("completions",)
    else:
        tried = _TRIED
    errors: list[str] = []
    for kind in tried:
        if kind == "predict":  # a model of ours that gives no vectors; what it takes is asked later
            if look is not None and look.model.is_predictor:
                return kind
            continue
        asker = Asker(target.endpoint, target.model, kind)
        until_s = time.perf_counter() + _PROBE_S
        ask = asker.write("Hello", 1, until_s=until_s) if asker.generates else asker.compute("Hello", until_s=until_s)
        answer = await ask
        if answer.error is None or answer.error == "the answer had no text" or answer.status in (429, 503):
            return kind
        errors.append(f"{kind}: {answer.error}")
        if answer.status in (401, 403) or answer.is_late:
            break
    raise EnvironmentLacksError(
        f"{target.endpoint.url} answers nothing that can be checked here ({'; '.join(errors)})."
    )


async def _max_length(target: Target) -> int | None:
    """Of prompt and answer, as ours and vLLM's list of models says."""
    text = await get(target.endpoint, "/v1/models")
    try:
        entries = json.loads(text or "{}")["data"]
        found = next(entry.get("max_model_len") for entry in entries if entry["id"] == target.model)
        return int(found) if found else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration):
        return None
