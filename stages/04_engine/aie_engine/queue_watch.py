"""Why the queue stands still, measured once for all who wait in it.

A queue is served in order, so whatever holds up its head holds up everybody behind it. One set of meters therefore
serves all: a meter per reason, of which one runs at any time. Who enters the queue reads them, who leaves reads them
again, and the differences are what he waited for. A step costs one addition, however many wait.

Who held the blocks, or computes the prefix that others wait to share, is kept as a short history of periods, which is
looked at when somebody leaves. (Those who wait for a prefix stand aside; it is the reason only when nobody else waits.)
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aie_engine.timeline_report import QueueReport, Share
from aie_scheduler import HeldBack

__all__ = ["REASONS", "Hold", "QueueWatch"]

REASONS: Final = ("turn", "batch_full", "budget", "prefix", "blocks")
_TURN: Final = 0
_INDEX: Final = {reason: index for index, reason in enumerate(REASONS)}
_MAX_HOLDS = 256


@dataclass(slots=True)
class Hold:
    """A period in which the same requests had what the head of the queue waited for."""

    began_s: float
    ended_s: float
    head: HeldBack  # as it was last
    most: dict[str, int]  # holder → most blocks


class QueueWatch:
    """Fed with the time and the head's reason at every step; `now` never goes back."""

    def __init__(self, now: float) -> None:
        self.meters = [0.0] * len(REASONS)  # seconds
        self.head: HeldBack | None = None
        self._running = _TURN
        self._since_s = now  # up to when the meters have run
        self._head_since_s = now  # since when the head's reason is what it is
        self._holds: deque[Hold] = deque(maxlen=_MAX_HOLDS)

    def advance(self, now: float) -> None:
        """Let the meter that runs run on until `now`."""
        self.meters[self._running] += now - self._since_s
        self._since_s = now

    def held(self, head: HeldBack | None, now: float) -> None:
        """`head` is held up from `now` on; None: nobody waits longer than until the next step. After `advance(now)`."""
        before, self.head = self.head, head
        if before is None or head is None or (before.request_id, before.reason) != (head.request_id, head.reason):
            self._head_since_s = now
        self._running = _TURN if head is None else _INDEX[head.reason]
        last = self._holds[-1] if self._holds and self._holds[-1].head is before else None
        if last is not None:
            last.ended_s = now
        if head is None or not head.holders:
            return
        blocks = dict(head.holders)
        if last is not None and last.head.reason == head.reason and last.most.keys() == blocks.keys():
            last.head = head
            last.most = {name: max(most, blocks[name]) for name, most in last.most.items()}
        else:
            self._holds.append(Hold(now, now, head, blocks))

    def since(self, began: Sequence[float]) -> list[float]:
        """What the meters ran since they stood at `began`."""
        return [now - then for now, then in zip(self.meters, began, strict=True)]

    def holders_since(self, began_s: float, now: float) -> dict[str, tuple[float, int]]:
        """Who held up those who wait since `began_s`: seconds and most blocks of each, as far back as the history
        goes."""
        found: dict[str, tuple[float, int]] = {}
        for hold in reversed(self._holds):
            ended_s = now if hold.head is self.head else hold.ended_s
            if ended_s <= began_s:
                break
            overlap_s = ended_s - max(hold.began_s, began_s)
            for name, blocks in hold.most.items():
                seconds, most = found.get(name, (0.0, 0))
                found[name] = seconds + overlap_s, max(most, blocks)
        return found

    def report(self, now: float) -> QueueReport | None:
        if self.head is None:
            return None
        head, for_us = self.head, round((now - self._head_since_s) * 1e6)
        holders = [Share(name, blocks=blocks) for name, blocks in head.holders]
        return QueueReport(head.request_id, head.reason, for_us, head.blocks_needed, head.blocks_free, holders)
