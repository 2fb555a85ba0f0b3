"""Constraints beside the forward pass: masks computed ahead are the same masks, and what fails is told and freed."""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from aie_engine.constraints import Constraint, ConstraintError, ConstraintMaker, ConstraintSpec, Mask, MaskAhead
from aie_engine.text import load_text_model

pytest.importorskip("llguidance", reason="needs llguidance (pip install -e '.[structured]')")

WAIT_S = 10.0
SPEC = ConstraintSpec(
    "json_schema", '{"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": ["red", "green"]}}}'
)


class Counting:
    """Its mask is the number of tokens so far."""

    def __init__(self, refuse: int = -1) -> None:
        self.is_done = False
        self.refuse = refuse
        self.num_masks = 0
        self._mask = np.zeros(1, np.uint32)

    def mask(self) -> Mask:
        if self._mask[0] == self.refuse:
            raise ConstraintError("enough")
        return self._mask

    def masks(self, guesses: Sequence[int]) -> list[Mask]:
        self.num_masks += 1
        return [self.mask()] * (1 + len(guesses))

    def forced(self) -> list[int]:
        return []

    def num_allowed(self, guesses: Sequence[int]) -> int:
        return len(guesses)

    def accept(self, token_id: int) -> None:
        self._mask[0] += 1


class OneMaker:
    def __init__(self, make: Callable[[], Constraint]) -> None:
        self._make = make

    def make(self, spec: ConstraintSpec) -> Constraint:
        return self._make()


def allowed(mask: Mask) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def test_masks_ahead_are_the_masks(tiny_model: Path) -> None:
    """Of the next token, and behind guesses, right ones and wrong ones."""
    text = load_text_model(tiny_model)
    ends = text.config.eos_token_ids
    maker = ConstraintMaker(text.tokenizer, vocab_size=text.tokenizer.vocab_size, eos_token_ids=ends)
    ahead = MaskAhead(lambda: maker)
    answers, plain = [ahead.open(SPEC) for _ in range(3)], [maker.make(SPEC) for _ in range(3)]
    rng = np.random.default_rng(7)

    def draw(mask: Mask) -> int:
        return int(rng.choice([token for token in allowed(mask) if token not in ends]))

    num_behind = 0
    for _ in range(60):
        for answer, reference in zip(answers, plain, strict=True):
            if answer.is_done:
                continue
            follower = reference.copy("response_format")
            guesses: list[int] = []
            while len(guesses) < 4 and not follower.is_done:
                guesses.append(draw(follower.mask()))
                follower.accept(guesses[-1])
            assert answer.num_allowed(guesses) == len(guesses)
            answer.look_ahead(guesses)
            first, *behind = answer.masks()
            assert np.array_equal(first, reference.mask()) and len(behind) == len(guesses)
            num_behind += sum(mask.any() for mask in behind)
            token = guesses[0] if guesses and rng.random() < 0.7 else draw(first)
            answer.accept(token)
            reference.accept(token)
            assert answer.is_done == reference.is_done
            if token == guesses[0] and not answer.is_done:
                assert np.array_equal(answer.mask(), behind[0])
    assert num_behind > 100 and any(answer.is_done for answer in answers)
    ahead.close()


def test_masks_are_computed_while_the_model_runs() -> None:
    constraint, entered, may_go = Counting(), threading.Event(), threading.Event()
    compute = constraint.masks

    def masks(guesses: Sequence[int]) -> list[Mask]:
        entered.set()
        assert may_go.wait(WAIT_S)
        return compute(guesses)

    constraint.masks = masks  # type: ignore[method-assign]
    ahead = MaskAhead(lambda: OneMaker(lambda: constraint))
    answer = ahead.open(ConstraintSpec("regex", "a"))
    assert answer._made.result(WAIT_S) is constraint
    answer.look_ahead([5, 6])
    assert entered.wait(WAIT_S), "somebody computes, and it is not this thread"
    may_go.set()
    assert len(answer.masks()) == 3 and len(answer.masks()) == 3
    assert constraint.num_masks == 1
    answer.accept(5)
    assert answer.mask()[0] == 1 and constraint.num_masks == 2
    ahead.close()


def test_ready_is_told_by_another_thread_and_masks_do_not_wait_for_compiling() -> None:
    class SlowMaker:
        def __init__(self) -> None:
            self.may_go = threading.Event()

        def make(self, spec: ConstraintSpec) -> Constraint:
            if spec.text == "slow":
                assert self.may_go.wait(WAIT_S)
            return Counting()

    maker = SlowMaker()
    ahead = MaskAhead(lambda: maker)
    ready = threading.Event()
    quick = ahead.open(ConstraintSpec("regex", "quick"), ready.set)
    assert ready.wait(WAIT_S) and quick.is_ready
    slow = ahead.open(ConstraintSpec("regex", "slow"))
    for number in range(5):  # a thread that compiles is busy all the while
        quick.look_ahead()
        assert quick.mask()[0] == number
        quick.accept(0)
    assert not slow.is_ready
    maker.may_go.set()
    assert slow.mask()[0] == 0 and slow.is_ready
    ahead.close()


def test_errors_come_out_of_mask_wherever_they_arose() -> None:
    def fail() -> Constraint:
        raise ConstraintError("no such thing")

    ahead = MaskAhead(lambda: OneMaker(fail))
    answer = ahead.open(ConstraintSpec("regex", "a"))
    with pytest.raises(ConstraintError, match="no such thing"):
        answer.mask()
    assert answer.is_ready and not answer.is_done
    answer.close()
    ahead.close()
    ahead = MaskAhead(lambda: OneMaker(lambda: Counting(refuse=1)))
    answer = ahead.open(ConstraintSpec("regex", "a"))
    assert answer.mask()[0] == 0
    answer.accept(0)
    answer.look_ahead([1])
    with pytest.raises(ConstraintError, match="enough"):
        answer.masks()
    assert (answer.forced(), answer.num_allowed([1])) == ([], 0)
    answer.look_ahead([1])
    with pytest.raises(ConstraintError, match="enough"):
        answer.masks()
    ahead.close()


@pytest.mark.parametrize("refuse", [0, 1], ids=["at its first mask", "later"])
def test_what_failed_is_freed_without_the_garbage_collector(refuse: int) -> None:
    made: list[weakref.ref[Constraint]] = []

    def make() -> Constraint:
        constraint = Counting(refuse)
        made.append(weakref.ref(constraint))
        return constraint

    ahead = MaskAhead(lambda: OneMaker(make))
    answer = ahead.open(ConstraintSpec("regex", "a"))
    gc.disable()
    try:
        for _ in range(refuse):
            answer.mask()
            answer.accept(0)
            answer.look_ahead()
        for _ in range(2):  # whoever asks again hears the same
            try:
                answer.mask()
            except ConstraintError as error:
                assert str(error) == "enough"
            else:
                pytest.fail("nothing was refused")
        ahead.close()
        assert made[0]() is None
    finally:
        gc.enable()


def test_close_drops_what_nobody_waits_for() -> None:
    may_go = threading.Event()

    def wait() -> Constraint:
        assert may_go.wait(WAIT_S)
        return Counting()

    ahead = MaskAhead(lambda: OneMaker(wait))
    answers = [ahead.open(ConstraintSpec("regex", "a")) for _ in range(3)]
    answers[2].close()
    may_go.set()
    ahead.close()
    assert answers[0].is_ready
    assert answers[2].is_ready  # cancelled, so nobody waits for it either
