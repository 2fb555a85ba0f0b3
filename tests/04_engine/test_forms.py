"""Guesses at answers that must have a form: the text is the same with and without, whatever the form and the draw."""

import ctypes
import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_engine import ConstraintSpec, EngineConfig, GenerateRequest, LocalEngine, SamplingParams, load_text_model
from aie_engine.constraints import ConstraintError, ConstraintMaker, Mask, MaskAhead, TokenMatcher
from aie_engine.drafting import Guessing
from aie_engine.forms import FormGuessing
from aie_engine.speculation import Speculator
from aie_engine.text import TextModel

needs_library = pytest.mark.skipif(
    find_spec("llguidance") is None,
    reason="needs llguidance (pip install -e '.[structured]')",
)
PERSON = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 12},
        "favourite": {"enum": ["red", "green"]},
        "scores": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 6},
    },
    "required": ["full_name", "favourite", "scores"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FORMS = [
    ConstraintSpec("json_schema", json.dumps(PERSON)),
    ConstraintSpec("choice", '["the request waits", "the request waits for its turn", "no"]'),
    ConstraintSpec("regex", r"(the queue (holds|waits), ){3}end"),
    ConstraintSpec("json_object"),
]


@pytest.fixture(scope="module")
def text(tiny_model: Path) -> TextModel:
    return load_text_model(tiny_model)


@pytest.fixture(scope="module")
def maker(text: TextModel) -> ConstraintMaker:
    ends = text.config.eos_token_ids
    return ConstraintMaker(text.tokenizer, vocab_size=text.tokenizer.vocab_size, eos_token_ids=ends)


def allowed(mask: Mask) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


# What a matcher says of guesses


@needs_library
def test_what_is_forced_is_all_that_is_allowed(maker: ConstraintMaker, text: TextModel) -> None:
    matcher = maker.make(FORMS[0])
    forced = matcher.forced()
    assert text.tokenizer.decode(forced).startswith('{"full_name":')
    for token, mask in zip(forced, matcher.masks(forced), strict=False):
        assert allowed(mask) == [token]
    assert matcher.forced() == forced, "to say so moves nothing"
    for token in text.tokenizer.encode('{"full_name":"x'):
        matcher.accept(token)
    assert matcher.forced() == []


@needs_library
def test_guesses_that_are_not_allowed_leave_the_matcher_where_it_is(maker: ConstraintMaker, text: TextModel) -> None:
    matcher = maker.make(FORMS[0])
    right, wrong = text.tokenizer.encode('{"full_name"'), text.tokenizer.encode("]")[0]
    guesses = [*right, wrong, *right]
    assert matcher.num_allowed(guesses) == len(right)
    masks = matcher.masks(guesses)
    assert [bool(mask.any()) for mask in masks] == [True] * (1 + len(right)) + [False] * (1 + len(right))
    for token, mask in zip(right, masks, strict=False):
        assert np.array_equal(matcher.mask(), mask)
        matcher.accept(token)


@needs_library
def test_behind_the_end_nothing_is_said(maker: ConstraintMaker, text: TextModel) -> None:
    matcher = maker.make(ConstraintSpec("choice", '["no"]'))
    ids = text.tokenizer.encode("no")
    masks = matcher.masks([*ids, *text.config.eos_token_ids, 5])
    assert [bool(mask.any()) for mask in masks] == [True] * len(ids) + [False] * 3
    for token in ids:
        matcher.accept(token)
    assert matcher.is_done


@needs_library
def test_a_guess_at_a_state_that_is_too_large_hurts_only_when_it_comes(maker: ConstraintMaker, text: TextModel) -> None:
    matcher = maker.make(ConstraintSpec("grammar", "start: " + " | ".join(f'"a{n}"' for n in range(8000)) + ' | "b"'))
    a, b = (text.tokenizer.encode(letter)[0] for letter in "ab")
    assert [bool(mask.any()) for mask in matcher.masks([a, a])] == [True, False, False]
    twin = matcher.copy("response_format")
    matcher.accept(b)
    assert matcher.is_done
    with pytest.raises(ConstraintError, match="cannot be followed"):
        twin.accept(a)
        twin.masks([])


def test_guesses_have_a_budget_of_their_own() -> None:
    class Slow:
        """As the library's: everything is allowed; the next mask comes at once, those behind it take their time."""

        now_s, takes_s = 0.0, 0.0

        def deep_copy(self) -> "Slow":
            copy = Slow()
            copy.takes_s, copy.watch = 0.1, self  # type: ignore[attr-defined]
            return copy

        def unsafe_compute_mask_ptr(self, pointer: int, num_bytes: int) -> None:
            ctypes.memset(pointer, 255, num_bytes)
            getattr(self, "watch", self).now_s += self.takes_s

        def try_consume_tokens(self, tokens: list[int]) -> int:
            return len(tokens)

        def consume_token(self, token: int) -> bool:
            return True

        def is_error(self) -> bool:
            return False

        is_stopped = is_error

    slow = Slow()
    matcher = TokenMatcher(slow, 4, "guided_regex", cpu_s=lambda: slow.now_s)
    found = []
    for _ in range(100):
        found.append(sum(bool(mask.any()) for mask in matcher.masks([1, 2])))
        matcher.accept(1)  # it goes on, whatever its guesses cost
    assert found[0] == 3 and found.count(1) > 80


# Who guesses what


class Form:
    """Forces what it is told to, and allows so many of any guesses."""

    def __init__(self, forced: Sequence[int] = (), num: int = 9) -> None:
        self.next, self.num = list(forced), num

    def forced(self) -> list[int]:
        return self.next

    def num_allowed(self, guesses: Sequence[int]) -> int:
        return min(self.num, len(guesses))


def test_the_form_is_asked_first_and_then_the_text() -> None:
    form: Any = Form([7, 8, 9])
    tokens, plain, guessing = np.array([1, 2, 3, 4, 1, 2], np.int32), Guessing(), FormGuessing(form)
    assert guessing.guess(tokens, 6, 2, 0.9) == [7, 8], "sure, at any price below that of a whole step"
    guessing.settle(2, 2)
    form.next = []
    for num, expected in ((9, [3, 4, 1]), (2, [3, 4]), (0, [])):
        form.num = num
        assert guessing.guess(tokens, 6, 3, 0.0) == expected
    assert plain.guess(tokens, 6, 3, 0.0) == [3, 4, 1]
    assert guessing._lookup.hopes == plain.hopes, "what was forced says nothing of the text"
    guessing.settle(0, 1)
    assert guessing._lookup.hopes != plain.hopes


# In an engine


@pytest.fixture
def at_any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Speculator, "_price", lambda self, num: 0.0)


