"""Unstable results: the same greedy prompt, or the same input, must not depend on its company."""

import math
from collections.abc import Sequence

from aie.doctor.finding import MORE_TIME, Finding
from aie.doctor.measured import Company, Predictions

__all__ = ["difference", "judge_company", "judge_predictions", "parting"]

WHAT = "same answer"
_NEAR = 0.05  # nats between two tokens, below which rounding may choose
_ROUNDING = 1e-4  # relative difference of vectors that another order of additions explains
_PADDING = (
    "the padding side and the attention mask must be those of the training (padding_side in tokenizer_config.json; "
    "left for models that generate), or serve it without padding"
)


def judge_company(cases: Sequence[Company]) -> Finding:
    """Bad: an answer that differs when asked again alone, or that its company changes although the model was sure.
    A note: where the first two tokens to choose from were so near that the order of additions decides."""
    if not cases:
        return Finding(WHAT, "note", "no prompt was answered often enough in the time there was", MORE_TIME)
    figures = {
        "prompts": len(cases), "differ_alone": sum(one.alone != one.again for one in cases),
        "differ_among": sum(_differs(one) for one in cases), "margins": [one.margin for one in cases],
    }  # fmt: skip
    sizes = sorted({size for one in cases for size in one.among})
    among = f"among {' and '.join(map(str, sizes))} requests"
    unsteady = [one for one in cases if one.alone != one.again]
    if unsteady:
        return Finding(
            WHAT,
            "bad",
            f"{len(unsteady)} of {_count(cases, 'prompt')} got another answer when asked again, alone and at "
            f"temperature 0 ({_parting(unsteady[0].alone, unsteady[0].again)})",
            "look for an operator that is not deterministic, memory read before it is written, or a server that "
            "ignores temperature",
            figures,
        )
    moved = [one for one in cases if _differs(one)]
    if not sizes:
        text = f"{_count(cases, 'prompt')}, the same alone and again; among others none was answered"
        return Finding(WHAT, "note", text, MORE_TIME, figures)
    if not moved:
        text = f"{_count(cases, 'prompt')}, temperature 0: letter for letter the same alone, again and {among}"
        return Finding(WHAT, "ok", text, figures=figures)
    worst = max(moved, key=lambda one: math.inf if one.margin is None else one.margin)
    size, other = next((size, text) for size, text in worst.among.items() if text != worst.alone)
    text = (
        f"{len(moved)} of {_count(cases, 'prompt')} got another answer among {size} requests than alone "
        f"({_parting(worst.alone, other)})"
    )
    if worst.margin is not None and worst.margin < _NEAR:
        return Finding(
            WHAT,
            "note",
            f"{text}; the model was undecided there, {worst.margin:.3f} nats between two tokens: rounding that depends "
            "on the batch",
            "kernels whose sums do not depend on the batch's size, or more precise ones (fp32 activations)",
            figures,
        )
    sure = "" if worst.margin is None else f", although the model was sure there ({worst.margin:.2f} nats)"
    return Finding(WHAT, "bad", text + sure, _PADDING, figures)


def judge_predictions(cases: Sequence[Predictions]) -> Finding:
    """The same for models that answer at once, in which every number can be compared."""
    if not cases:
        return Finding(WHAT, "note", "no input was computed often enough in the time there was", MORE_TIME)
    again = max(difference(one.alone, one.again) for one in cases)
    worst, company = max(
        ((difference(one.alone, values), name) for one in cases for name, values in one.among.items()),
        default=(0.0, "alone"),
    )
    figures = {"inputs": len(cases), "differ_alone": again, "differ_among": worst, "among": company}
    if again > 0:
        return Finding(
            WHAT,
            "bad" if again > _ROUNDING else "note",
            f"the same input alone, computed twice, gave numbers that differ by {again:.1e} of their size",
            "look for an operator that is not deterministic, or memory read before it is written",
            figures,
        )
    names = sorted({name for one in cases for name in one.among})
    if not names:
        text = f"{_count(cases, 'input')}, the same alone and again; among others none was computed"
        return Finding(WHAT, "note", text, MORE_TIME, figures)
    if worst == 0:
        text = f"{_count(cases, 'input')}: bit for bit the same alone, again, {' and '.join(names)}"
        return Finding(WHAT, "ok", text, figures=figures)
    text = f"{company}, an input gave numbers that differ by {worst:.1e} of their size from those it has alone"
    if worst <= _ROUNDING:
        return Finding(
            WHAT, "note", f"{text}: rounding that depends on the batch",
            "kernels whose sums do not depend on the batch's size, where that matters", figures,
        )  # fmt: skip
    return Finding(WHAT, "bad", f"{text}: it sees its neighbours or their padding", _PADDING, figures)


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference, in parts of the largest number; infinite for different shapes or what is no number."""
    if len(one) != len(other) or not one:
        return math.inf
    size = max(map(abs, one)) or 1.0
    found = max(abs(a - b) for a, b in zip(one, other, strict=True)) / size
    return math.inf if math.isnan(found) else found


def _count(cases: Sequence[object], what: str) -> str:
    return f"{len(cases)} {what}" + ("s" if len(cases) != 1 else "")


def _differs(one: Company) -> bool:
    return any(text != one.alone for text in one.among.values())


def _parting(one: str, other: str) -> str:
    """Where two answers part, in their own words."""
    at = parting(one, other)
    return f"“…{_tail(one, at)}” against “…{_tail(other, at)}”"


def parting(one: str, other: str) -> int:
    """The first character in which they differ, or the length of the shorter."""
    shorter = min(len(one), len(other))
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), shorter)


def _tail(text: str, at: int) -> str:
    shown = text[max(0, at - 12) : at + 12]
    return "".join(c if c.isprintable() else " " for c in shown)
