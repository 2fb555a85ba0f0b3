"""One request in full: a line for each phase that it spent time in, the longest first, and whose doing it was."""

from collections.abc import Iterator, Mapping
from typing import Any

from aie.top.words import duration, percent, who_held, who_stalled
from aie_engine import ENGINE_PHASES
from aie_server import SERVER_PHASES

__all__ = ["explain_lines"]

_MEANING = {**SERVER_PHASES, **ENGINE_PHASES}

Entry = Mapping[str, Any]


def explain_lines(entry: Entry) -> Iterator[str]:
    """entry: as `/debug/requests/{id}` answers."""
    outcome = entry["state"] if entry.get("status") is None else f"HTTP {entry['status']}"
    yield f"{entry['request_id']}  {entry['path']}  {entry['model']}  {outcome}  {duration(entry['total_us'])}"
    if entry.get("num_of_same_id", 1) > 1:
        yield f"  (the latest of {entry['num_of_same_id']} requests with this id)"
    if entry.get("blocked_us"):
        yield f"  writing waited {duration(entry['blocked_us'])} for the client to read"
    if "phases_us" in entry:
        yield from _phases(entry, {})
    if "batch" in entry:
        batch = entry["batch"]
        yield f"  {entry['num_inputs']} inputs; the longest was in a batch of {batch['size']}, cut: {batch['cut']}"
    for choice in entry.get("choices", ()):
        yield from _choice(choice, len(entry["choices"]) > 1)


def _choice(choice: Entry, is_one_of_many: bool) -> Iterator[str]:
    engine: Entry | None = choice.get("engine")
    facts = [f"choice {choice['index']}"] if is_one_of_many else []
    facts.append(choice.get("finish_reason") or choice["state"])
    if choice.get("first_token_us") is not None:
        facts.append(f"first token after {duration(choice['first_token_us'])}")
    if engine is not None:
        facts.append(_tokens(engine))
    yield "  " + ", ".join(facts)
    yield from _phases(choice, engine or {})
    if engine is None:
        yield f"  {choice.get('why_no_engine', '')}"
        return
    if engine["preemptions"]:
        by = ", ".join(str(share["who"]) for share in engine["preempted_by"])
        yield (
            f"  preempted {engine['preemptions']} times by {by}: {engine['lost_tokens']} tokens lost, "
            f"{engine['recomputed_tokens']} computed again"
        )


def _tokens(engine: Entry) -> str:
    text = f"{engine['prompt_tokens']} prompt tokens"
    if engine["cached_tokens"]:
        text += f" ({engine['cached_tokens']} from the prefix cache)"
    text += f", {engine['generated_tokens']} generated in {engine['decode_steps']} steps of decoding"
    if engine["drafted_tokens"]:
        text += f", {engine['accepted_tokens']} of {engine['drafted_tokens']} guesses right"
    return text


def _phases(entry: Entry, engine: Entry) -> Iterator[str]:
    phases, total = entry["phases_us"], entry["total_us"]
    for phase, us in sorted(phases.items(), key=lambda item: item[1], reverse=True):
        if us:
            yield f"  {duration(us):>10}  {percent(us / (total or us)):>5}  {phase:<10}  {_meaning(phase, engine)}"


def _meaning(phase: str, engine: Entry) -> str:
    text = _MEANING.get(phase, "")
    if phase in ("blocks", "prefix") and engine.get("held_by"):
        text += f": {who_held(engine['held_by'])}"
    if phase == "stalled" and engine.get("stalled_by"):
        text += f": {who_stalled(engine['stalled_by'])}"
    return text
