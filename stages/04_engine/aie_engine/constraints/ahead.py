"""Constraints beside the forward pass: threads that compile and one that masks, so that the engine's step waits for
neither.

    step      … accept token │ guess │ schedule │ look ahead ─┐ execute (the model reads the token) │ sample
    masks                                                     └─ masks ─────▶ there when wanted ────┘

What new requests ask for is compiled by threads of their own (`compiling.py`), which may take a second; another one
computes masks, which takes some ten microseconds, rarely milliseconds. The library gives up Python's lock while it does
either. Following a token takes microseconds and is done at once, so that an answer whose form is complete ends with
that token.

How a core uses it: `open` when a request arrives, and the scheduler only when it is ready (else a step would wait);
`look_ahead` when a step begins that samples for it, with the guesses that the step checks; `masks` when its rows are
sampled; `accept` with each token unless that token ended the answer; `is_done` then means that it ends with "stop",
though not by a stop token. What `masks` or `accept` raises ends this request with that error.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from aie_engine.constraints.compiling import Compilation, CompileThreads, Maker
from aie_engine.constraints.errors import ConstraintError
from aie_engine.constraints.matching import Mask
from aie_engine.constraints.spec import ConstraintSpec

__all__ = ["ConstrainedAnswer", "MaskAhead"]


class MaskAhead:
    """For one engine. The threads begin with the first constrained request.

    new_maker: called once, by a thread that compiles, since it reads the model's whole vocabulary. For part of that,
    the library keeps Python's lock: the first constrained request of an engine delays the steps under way once.
    timeout_s: that one form may take to compile. clock: of the engine.
    """

    def __init__(
        self, new_maker: Callable[[], Maker], *, timeout_s: float = 15.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._compiling = CompileThreads(new_maker, timeout_s=timeout_s, clock=clock)
        self._masking = ThreadPoolExecutor(1, "aie-masks")

    def open(self, spec: ConstraintSpec, when_ready: Callable[[], None] | None = None) -> "ConstrainedAnswer":
        """A constraint for one answer; begins to compile it. `when_ready` is called, by another thread as a rule, once
        it is compiled or has failed: until then `mask` would have to wait."""
        return ConstrainedAnswer(self._compiling.begin(spec, when_ready), self._masking)

    def close(self) -> None:
        """Wait for what is being computed; the rest is dropped."""
        self._compiling.close()
        self._masking.shutdown(wait=True, cancel_futures=True)


class ConstrainedAnswer:
    """A `Constraint` whose next mask is computed ahead. For one thread, the engine's.

    Its state is that of the answer and not of any step: a request that is preempted keeps it, and recomputing tokens
    that were accepted does not touch it.
    """

    def __init__(self, compilation: Compilation, masking: ThreadPoolExecutor) -> None:
        self._compilation: Compilation | None = compilation
        self._made = compilation.made
        self._masking = masking
        self._next: Future[list[Mask]] | None = None  # computed ahead, or being so
        self.is_done = False

    @property
    def is_ready(self) -> bool:
        """It is compiled, or has failed (then `mask` raises why)."""
        return self._made.done()

    def expires_at(self, now: float) -> float | None:
        """When `give_up` may have something to do; None: never."""
        return None if self._compilation is None or self.is_ready else self._compilation.expires_at(now)

    def give_up(self, now: float) -> None:
        """If it takes too long to compile, it fails now."""
        if self._compilation is not None:
            self._compilation.give_up(now)

    def look_ahead(self, guesses: Sequence[int] = ()) -> None:
        """Begin to compute the masks of the next token and of those behind `guesses`."""
        if not self._made.exception():
            self._next = self._masking.submit(self._made.result().masks, tuple(guesses))

    def forced(self) -> list[int]:
        """The tokens that come next where the form leaves no choice; none once it has failed."""
        return [] if self._made.exception() else self._made.result().forced()

    def num_allowed(self, guesses: Sequence[int]) -> int:
        """How many of `guesses` the form allows, one after the other."""
        return 0 if self._made.exception() else self._made.result().num_allowed(guesses)

    def mask(self) -> Mask:
        """Of the next token."""
        return self.masks()[0]

    def masks(self) -> list[Mask]:
        """As `Constraint.masks` for the guesses of `look_ahead`, and without that for none. Waits where it has to.
        Raises `ConstraintError`, `ConstraintsUnavailableError` and what the loader raises."""
        try:
            return self._made.result().masks(()) if self._next is None else self._next.result()
        except Exception as error:
            self._let_go(error)
            raise

    def accept(self, token_id: int) -> None:
        constraint = self._made.result()
        assert self._next is None or self._next.done(), "a token was accepted whose mask nobody has seen"
        self._next = None
        try:
            constraint.accept(token_id)
        except Exception as error:
            self._let_go(error)
            raise
        self.is_done = constraint.is_done

    def _let_go(self, error: Exception) -> None:
        """An error knows the frames that it came through, one of which compiled, and those of whoever asked know this
        answer. Kept here, it would close a circle: what was compiled, a hundred megabytes at worst, would then stay
        until the garbage collector came by."""
        self._next = self._compilation = None
        self._made = Future()
        self._made.set_exception(ConstraintError(str(error), param=getattr(error, "param", None)))

    def close(self) -> None:
        """The answer has ended: what has not begun to be compiled or computed for it will not be."""
        if self._compilation is not None:
            self._compilation.drop()
        if self._next is not None:
            self._next.cancel()
