"""Which server it is, which of its models, and how that is asked."""

import asyncio
import json
import random
import time
from dataclasses import dataclass
from functools import partial

from aie.bench.target import Target
from aie.bench.workload import words
from aie.doctor.asking import NO_TEXT, Answer, Asker, Kind, get
from aie.doctor.probe import FIRST_ANSWER, FIRST_TOKENS, FIRST_WORDS, Probe, text_of
from aie.doctor.processes import Process, find_process
from aie.doctor.server import Look, look_at_metrics
from aie_engine import EnvironmentLacksError

__all__ = ["Patient", "connect_to"]

_PROBE_S = 20.0  # a server that takes longer for one token cannot be looked at in a minute
_TRIED: tuple[Kind, ...] = ("completions", "chat", "embeddings")


@dataclass(frozen=True, slots=True)
class Patient:
    """The server that is looked at."""

    asker: Asker
    server: str  # whose it is, as its metrics tell; "the server" where they do not
    process: Process | None
    look: Look | None  # at its metrics, before anything was asked
    is_fresh: bool  # nothing was asked of the model before
    probe: Probe | None  # how it was asked how it is asked; None where that is known without
    max_length: int | None

    @property
    def has_metrics(self) -> bool:
        return self.look is not None


def connect_to(target: Target, pid: int | None) -> Patient:
    """pid: of a server that was started for this. Raises `EnvironmentLacksError` where it answers nothing of all that
    is known here."""
    return asyncio.run(_connect(target, pid))


async def _connect(target: Target, pid: int | None) -> Patient:
    endpoint, model = target.endpoint, target.model
    look = await look_at_metrics(endpoint, model)
    process = find_process(endpoint) if pid is None else Process(pid)
    is_fresh = pid is not None or (look is not None and not any(_asked(look)))
    kind, probe = await _find_kind(target, look, process)
    server = look.server if look is not None and look.server != "a server" else "the server"
    return Patient(
        Asker(endpoint, model, kind), server, process, look, is_fresh, probe,
        await _max_length(target),
    )  # fmt: skip


def _asked(look: Look) -> list[float]:
    """Counters that grow with every request."""
    counters = look.model.counters
    return [counters[name] for name in ("generated_tokens", "prompt_tokens", "inputs", "ended") if name in counters]


async def _find_kind(target: Target, look: Look | None, process: Process | None) -> tuple[Kind, Probe | None]:
    """By asking. A server of ours says by its metrics what the model is; one that gives no vectors is asked later, when
    it is known what it takes."""
    is_ours = look is not None and look.server == "aie"
    tried = _TRIED
    if look is not None and is_ours:
        tried = ("embeddings",) if look.model.is_predictor else ("completions",)
    errors: list[str] = []
    for kind in tried:
        asker = Asker(target.endpoint, target.model, kind)
        until_s = time.perf_counter() + _PROBE_S
        probe = await Probe.of(process, partial(_ask, asker, until_s))
        answer = probe.answer
        if answer.error in (None, NO_TEXT) or answer.status in (429, 503):
            return kind, probe
        if is_ours and kind == "embeddings":
            return "predict", None
        errors.append(f"{kind}: {answer.error}")
        if answer.status in (401, 403) or answer.is_late:
            break
    said = "; ".join(errors)
    raise EnvironmentLacksError(f"{target.endpoint.url} answers nothing that can be checked here ({said}).")


async def _ask(asker: Asker, until_s: float) -> Answer:
    if asker.generates:
        return await asker.write(text_of(FIRST_TOKENS, 0), FIRST_ANSWER, until_s=until_s)
    return await asker.compute(words(FIRST_WORDS, random.Random(0)), until_s=until_s)


async def _max_length(target: Target) -> int | None:
    """Of prompt and answer, as ours and vLLM's list of models says."""
    text = await get(target.endpoint, "/v1/models")
    try:
        entries = json.loads(text or "{}")["data"]
        found = next(entry.get("max_model_len") for entry in entries if entry["id"] == target.model)
        return int(found) if found else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration):
        return None
