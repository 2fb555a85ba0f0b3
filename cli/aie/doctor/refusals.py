"""Requests that were no answer: refused at the door, or failed behind it."""

from aie.doctor.finding import Finding, Level
from aie.doctor.measured import Refusals
from aie.doctor.remedies import setting

__all__ = ["judge_refusals"]

WHAT = "refusals"


def judge_refusals(seen: Refusals, server: str) -> list[Finding]:
    """Failures are bad. To refuse is a server's right, but 8 requests at once are few: bad as well, where it refused
    more than one of twenty."""
    figures = {
        "sent": seen.sent, "429": seen.too_many, "503": seen.unavailable, "failed": dict(seen.failed),
    }  # fmt: skip
    findings = []
    if seen.too_many:
        findings.append(
            Finding(
                WHAT, _level(seen.too_many, seen.sent), f"{seen.too_many} of {seen.sent} requests got 429: a limit "
                "on requests per second", f"raise {setting(server, 'rate')}, or give each client a key of its own",
                figures,
            )
        )  # fmt: skip
    if seen.unavailable:
        findings.append(
            Finding(
                WHAT, _level(seen.unavailable, seen.sent), f"{seen.unavailable} of {seen.sent} requests got 503: "
                "its queue is full, or its engine is not well (GET /health says)",
                f"raise {setting(server, 'queue')}, or {setting(server, 'batch')} so that fewer wait", figures,
            )
        )  # fmt: skip
    if seen.failed:
        worst = max(seen.failed, key=lambda error: seen.failed[error])
        findings.append(
            Finding(
                WHAT, "bad", f"{sum(seen.failed.values())} of {seen.sent} requests failed, most of them so: {worst}",
                "its log says why", figures,
            )
        )  # fmt: skip
    return findings or [Finding(WHAT, "ok", f"all of {seen.sent} requests were answered", figures=figures)]


def _level(refused: int, sent: int) -> Level:
    return "bad" if refused > 0.05 * sent else "note"
