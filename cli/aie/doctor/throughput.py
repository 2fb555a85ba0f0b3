"""Flat throughput: with more clients it must grow, until something is full; and what that is."""

from collections.abc import Sequence

from aie.doctor.contention import who_was_in_the_way
from aie.doctor.finding import Finding, Level
from aie.doctor.measured import Load, Refusals
from aie.doctor.reasons import explain, reason_of
from aie.doctor.remedies import Knob, setting
from aie.doctor.utilisation import utilisation

__all__ = ["judge_throughput"]

WHAT = "throughput"
_GROWS = 1.3  # times that of one client, from which more clients pay
_AS_GOOD = 0.95  # of the best level
_FALLS = 0.7  # of the best level
_CORES_FULL = 0.85  # of all cores
_CORES_IDLE = 0.6
_CLIENT_BUSY = 0.8  # of a core
_BATCHED = 0.6


def judge_throughput(levels: Sequence[Load], server: str, unit: str, refusals: Refusals | None = None) -> Finding:
    """levels: of ascending clients. unit: "tokens/s". refusals: of the requests so far."""
    refused = refusals is not None and bool(refusals.too_many or refusals.unavailable)
    levels = [level for level in levels if level.num_answered]
    if len(levels) < 2:
        return Finding(WHAT, "note", f"only {len(levels)} level of clients was measured in the time there was")
    last, one = levels[-1], levels[0]
    most = max(level.per_s for level in levels)
    best = next(level for level in levels if level.per_s >= _AS_GOOD * most)  # from there on more clients only wait
    curve = ", ".join(f"{level.clients}: {level.per_s:.4g}" for level in levels)
    gain = most / one.per_s if one.per_s else 0.0
    text = f"{unit} by clients {curve}; {gain:.1f} times that of {one.clients} at best"
    figures: dict[str, object] = {
        "levels": [
            {"clients": level.clients, "per_s": level.per_s, "answered": level.num_answered} for level in levels
        ],
        "gain": gain,
    }  # fmt: skip
    if last.per_s < _FALLS * most:
        why, change = _why_flat(last, server, refusals if refused else None)
        return Finding(WHAT, _level(last, refused), f"{text}; it falls under load: {why}", change, figures)
    if gain >= _GROWS:
        end = "; it still grows there" if best is last else f"; the knee is at {best.clients}"
        return Finding(WHAT, "ok", text + end, figures=figures)
    full = _full_already(one, last)
    if full is not None:
        change = "more cores, a smaller model, or fewer bits (`--quantize int8`)" if server == "aie" else "more cores"
        return Finding(WHAT, "note", f"{text}; flat, since {full}", change, figures)
    why, change = _why_flat(last, server, refusals if refused else None)
    return Finding(WHAT, _level(last, refused), f"{text}; flat: {why}", change, figures)


def _level(last: Load, refused: bool) -> Level:
    """Where others had the cores, and nothing else is wrong, it is not known what the server can do."""
    together = utilisation(last)
    is_batched = together is None or together >= _BATCHED
    return "note" if is_batched and not refused and who_was_in_the_way(last.neighbours) else "bad"


def _full_already(one: Load, last: Load) -> str | None:
    """Where a single client fills the machine, and more of them are computed together: nothing is wrong."""
    used = one.neighbours.server
    if used is None or used < _CORES_FULL * one.neighbours.cores or who_was_in_the_way(one.neighbours):
        return None
    together = utilisation(last)
    if together is not None and together < _BATCHED:
        return None
    return f"one client keeps {used:.1f} of {one.neighbours.cores} cores busy already"


def _why_flat(load: Load, server: str, refusals: Refusals | None) -> tuple[str, str]:
    if refusals is not None:
        knob: Knob = "rate" if refusals.too_many else "queue"
        return "requests were refused", f"raise {setting(server, knob)}; see refusals below"
    together = utilisation(load)
    if together is not None and together < _BATCHED:
        return explain(reason_of(load), load, server)
    others = who_was_in_the_way(load.neighbours)
    if others:
        return ", ".join(others), "stop them, and measure again"
    return _why_by_cores(load, server)


def _why_by_cores(load: Load, server: str) -> tuple[str, str]:
    seen = load.neighbours
    share = None if seen.server is None else seen.server / seen.cores
    used = "" if seen.server is None else f"{seen.server:.1f} of {seen.cores} cores"
    if seen.client > _CLIENT_BUSY:
        return f"this program is the limit ({seen.client:.0%} of a core)", "measure with more clients elsewhere"
    if share is not None and share < _CORES_IDLE and load.workers is not None:
        of = f"{load.workers:.0f} worker{'s' if load.workers > 1 else ''}"
        return f"the server used {used}, with {of}", f"set {setting(server, 'workers')} to {seen.cores}"
    if share is not None and share < _CORES_IDLE:
        return (
            f"the server used {used}: its threads are too few, or wait",
            f"set {setting(server, 'threads')} to {seen.cores}",
        )
    if share is not None and share >= _CORES_FULL:
        return (
            f"it keeps {used} busy, and a batch costs as much as its requests apart",
            f"look at `aie profile`; too many threads would show so, too: {setting(server, 'threads')}",
        )
    return "no limit was seen from here", "`aie bench --url URL --concurrency 1,2,4,8,16` with more time"
