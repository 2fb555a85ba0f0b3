"""The book of timelines on made-up steps: every microsecond in one phase, and whose fault it was."""

import random
import sys
from collections.abc import Mapping

import pytest

from aie_engine.decode_pace import DecodePace
from aie_engine.timeline import TimelineBook
from aie_engine.timeline_report import ENGINE_PHASES, TimelineReport, whole_us
from aie_scheduler import (
    HeldBack,
    Preemption,
    ScheduledChunk,
    StepPlan,
)

MS = 0.001


def chunk(request_id: str, start: int, num_tokens: int, *, samples: bool = True, drafts: int = 0) -> ScheduledChunk:
    return ScheduledChunk(request_id, start, num_tokens, [], samples, drafts)


class Run:
    """A book, a clock, and steps of a chosen length."""

    def __init__(self, **options: int) -> None:
        self.now = 100.0
        self.book = TimelineBook(self.now, **options)

    def wait(self, ms: float) -> None:
        self.now += ms * MS

    def add(self, request_id: str, num_prompt: int = 10) -> None:
        self.book.added(request_id, self.now, num_prompt)

    def step(
        self, ms: float, *chunks: ScheduledChunk, accepted: Mapping[str, int] | None = None, **news: object
    ) -> None:
        plan = StepPlan(chunks=list(chunks), **news)  # type: ignore[arg-type]
        began = self.now
        self.book.planned(plan, began)
        self.wait(ms)
        self.book.stepped(plan, began, self.now, accepted)

    def end(self, request_id: str, reason: str = "stop") -> TimelineReport:
        self.book.ended(request_id, reason, self.now)
        return self.of(request_id)

    def of(self, request_id: str) -> TimelineReport:
        (report,) = self.book.explain([request_id], self.now).requests
        return report


def spent(report: TimelineReport) -> dict[str, int]:
    return {name: us for name, us in report.phases_us.items() if us}


def shares(found: list) -> dict[str, int]:
    return {share.request_id: share.us for share in found}


def test_a_lonely_request_from_queue_to_last_token() -> None:
    run = Run()
    run.add("a")
    run.wait(2)
    run.step(30, chunk("a", 0, 6, samples=False), admitted={"a": 0})
    run.wait(1)
    run.step(20, chunk("a", 6, 4))
    run.wait(1)
    run.step(10, chunk("a", 10, 1))
    run.wait(0.5)
    report = run.end("a", "length")
    assert spent(report) == {"turn": 2000, "prefill": 50_000, "between": 2500, "decode": 10_000}
    assert report.total_us == 64_500 == sum(report.phases_us.values())
    assert (report.state, report.is_open, report.first_token_us) == ("length", False, 53_000)
    assert (report.prefill_steps, report.prefill_tokens, report.decode_steps, report.generated_tokens) == (2, 10, 1, 2)
    assert list(report.phases_us) == list(ENGINE_PHASES)


def test_the_queue_says_why_and_who_holds_the_blocks() -> None:
    run = Run()
    run.add("big")
    run.step(5, chunk("big", 0, 10), admitted={"big": 0})
    run.add("b")
    run.wait(1)
    held = HeldBack("b", "blocks", 5, 2, (("big", 9), ("other", 3)))
    run.step(10, chunk("big", 10, 1), held=held)
    run.add("c")  # behind b: what holds up the head holds up everybody
    more = HeldBack("b", "blocks", 5, 1, (("big", 10), ("other", 3)))
    run.step(10, chunk("big", 11, 1), held=more)
    run.step(10, chunk("big", 12, 1), held=HeldBack("b", "batch_full", 5, 6))
    queue = run.book.explain_all(0, run.now).queue
    assert queue is not None and (queue.request_id, queue.reason, queue.for_us) == ("b", "batch_full", 10_000)
    run.step(10, chunk("b", 0, 10), chunk("c", 0, 10), admitted={"b": 0, "c": 0})
    b, c = run.end("b"), run.end("c")
    assert spent(b) == {"turn": 1000, "blocks": 20_000, "batch_full": 10_000, "prefill": 10_000}
    assert spent(c) == {"blocks": 10_000, "batch_full": 10_000, "prefill": 10_000}
    assert shares(b.held_by) == {"big": 20_000, "other": 20_000}
    assert {share.request_id: share.blocks for share in b.held_by} == {"big": 10, "other": 3}
    assert shares(c.held_by) == {"big": 10_000, "other": 10_000}
    assert run.book.explain_all(0, run.now).queue is None


