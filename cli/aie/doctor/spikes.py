"""P99 spikes: answers that stand still now and then, and on whose account."""

from collections.abc import Sequence
from statistics import median

from aie.bench.statistics import min_samples, percentile
from aie.doctor.contention import who_was_in_the_way
from aie.doctor.finding import MORE_TIME, Finding, Level
from aie.doctor.measured import Spikes
from aie.doctor.remedies import setting

__all__ = ["judge_spikes"]

WHAT = "P99 spikes"
_SHARES = (0.99, 0.95, 0.9)  # the outermost percentile that so many gaps allow to speak of
_NOTE, _BAD = 3.0, 8.0  # times the median
_NOTICED_S, _ANNOYING_S = 0.02, 0.1  # above the median: less is not seen by who reads
_WORSE = 2.0  # times the steady percentile, from which arriving prompts are to blame
_FEWEST_PROMPTS = 3
_RANKS: tuple[Level, ...] = ("ok", "note", "bad")
_OF_SPIKES = 0.2  # of the time lost in spikes, from which pauses of the collector explain them


def judge_spikes(seen: Spikes, server: str) -> Finding:
    """Two runs tell causes apart: one in which nothing arrived, one in which long prompts did. What is there in the
    first is not the prompts' doing."""
    compared = seen.mixed_s if seen.mixed_s and seen.of != "gaps" else seen.steady_s
    fewest = min(len(seen.steady_s), len(compared))
    share = next((share for share in _SHARES if fewest >= min_samples(share)), None)
    if share is None:
        return Finding(
            WHAT, "note", f"only {fewest} {seen.of} were seen in the time there was; a tail needs "
            f"{min_samples(_SHARES[-1])}", MORE_TIME,
        )  # fmt: skip
    usual = percentile(seen.steady_s, 0.5) or 0.0
    steady = percentile(seen.steady_s, share) or 0.0
    disturbed, how = _disturbed(seen, share)
    text = (
        f"P{share * 100:.0f} of the {seen.of} with {seen.streams} at once {_ms(steady)}, the median {_ms(usual)} "
        f"({len(seen.steady_s)} {seen.of}){how}"
    )
    figures: dict[str, object] = {
        "share": share, "median_s": usual, "steady_s": steady, "disturbed_s": disturbed, "gaps": len(seen.steady_s),
        "preemptions": seen.preemptions, "gc_pause_s": seen.gc_pause_s, "gc_runs": seen.gc_runs,
        "gc_frozen": seen.gc_frozen,
    }  # fmt: skip
    by_itself = _level(usual, steady)
    by_prompts: Level = "ok" if disturbed is None or disturbed < _WORSE * steady else _level(usual, disturbed)
    if by_prompts != "ok" and _RANKS.index(by_prompts) >= _RANKS.index(by_itself):
        why, change = _why_mixed(seen, server)
        return Finding(WHAT, by_prompts, f"{text}; {why}", change, figures)
    if by_itself != "ok":
        why, change = _why(seen, usual, server)
        return Finding(WHAT, by_itself, f"{text}; {why}", change, figures)
    return Finding(WHAT, "ok", text + _collector(seen), figures=figures)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"


def _disturbed(seen: Spikes, share: float) -> tuple[float | None, str]:
    """What arriving prompts did to the others: the median standstill where streams were seen, else the same percentile;
    and in words."""
    if len(seen.standstills_s) >= _FEWEST_PROMPTS:
        standstill = median(seen.standstills_s)
        while_s = f"; while a prompt of {seen.prompt_tokens} tokens was computed they stood still for {_ms(standstill)}"
        return standstill, f"{while_s} (median of {len(seen.standstills_s)})"
    if len(seen.mixed_s) >= min_samples(share):
        mixed = percentile(seen.mixed_s, share) or 0.0
        return mixed, f"; while long inputs arrived {_ms(mixed)}"
    return None, "; too few long prompts arrived to say anything of them" if seen.prompt_tokens else ""


def _level(usual: float, tail: float) -> Level:
    if tail - usual < _NOTICED_S or tail < _NOTE * usual:
        return "ok"
    return "bad" if tail >= _BAD * usual and tail - usual >= _ANNOYING_S else "note"


def _why(seen: Spikes, usual: float, server: str) -> tuple[str, str]:
    lost_s = _lost(seen.steady_s, usual) + _lost(seen.mixed_s, usual)
    if seen.preemptions:
        return (
            f"{seen.preemptions:.0f} requests were put back and computed again for want of KV blocks",
            f"raise {setting(server, 'kv')}",
        )
    if seen.gc_pause_s and seen.gc_pause_s * seen.streams > _OF_SPIKES * lost_s:
        frozen = "" if seen.gc_frozen else ", and nothing was put aside after loading"
        return (
            f"Python's garbage collector stopped it for {seen.gc_pause_s * 1e3:.0f} ms in {seen.gc_runs or 0:.0f} "
            f"runs{frozen}",
            "gc.collect(); gc.freeze() once the models are loaded, so that a collection need not walk over them",
        )
    others = who_was_in_the_way(seen.neighbours)
    if others:
        return ", ".join(others), "stop them, or give the server cores of its own (taskset -c)"
    said = " (its garbage collector hardly ran)" if seen.gc_pause_s is not None else ""
    return (
        f"nothing that is seen from here explains it{said}",
        "`aie bench --url URL --rows FILE` keeps every gap; look for what runs at those times",
    )


def _why_mixed(seen: Spikes, server: str) -> tuple[str, str]:
    if seen.preemptions:
        return (
            f"{seen.preemptions:.0f} requests were put back for those that arrived",
            f"raise {setting(server, 'kv')}, or fewer at once: {setting(server, 'batch')}",
        )
    if seen.of != "gaps":
        return (
            "short inputs wait for the long ones that are computed with them, or before them",
            "lower --max-batch-tokens, or raise --workers" if server == "aie" else "smaller batches, or more workers",
        )
    return (
        "answers stand still while a prompt is computed",
        f"lower {setting(server, 'prefill')}: prompts take longer, and streams stay even",
    )


def _collector(seen: Spikes) -> str:
    if seen.gc_pause_s is None:
        return ""
    return f"; Python's garbage collector stopped it for {seen.gc_pause_s * 1e3:.0f} ms of {seen.wall_s:.0f} s"


def _lost(gaps_s: Sequence[float], usual: float) -> float:
    """Seconds beyond the median in gaps that are spikes."""
    return sum(gap - usual for gap in gaps_s if gap > _NOTE * usual)
