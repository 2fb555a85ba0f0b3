"""Low batch utilisation: of the requests in flight, how many were computed together."""

from aie.doctor.contention import who_was_in_the_way
from aie.doctor.finding import MORE_TIME, Finding
from aie.doctor.measured import Load
from aie.doctor.reasons import explain, reason_of

__all__ = ["judge_utilisation", "utilisation"]

WHAT = "batch utilisation"
_FEWEST = 4  # answered requests
_GOOD, _POOR = 0.6, 0.4
_SEEN_GOOD, _SEEN_POOR = 0.45, 0.3  # as seen from here, where a prompt that is computed is not counted
_VAGUE = ("outside", "unknown")  # what the counters do not explain


def utilisation(load: Load) -> float | None:
    """0 to 1; None where neither the server nor the streams tell. A model that answers at once computes a batch while
    the next one gathers: half of what is in flight is all that a batch can hold."""
    batch = load.mean_batch if load.mean_batch is not None else load.seen_batch
    most = load.in_flight / 2 if load.cuts else load.in_flight
    return None if batch is None or not most else min(1.0, batch / max(1.0, most))


def judge_utilisation(load: Load | None, server: str) -> Finding:
    """Good from 60 % on: the way in and out takes the rest. Bad below 40 %. Less is asked of what is only seen from
    here."""
    num_sent = 0 if load is None else load.num_answered + load.num_late
    if load is None or num_sent < _FEWEST:
        return Finding(WHAT, "note", f"only {num_sent} requests were under way at once; nothing is said of it")
    if load.in_flight < 0.5 * load.clients:
        text = f"only {load.in_flight:.1f} requests of {load.clients} clients were in flight; nothing is said of it"
        return Finding(WHAT, "note", text, MORE_TIME)
    used = utilisation(load)
    if used is None:
        return Finding(WHAT, "note", "does not apply: the server has no /metrics that count batches, and answers that "
                       "come in one piece do not show them")  # fmt: skip
    counted = load.mean_batch is not None
    batch = load.mean_batch if load.mean_batch is not None else load.seen_batch
    by = "computed together (its own counters)" if counted else "answered at the same time (as seen from here)"
    text = f"{batch:.1f} of {load.in_flight:.1f} requests in flight were {by}: {used:.0%}"
    if load.cuts:
        text = (
            f"{batch:.1f} inputs in a batch (its own counters) with {load.in_flight:.1f} in flight, half of which "
            f"gather while the others are computed: {used:.0%}"
        )
    figures: dict[str, object] = {
        "clients": load.clients, "in_flight": load.in_flight, "mean_batch": load.mean_batch,
        "seen_batch": load.seen_batch, "utilisation": used, "waiting_mean": load.waiting_mean,
        "running_max": load.running_max, "kv_usage_max": load.kv_usage_max, "preemptions": load.preemptions,
        "held": dict(load.held), "cuts": dict(load.cuts),
    }  # fmt: skip
    reason = reason_of(load)
    good, poor = (_GOOD, _POOR) if counted else (_SEEN_GOOD, _SEEN_POOR)
    if used >= good:
        return Finding(WHAT, "ok", text, figures=figures)
    why, change = explain(reason, load, server)
    others = who_was_in_the_way(load.neighbours)
    if others and reason in _VAGUE:
        why = f"{others[0]} meanwhile, which may be all that is wrong"
        return Finding(WHAT, "note", f"{text}; {why}", "stop them, and measure again", figures)
    if others:
        why += f"; but {others[0]} meanwhile"
    return Finding(WHAT, "bad" if used < poor else "note", f"{text}; {why}", change, figures | {"reason": reason})