def test_who_waits_for_a_shared_prefix_and_who_comes_in_the_meantime() -> None:
    run = Run()
    for name in ("first", "twin", "third"):
        run.add(name)
    held = HeldBack("twin", "prefix", 1, 50, (("first", 4),))
    run.step(10, chunk("first", 0, 8), admitted={"first": 0}, held=held)
    run.now -= 10 * MS
    run.add("stranger")  # as the step began
    run.now += 10 * MS
    admitted = {"twin": 8, "third": 8, "stranger": 0}
    run.step(10, chunk("twin", 8, 2), chunk("third", 8, 2), chunk("stranger", 0, 9), admitted=admitted)
    twin, third, stranger = (run.end(name) for name in ("twin", "third", "stranger"))
    assert spent(twin) == spent(third) == {"prefix": 10_000, "prefill": 10_000}
    assert twin.cached_tokens == 8 and twin.prefill_tokens == 2 and shares(twin.held_by) == {"first": 10_000}
    assert spent(stranger) == {"turn": 10_000, "prefill": 10_000} and stranger.held_by == []


def test_a_stall_is_what_the_decodes_would_not_have_needed_by_tokens() -> None:
    run = Run()
    for name in "ab":
        run.add(name)
    run.step(20, chunk("a", 0, 10), chunk("b", 0, 10), admitted={"a": 0, "b": 0})
    run.step(8, chunk("a", 10, 1), chunk("b", 10, 1))
    run.add("x")
    run.add("y")
    prompts = chunk("x", 0, 30, samples=False), chunk("y", 0, 10)
    run.step(48, chunk("a", 11, 1), chunk("b", 11, 1), *prompts, admitted={"x": 0, "y": 0})
    a, x, y = run.end("a"), run.end("x"), run.end("y")
    assert spent(a) == {"prefill": 20_000, "decode": 16_000, "stalled": 40_000}
    assert shares(a.stalled_by) == {"x": 30_000, "y": 10_000}
    assert spent(x) == spent(y) == {"prefill": 48_000}


def test_before_anything_is_known_of_the_pace_tokens_share_the_step() -> None:
    pace = DecodePace()
    assert pace.need_s(2, 8, 0.4) == pytest.approx(0.1)
    pace.learn(4, 0.010)
    assert pace.need_s(2, 8, 0.4) == pytest.approx(0.010)
    pace.learn(8, 0.018)
    assert pace.need_s(6, 80, 0.4) == pytest.approx(0.014)
    assert pace.need_s(16, 80, 0.4) == pytest.approx(0.018)
    assert pace.need_s(6, 80, 0.004) == 0.004, "never more than the step took"
    assert pace.need_s(0, 80, 0.4) == 0.0
    pace.learn(4, 0.018)
    assert pace.need_s(4, 80, 0.4) == pytest.approx(0.011)


def test_preempted_waits_computes_again_and_names_the_culprit() -> None:
    run = Run()
    run.add("a")
    run.add("v")
    run.step(10, chunk("a", 0, 10), chunk("v", 0, 10), admitted={"a": 0, "v": 0})
    run.step(5, chunk("a", 10, 1), chunk("v", 10, 1))
    lost = Preemption("v", "a", 11)
    held = HeldBack("v", "blocks", 4, 0, (("a", 4),))
    run.step(5, chunk("a", 11, 1), preempted=[lost], held=held)
    run.step(12, chunk("a", 12, 1), chunk("v", 4, 4, samples=False), admitted={"v": 4})
    run.step(12, chunk("a", 13, 1), chunk("v", 8, 4))
    v = run.end("v")
    # of the 11 lost tokens the cache had 4; 7 of the 8 computed are recomputed, the last is the one never computed
    assert (v.preemptions, v.lost_tokens, v.cached_tokens, v.recomputed_tokens) == (1, 11, 4, 7)
    assert spent(v) == {
        "prefill": 10_000 + 3000, "decode": 5000, "preempted": 5000, "recompute": 12_000 + 9000,
    }  # fmt: skip
    assert [(share.request_id, share.times) for share in v.preempted_by] == [("a", 1)]
    assert shares(v.held_by) == {"a": 5000}
    assert [(event.what, event.at_us, event.tokens, event.by) for event in v.events] == [
        ("admitted", 0, 0, ""),
        ("preempted", 15_000, 11, "a"),
        ("admitted", 20_000, 4, ""),
    ]
    a = run.end("a")
    assert shares(a.stalled_by) == {"v": 14_000}, "recomputing stalls others as a first prefill does"


def test_who_sits_out_a_step_is_paused() -> None:
    run = Run()
    run.add("a")
    run.step(10, chunk("a", 0, 4, samples=False), admitted={"a": 0})
    run.wait(1)
    run.add("b")
    run.step(10, chunk("b", 0, 10), admitted={"b": 0})
    run.wait(1)
    run.step(10, chunk("b", 10, 1), chunk("a", 4, 6))
    assert spent(run.end("a")) == {"prefill": 20_000, "paused": 12_000}


