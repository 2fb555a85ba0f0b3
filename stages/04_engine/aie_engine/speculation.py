"""Speculative decoding: guessed tokens go through the model behind the last known one, all in one step, and those that
the request would have sampled anyway are kept.

Exact, whatever is guessed: the row behind each guess is sampled with the request's own random number for that position,
just as it would have been a step later, and the first token that differs from the guess is the last one that counts.
So the text, greedy or drawn, is the same as without; only the number of steps is smaller.

Whether guessing pays is another matter, and decided for each request anew at each step. A guess costs a row of the
step, which is little as long as reading the weights takes longest and much once arithmetic does (`step_cost.py`). It
brings a token with the probability that the request's guesses came true lately. With N decoding requests and a step of
t seconds, N tokens come in t; one more row that takes Δt is worth it if its own promise p satisfies p / Δt ≥ N / t.
"""

from collections.abc import Sequence

from aie_engine.generation import Generation
from aie_engine.step_cost import StepCost
from aie_scheduler import Scheduler

__all__ = ["Speculator"]


class Speculator:
    """most: guesses per request and step; max_drafts: of all together, since the executor has a row for each."""

    def __init__(self, scheduler: Scheduler, *, most: int, max_drafts: int) -> None:
        self.cost = StepCost()
        self.num_drafted = 0  # guesses that were checked
        self.num_accepted = 0
        self._scheduler = scheduler
        self._most = most
        self._max_drafts = max_drafts

    def begin_anew(self) -> None:
        """Forget what a warm-up has shown: its steps are slow."""
        self.cost = StepCost()
        self.num_drafted = self.num_accepted = 0

    def propose(self, members: Sequence[Generation]) -> None:
        """Put guesses behind the known tokens of `members`, who all decode, and tell the scheduler of them."""
        price = self._price(len(members)) if members else 1.0
        if price >= 1:
            return
        room = self._max_drafts
        for member in members:
            if member.guessing is None:  # it makes none, or has ended meanwhile
                continue
            most = min(self._most, room, member.max_tokens - member.num_tokens - 1)
            guesses = member.guessing.guess(member.tokens, member.num_tokens, most, price) if most > 0 else []
            if guesses:
                member.tokens[member.num_tokens : member.num_tokens + len(guesses)] = guesses
                self._scheduler.propose(member.request_id, len(guesses))
                room -= len(guesses)

    def settle(self, member: Generation, num_right: int, num_checked: int) -> None:
        """The step has checked guesses of `member`, up to the first wrong one."""
        assert member.guessing is not None
        self.num_drafted += num_checked
        self.num_accepted += num_right
        member.guessing.settle(num_right, num_checked)

    def _price(self, num_decoding: int) -> float:
        """What a guess must promise: the tokens that the others lose while its row is computed."""
        extra = min(self._most * num_decoding, self._max_drafts)
        now = self.cost.seconds(num_decoding)
        more = self.cost.seconds(num_decoding + extra)
        if not now or more is None:
            return 0.0
        return max(0.0, more - now) / extra * num_decoding / now
