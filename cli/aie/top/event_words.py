"""Events as lines: the latest last, each with its time; what came in crowds as one line that says how many."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from aie.top.words import count, duration, percent

__all__ = ["event_lines"]

Entry = Mapping[str, Any]

_CROWD = 3  # of a kind and model in one look; more are told in one line
_ROUTINE = ("started", "ended")
_STYLES = {"rejected": "yellow", "preempted": "yellow", "lost": "yellow", "trouble": "red", "worker": "red"}


def event_lines(looks: Iterable[Sequence[Entry]], at_most: int) -> list[tuple[str, str]]:
    """looks: what came between two of them, the latest look last. A line and its style, at most so many, the latest."""
    lines: list[tuple[str, str]] = []
    for events in reversed(list(looks)):
        lines = [*_of_one_look(events), *lines]
        if len(lines) >= at_most:
            break
    return lines[-at_most:] if at_most > 0 else []


def _of_one_look(events: Sequence[Entry]) -> list[tuple[str, str]]:
    crowds: dict[tuple[str, str], list[Entry]] = {}
    for event in events:
        crowds.setdefault((event["event"], str(event.get("model", ""))), []).append(event)
    lines: list[tuple[str, str]] = []
    routine: list[tuple[str, str]] = []
    for event in events:
        crowd = crowds[event["event"], str(event.get("model", ""))]
        if len(crowd) <= _CROWD:
            lines.append(_line(event, _say(event)))
        elif event is crowd[-1]:
            is_routine = event["event"] in _ROUTINE
            (routine if is_routine else lines).append(_line(crowd[0] if is_routine else event, _say_all(crowd)))
    return [*routine, *lines]  # of a few lines, the last ones are seen


def _line(event: Entry, text: str) -> tuple[str, str]:
    at_s = event.get("at")
    when = time.strftime("%H:%M:%S", time.localtime(at_s)) if at_s is not None else " " * 8
    kind = event["event"]
    style = "" if kind == "worker" and event.get("state") == "new" else _STYLES.get(kind, "")
    if kind == "reload" and event.get("state") == "failed":
        style = "red"
    return f"{when} {kind:<9} {text}".rstrip(), style


def _say(event: Entry) -> str:
    say = _WORDS.get(event["event"])
    return str(event.get("what") or event.get("model", "")) if say is None else say(event)


def _end(event: Entry) -> str:
    took = f", {_ms(event, 'duration_ms')}" if "duration_ms" in event else ""
    return f"{event.get('request_id')}  {event.get('model', '')} {event.get('status')}, {event.get('why')}{took}"


def _batch(event: Entry) -> str:
    text = f"{event.get('model')} of {event.get('size')}, cut: {event.get('cut')}"
    return f"{text}, waited {_ms(event, 'waited_ms')}, computed in {_ms(event, 'compute_ms')}"


def _steps(event: Entry) -> str:
    text = f"{event.get('model')} {event.get('steps')}, batch mean {count(event.get('mean_batch', 0))}"
    text += f", max {event.get('max_batch')}: {event.get('generated_tokens')} tokens"
    return f"{text}, {event['prompt_tokens']} of prompts" if event.get("prompt_tokens") else text


def _worker(event: Entry) -> str:
    number = f", restart {event['restarts']}" if "restarts" in event else ""
    return f"{event.get('model')} {event.get('worker')}: {event.get('state')}{number}"


def _reload(event: Entry) -> str:
    version = f" version {event['version']}" if event.get("version") else ""
    why = f": {event['why']}" if event.get("why") else ""
    return f"{event.get('model')}{version} {event.get('state')}{why}"


def _preempted(event: Entry) -> str:
    return f"{event.get('request_id')}  by {event.get('by')}, {event.get('lost_tokens')} tokens lost"


_WORDS: Final[Mapping[str, Callable[[Entry], str]]] = {
    "started": lambda event: f"{event.get('request_id')}  {event.get('model')}",
    "ended": _end,
    "rejected": _end,
    "batch": _batch,
    "steps": _steps,
    "worker": _worker,
    "reload": _reload,
    "preempted": _preempted,
    "lost": lambda event: f"{event.get('count')} events, because they were read too slowly",
}


def _say_all(crowd: Sequence[Entry]) -> str:
    kind, number = crowd[0]["event"], len(crowd)
    text = f"×{number} {crowd[0].get('model', '')}".rstrip()
    if kind == "batch":
        sizes = [int(event.get("size", 0)) for event in crowd]
        spread = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)}–{max(sizes)}"
        return f"{text} cut: {_shares(crowd, 'cut')}; of {spread}, mean {count(sum(sizes) / number)}"
    if kind == "steps":
        return _steps(_sum_of_steps(crowd))
    if kind == "preempted":
        return f"{text}: {sum(event.get('lost_tokens', 0) for event in crowd)} tokens lost"
    if kind in ("ended", "rejected"):
        return f"{text}: {_shares(crowd, 'why')}"
    return text


def _sum_of_steps(crowd: Sequence[Entry]) -> Entry:
    steps = sum(event.get("steps", 0) for event in crowd)
    requests = sum(event.get("mean_batch", 0) * event.get("steps", 0) for event in crowd)
    return {
        "model": crowd[0].get("model"), "steps": steps, "mean_batch": round(requests / max(steps, 1), 2),
        "max_batch": max(event.get("max_batch", 0) for event in crowd),
        "generated_tokens": sum(event.get("generated_tokens", 0) for event in crowd),
        "prompt_tokens": sum(event.get("prompt_tokens", 0) for event in crowd),
    }  # fmt: skip


def _shares(crowd: Sequence[Entry], key: str) -> str:
    found = Counter(str(event.get(key)) for event in crowd).most_common(3)
    return " · ".join(f"{what} {percent(times / len(crowd))}" for what, times in found)


def _ms(event: Entry, key: str) -> str:
    return duration(float(event.get(key, 0)) * 1e3)