def test_guesses_that_were_right_are_counted() -> None:
    run = Run()
    run.add("a")
    run.step(10, chunk("a", 0, 10), admitted={"a": 0})
    run.step(10, chunk("a", 10, 4, drafts=3), accepted={"a": 3})
    run.step(10, chunk("a", 13, 3, drafts=2), accepted={"a": 1})
    report = run.of("a")
    assert (report.decode_steps, report.generated_tokens) == (2, 5)
    assert (report.drafted_tokens, report.accepted_tokens) == (5, 2)


def test_an_end_within_a_step_still_gets_its_part_of_it() -> None:
    run = Run()
    run.add("a")
    run.step(10, chunk("a", 0, 10), admitted={"a": 0})
    plan, began = StepPlan(chunks=[chunk("a", 10, 1)]), run.now
    run.book.planned(plan, began)
    run.wait(4)
    run.book.ended("a", "stop", run.now)  # the core tells the news before it tells the time
    run.wait(1)
    run.book.stepped(plan, began, run.now)
    assert spent(run.of("a")) == {"prefill": 10_000, "decode": 5000}
    assert not run.of("a").is_open


def test_a_step_that_failed_is_nobodys_but_is_accounted_for() -> None:
    run = Run()
    run.add("a")
    run.add("b")
    run.book.planned(StepPlan(chunks=[chunk("a", 0, 10)], admitted={"a": 0}), run.now)
    run.wait(7)
    run.book.ended("a", "error", run.now)
    run.step(5, chunk("b", 0, 10), admitted={"b": 0}, expired=[])
    a = run.of("a")
    assert (a.state, a.total_us) == ("error", 7000)


def test_a_token_that_nobody_got_is_not_counted() -> None:
    run = Run()
    run.add("a")
    run.add("b")
    run.step(10, chunk("a", 0, 10), admitted={"a": 0})
    plan, began = StepPlan(chunks=[chunk("a", 10, 1), chunk("b", 0, 10)], admitted={"b": 0}), run.now
    run.book.planned(plan, began)
    run.wait(4)
    for name in "ab":
        run.book.ended(name, "error", run.now)
    run.book.stepped(plan, began, run.now)
    a, b = run.of("a"), run.of("b")
    assert (a.generated_tokens, a.decode_steps, a.total_us) == (1, 1, 14_000)
    assert (b.generated_tokens, b.first_token_us, b.total_us) == (0, None, 14_000)


def test_the_deadline_of_one_who_waits_ends_its_wait() -> None:
    run = Run()
    run.add("a")
    run.add("late")
    run.wait(3)
    run.step(10, chunk("a", 0, 10), admitted={"a": 0}, expired=["late"])
    run.book.ended("late", "deadline", run.now)  # told again, after the step
    late = run.of("late")
    assert (late.state, spent(late)) == ("deadline", {"turn": 3000})


def test_who_leaves_before_any_plan_saw_it() -> None:
    run = Run()
    run.add("a")
    run.wait(3)
    assert spent(run.end("a", "cancelled")) == {"turn": 3000}
    run.wait(5)
    run.add("b")
    run.step(10, chunk("b", 0, 10), admitted={"b": 0})
    assert spent(run.of("a")) == {"turn": 3000} and not run.book._newcomers


def test_a_form_is_compiled_before_the_queue() -> None:
    run = Run()
    run.book.added("a", run.now, 10, compiles=True)
    run.book.added("gone", run.now, 10, compiles=True)
    run.add("other")
    run.step(10, chunk("other", 0, 10), admitted={"other": 0})
    assert (run.of("a").state, spent(run.of("a"))) == ("compiling", {"compiling": 10_000})
    assert spent(run.end("gone", "cancelled")) == {"compiling": 10_000}
    run.wait(3)
    run.book.compiled("a", run.now)
    run.wait(2)
    assert (run.of("a").state, spent(run.of("a"))) == ("waiting", {"compiling": 13_000, "turn": 2000})
    run.step(10, chunk("a", 0, 10), admitted={"a": 0})
    a = run.end("a")
    assert spent(a) == {"compiling": 13_000, "turn": 2000, "prefill": 10_000} and a.first_token_us == 25_000


def test_who_ends_in_a_step_while_its_form_is_compiled() -> None:
    run = Run()
    run.add("other")
    run.book.added("a", run.now, 10, compiles=True)
    plan, began = StepPlan(chunks=[chunk("other", 0, 10)], admitted={"other": 0}), run.now
    run.book.planned(plan, began)
    run.wait(4)
    run.book.ended("a", "cancelled", run.now)
    assert (run.of("a").state, spent(run.of("a"))) == ("cancelled", {"compiling": 4000})
    run.book.stepped(plan, began, run.now)
    assert spent(run.of("a")) == {"compiling": 4000}


