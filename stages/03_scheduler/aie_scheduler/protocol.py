"""The one face that all schedulers show, so that one can be swapped for another without touching the engine.

The life of a step, always in this order and from one thread:

    plan = scheduler.schedule(now)      what to compute, and in which blocks
    ... the executor runs the plan and samples one token per chunk with `samples=True` ...
    scheduler.update(plan, finished)    what has been computed, and who is done

`add` and `cancel` may come between any two of these calls; between `schedule` and `update` too. What a step computed
counts from `update` on and not before: a step that failed is never updated, and a request that failed in it is told by
`fail`.
"""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from aie_scheduler.config import SchedulerConfig
from aie_scheduler.plan import SchedulerStats, StepPlan
from aie_scheduler.request import Request

__all__ = ["Scheduler"]


@runtime_checkable
class Scheduler(Protocol):
    """Turns requests into steps."""

    def add(self, request: Request) -> None:
        """Take a request in. Raises `QueueFullError` (503), `RequestTooLongError` (400), `InvalidInputError` (400)."""

    def cancel(self, request_id: str) -> bool:
        """Forget a request; its blocks are free on return. False if it is not known (any more)."""
        ...

    def propose(self, request_id: str, num_drafts: int) -> None:
        """Guesses at a request's next tokens, to be checked by the next `schedule`, which may take fewer or none.

        Valid for that one call. Schedulers that do not speculate take no notice.
        """

    def fail(self, request_id: str) -> bool:
        """As `cancel`, before `update`, for a request whose computation went wrong: nothing it computed is kept."""
        ...

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None when there is nothing to do (yet: see `next_deadline`). `now` is in seconds."""

    def update(self, plan: StepPlan, finished: Collection[str], accepted: Mapping[str, int] | None = None) -> None:
        """Record a plan as computed. Each chunk that samples has appended one token, or as many as `accepted` says
        (1 to 1 + its `num_drafts`). Ids in `finished` are released.
        """

    def drain(self) -> None:
        """No more requests will come: who waits for company need not. Without effect on the others."""

    def next_deadline(self, now: float) -> float | None:
        """When `schedule` may have something to do without a new request: `now` or a later time; None for never."""

    def stats(self) -> SchedulerStats:
        """Numbers for metrics and logs."""
        ...

    @property
    def config(self) -> SchedulerConfig:
        """The limits it keeps."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        ...