@pytest.fixture(params=["roomy", "scarce"])
def engines(tiny_model: Path, at_any_price: None, request: pytest.FixtureRequest) -> Iterator[list[LocalEngine]]:
    """Without guesses, and with them; where memory is scarce, requests lose theirs and are computed again."""
    scarce = {"kv_memory_bytes": 50_000, "max_batch_tokens": 24, "max_seq_len": 90, "block_size": 4}
    config: dict[str, Any] = {"kernels": "numpy", "max_batch_size": 8, "kv_memory_bytes": 2 << 20}
    if request.param == "scarce":
        config |= scarce
    made = [LocalEngine(EngineConfig(tiny_model, speculate=most, **config)) for most in (0, 6)]
    yield made
    preempted = [engine.stats().num_preemptions for engine in made]
    for engine in made:
        engine.close()
    assert all(preempted) == (request.param == "scarce"), preempted


@needs_library
@pytest.mark.parametrize("wishes", [{"temperature": 0.0}, {"temperature": 1.3, "top_k": 50}, {"ignore_eos": True}])
def test_the_text_is_the_same_with_and_without_guesses(
    engines: list[LocalEngine], text: TextModel, wishes: dict[str, Any]
) -> None:
    prompt = tuple(text.tokenizer.encode("The queue holds, the queue waits, the request waits for its turn"))
    texts: list[list[tuple[list[int], str | None]]] = []
    for engine in engines:
        streams = []
        for seed in range(8):
            sampling = SamplingParams(**{"max_tokens": 60, "seed": seed, "logprobs": 1, **wishes})
            form = FORMS[seed % 4] if seed < 7 else None  # and one that is free
            streams.append(engine.submit(GenerateRequest(str(seed), prompt, sampling, constraint=form)))
        found = []
        for stream in streams:
            events = list(stream)
            assert all(event.error is None for event in events)
            ids = [token for event in events for token in event.token_ids]
            assert [score.token_id for event in events for score in event.logprobs] == ids
            found.append((ids, events[-1].finish_reason))
        texts.append(found)
    plain, guessing = texts
    assert plain == guessing
    assert [reason for _, reason in plain].count("stop") >= 3
    before, after = (engine.stats() for engine in engines)
    assert after.accepted_tokens > 40 and after.batch_size_sum < before.batch_size_sum
    assert after.kv_usage == 0.0


class Follower:
    """Everything is allowed until it breaks, or is complete, with its n-th token."""

    def __init__(self, breaks: int = -1, completes: int = -1) -> None:
        self.breaks, self.completes, self.num = breaks, completes, 0

    @property
    def is_done(self) -> bool:
        return self.num == self.completes

    def mask(self) -> Mask:
        return np.full(4, 0xFFFFFFFF, np.uint32)

    def masks(self, guesses: Sequence[int]) -> list[Mask]:
        return [self.mask()] * (1 + len(guesses))

    def forced(self) -> list[int]:
        return []

    def num_allowed(self, guesses: Sequence[int]) -> int:
        return len(guesses)

    def accept(self, token_id: int) -> None:
        self.num += 1
        if self.num == self.breaks:
            raise ConstraintError("it breaks here", param="guided_regex")


class FollowerMaker:
    def __init__(self, **options: int) -> None:
        self.options = options

    def make(self, spec: ConstraintSpec) -> Follower:
        return Follower(**self.options)


@pytest.mark.parametrize("number", range(1, 12))
@pytest.mark.parametrize("how", ["breaks", "completes"])
def test_an_answer_breaks_or_is_complete_amid_right_guesses(new_rig: Any, how: str, number: int) -> None:
    found = []
    for speculate in (0, 4):
        masks = MaskAhead(lambda: FollowerMaker(**{how: number}))
        rig = new_rig(num_words=1, speculate=speculate, masks=masks)  # says 0 for ever
        rig.add("r", [1, 2, 3], 30, constraint=ConstraintSpec("regex", "a"))
        rig.core._preparing._open["r"][1].masks()  # it is compiled
        rig.run()
        masks.close()
        last = rig.last("r")
        found.append((rig.tokens("r"), last.finish_reason, last.error and last.error.code))
        assert rig.all_blocks_free
        assert speculate == 0 or number < 6 or rig.core.stats().accepted_tokens > 0
    assert found[0] == found[1]
    assert found[0][0] == (0,) * (number - (how == "breaks"))
    assert found[0][1] == ("error" if how == "breaks" else "stop")
