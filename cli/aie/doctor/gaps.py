"""The gaps between the events of streams that run side by side."""

from collections.abc import Sequence

from aie.doctor.asking import Answer

__all__ = ["gaps_after_all_began", "standstills"]

_SAME_PIECE_S = 1e-4


def gaps_after_all_began(rounds: Sequence[Sequence[Answer]]) -> list[float]:
    """Of streams that begin together: a prompt that is still computed holds up the others, and is no spike. Events that
    came in one piece have no gap between them."""
    return [
        end_s - begin_s for answers in rounds for begin_s, end_s in _gaps(answers) if end_s - begin_s > _SAME_PIECE_S
    ]


def standstills(rounds: Sequence[Sequence[Answer]], arrived: Sequence[Answer]) -> list[float]:
    """For each prompt that arrived while streams ran: the longest gap of a stream that it fell into."""
    gaps = [gap for answers in rounds for gap in _gaps(answers)]
    found = []
    for prompt in arrived:
        if prompt.error is None and prompt.first_s is not None:
            met = [end_s - begin_s for begin_s, end_s in gaps if begin_s < prompt.first_s and end_s > prompt.sent_s]
            found += [max(met)] if met else []
    return found


def _gaps(answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """When each began and ended, from when all streams had begun."""
    all_s = max((answer.first_s for answer in answers if answer.first_s is not None), default=0.0)
    found = []
    for answer in answers:
        at_s = answer.first_s or 0.0
        for gap in answer.gaps_s:
            if at_s >= all_s:
                found.append((at_s, at_s + gap))
            at_s += gap
    return found
