"""The book of timelines fed by the real scheduler: whatever happens, the phases add up."""

import random

import pytest

from aie_engine.timeline import TimelineBook
from aie_scheduler import ContinuousBatcher, Request, SchedulerConfig


def test_random_traffic_through_the_real_scheduler_adds_up_to_the_microsecond() -> None:
    """Tiny cache, so that everything happens; whoever ends, the phases sum to the time from arrival to end."""
    numbers = random.Random(7)
    limits = SchedulerConfig(
        max_batch_size=4, max_batch_tokens=16, max_seq_len=64, max_queue=64, block_size=4, num_blocks=20
    )
    scheduler = ContinuousBatcher(limits)
    book, now = TimelineBook(0.0, max_kept=1000), 0.0
    born: dict[str, float] = {}
    left: dict[str, int] = {}
    forms: dict[str, tuple[Request, float]] = {}  # being compiled, until when
    died: dict[str, float] = {}
    serial = 0
    for step in range(3000):
        now += numbers.random() * 0.002
        if step < 2000 and numbers.random() < 0.25 and len(left) < 40:
            name, serial = f"r{serial}", serial + 1
            wanted = numbers.randint(1, 20)
            deadline = now + numbers.random() * 0.4 if numbers.random() < 0.1 else None
            request = Request(
                request_id=name, prompt_len=numbers.randint(1, 40), max_tokens=wanted, arrival_s=now,
                deadline_s=deadline,
                block_content=lambda index, family=serial % 3: b"%d %d" % (family, index),
            )  # fmt: skip
            born[name] = now
            if numbers.random() < 0.2:  # its form has to be compiled first
                book.added(name, now, compiles=True)
                forms[name] = request, now + numbers.random() * 0.05
            else:
                book.added(name, now)
                scheduler.add(request)
                left[name] = wanted
        for name, (request, ready_s) in list(forms.items()):
            if numbers.random() < 0.02:
                book.ended(name, "cancelled", now)
                died[name] = now
                del forms[name]
            elif now >= ready_s:
                book.compiled(name, now)
                scheduler.add(request)
                left[name] = request.max_tokens
                del forms[name]
        if left and numbers.random() < 0.02:
            name = numbers.choice(sorted(left))
            scheduler.cancel(name)
            book.ended(name, "cancelled", now)
            died[name] = now
            del left[name]
        plan = scheduler.schedule(now)
        if plan is None:
            continue
        began = now
        book.planned(plan, began)
        for name in plan.expired:
            died[name] = began
            del left[name]
        if not plan.chunks:
            continue
        now += 0.001 + plan.num_tokens * 1e-4 * numbers.random()
        done = []
        for piece in plan.chunks:
            if piece.samples:
                left[piece.request_id] -= 1
                if left[piece.request_id] == 0:
                    done.append(piece.request_id)
        scheduler.update(plan, done)
        book.stepped(plan, began, now)
        for name in done:
            book.ended(name, "length", now)
            died[name] = now
            del left[name]
    assert not left and not forms and scheduler.stats().num_preemptions > 20
    num_preempted = num_stalled = num_shared = num_compiled = 0
    for name, born_s in born.items():
        (report,) = book.explain([name], now).requests
        assert report.total_us == sum(report.phases_us.values()) == pytest.approx((died[name] - born_s) * 1e6, abs=1)
        assert min(report.phases_us.values()) >= 0
        assert sum(share.us for share in report.stalled_by) <= report.phases_us["stalled"] + len(report.stalled_by)
        num_compiled += report.phases_us["compiling"] > 0
        num_preempted += report.phases_us["preempted"] > 0
        num_stalled += report.phases_us["stalled"] > 0
        num_shared += report.cached_tokens > 0 and not report.preemptions
    assert num_preempted and num_stalled and num_shared and num_compiled


def test_two_of_one_prompt_through_the_real_scheduler() -> None:
    limits = SchedulerConfig(max_batch_size=4, max_batch_tokens=8, max_seq_len=64, block_size=4, num_blocks=32)
    scheduler, book, now = ContinuousBatcher(limits), TimelineBook(0.0), 0.0
    for name in ("first", "twin"):
        scheduler.add(Request(request_id=name, prompt_len=12, max_tokens=3, block_content=lambda index: b"%d" % index))
        book.added(name, now, 12)
    for _ in range(3):
        plan = scheduler.schedule(now)
        assert plan is not None
        book.planned(plan, now)
        book.stepped(plan, now, now + 0.010)
        now += 0.010
        scheduler.update(plan, ())
    (twin,) = book.explain(["twin"], now).requests
    assert twin.phases_us["prefix"] > 0
    assert [(share.request_id, share.us) for share in twin.held_by] == [("first", twin.phases_us["prefix"])]
    assert twin.cached_tokens == 8 and twin.prefill_tokens == 4