def test_a_scheduler_that_does_not_say_whom_it_admits() -> None:
    run = Run()
    run.add("a")
    run.wait(3)
    run.step(10, chunk("a", 0, 10))
    assert spent(run.end("a")) == {"turn": 3000, "prefill": 10_000}


def test_open_ones_are_explained_without_being_touched() -> None:
    run = Run()
    run.add("a")
    run.step(10, chunk("a", 0, 10), admitted={"a": 0}, held=HeldBack("w", "blocks", 4, 0, (("a", 4),)))
    run.add("w")
    run.wait(2)
    assert spent(run.of("w")) == spent(run.of("w")) == {"turn": 2000}, "until a step is planned, nothing else is known"
    run.step(3, chunk("a", 10, 1), held=HeldBack("w", "blocks", 4, 0, (("a", 4),)))
    run.wait(6)
    for _ in range(2):
        waiting, running = run.of("w"), run.of("a")
        assert (waiting.state, spent(waiting)) == ("waiting", {"turn": 2000, "blocks": 9000})
        assert shares(waiting.held_by) == {"a": 9000}
        assert (running.state, spent(running)) == ("decode", {"prefill": 10_000, "decode": 3000, "between": 8000})
    everything = run.book.explain_all(5, run.now)
    assert [report.request_id for report in everything.requests] == ["a", "w"] and everything.num_open == 2
    assert spent(run.end("w", "cancelled")) == {"turn": 2000, "blocks": 9000}


def test_only_the_last_are_remembered_and_nothing_grows() -> None:
    run = Run(max_kept=3)
    for index in range(50):
        run.add(f"r{index}")
        run.step(1, chunk(f"r{index}", 0, 10), admitted={f"r{index}": 0})
        run.end(f"r{index}")
    answer = run.book.explain_all(2, run.now)
    assert [report.request_id for report in answer.requests] == ["r49", "r48"]
    assert (answer.num_open, answer.num_kept, answer.max_kept) == (0, 3, 3)
    assert run.book.explain(["r0", "nobody"], run.now).requests == []

    run.add("victim")
    for index in range(200):
        by = f"by{index}"
        run.step(1, chunk("victim", 0, 10), admitted={"victim": 0})
        run.step(1, chunk("victim", 10, 1))
        run.add(by)
        run.step(9, chunk("victim", 11, 1), chunk(by, 0, 10), admitted={by: 0})
        held = HeldBack("victim", "blocks", 9, 0, ((by, 4),))
        run.step(1, chunk(by, 10, 1), preempted=[Preemption("victim", by, 11)], held=held)
        run.end(by)
    victim = run.book._open["victim"]
    kinds = victim.preempted_by, victim.held_by, victim.stalled_by, victim.events
    assert [len(kind) for kind in kinds] == [17, 17, 17, 16], "sixteen by name, the others together"
    assert sum(victim.preempted_by.values()) == victim.preemptions == 200
    report = run.of("victim")
    assert len(report.held_by) == 8 and report.num_events == 400
    assert len(run.book._queue._holds) <= 256


def test_whole_microseconds_add_up() -> None:
    numbers = random.Random(1)
    for _ in range(200):
        seconds = [numbers.random() * 10 ** numbers.randint(-7, 1) for _ in range(12)]
        assert sum(whole_us(seconds)) == round(sum(seconds) * 1e6)
        assert min(whole_us(seconds)) >= 0


def test_a_step_costs_little_per_member_and_nothing_per_request_that_waits() -> None:
    """Counted, not timed: calls of any function during one step of decodes."""

    def num_calls(num_members: int, num_waiting: int) -> int:
        run = Run()
        names = [f"r{index}" for index in range(num_members)]
        for name in [*names, *(f"w{index}" for index in range(num_waiting))]:
            run.add(name)
        run.step(9, *(chunk(name, 0, 10) for name in names), admitted=dict.fromkeys(names, 0))
        held = HeldBack("w0", "batch_full", 1, 9) if num_waiting else None
        run.step(9, *(chunk(name, 10, 1) for name in names), held=held)
        plan, counted = StepPlan(chunks=[chunk(name, 11, 1) for name in names], held=held), 0

        def count(_frame: object, event: str, _arg: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        run.book.planned(plan, run.now)
        run.book.stepped(plan, run.now, run.now + 0.009, {})
        sys.setprofile(None)
        return counted

    assert num_calls(32, 0) - num_calls(16, 0) <= 16 * 3
    assert num_calls(16, 500) == num_calls(16, 5)
