"""Unkind traffic on an engine: a window of open requests that is always full, some cancelled, some failing.

Memory is lost on the paths that nobody walks: a request cancelled while it waits, one that runs into its deadline in
the middle of an answer, one that is refused. So these are a fixed share of the traffic, spread evenly, and only their
details are drawn. A new request goes in as soon as one ends: batches that waited for their slowest member would leave
the engine idle and would never mix beginnings with endings.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aie_engine import AieError, EngineDeadError, GenerateRequest, InvalidInputError, SamplingParams

if TYPE_CHECKING:
    from aie_engine import EngineClient, EngineInfo, TokenEvent, TokenStream

__all__ = ["FAULTS", "Mix", "Planned", "kinds", "plan", "run"]

Kind = Literal["finish", "cancel", "fail"]

# In turn. A deadline ends a request at work; the other two are refused before anything is held for them.
FAULTS = ("deadline", "prompt too long", "deadline", "token id unknown")
_MAX_PROMPT, _MAX_ANSWER = 12, 6  # tokens: lengths change nothing about who gives memory back, only how long it takes
_MAX_DEADLINE_S = 0.02
_NUM_PROMPTS = 8
_LONG = 64  # tokens that a request wants which shall not end by itself


@dataclass(frozen=True, slots=True)
class Mix:
    """What traffic is made of. Raises `InvalidInputError` for shares that make no sense."""

    cancel: float = 0.2  # share of the requests that are cancelled
    fail: float = 0.05  # share that fails
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("cancel", "fail"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInputError(f"--{name} is {getattr(self, name)}; give a share from 0 to 1.", param=name)
        if self.cancel + self.fail > 1:
            raise InvalidInputError("--cancel and --fail together are more than all requests (1).", param="cancel")


@dataclass(frozen=True, slots=True)
class Planned:
    """One request to send."""

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    kind: Kind
    cancel_after: int | None = None  # tokens; 0: at once, while it waits
    deadline_s: float | None = None  # from sending


def kinds(mix: Mix) -> Iterator[Kind]:
    """How one request after another shall end: the shares exactly, as evenly as whole numbers allow."""
    cancel_due = fail_due = 0.5
    while True:
        cancel_due += mix.cancel
        fail_due += mix.fail
        if fail_due >= 1:
            fail_due -= 1
            yield "fail"
        elif cancel_due >= 1:
            cancel_due -= 1
            yield "cancel"
        else:
            yield "finish"


def plan(mix: Mix, info: "EngineInfo") -> Iterator[Planned]:
    """Requests without end; the same for the same seed."""
    draw = random.Random(mix.seed)
    num_faults = 0
    longest = max(1, min(_MAX_PROMPT, info.max_seq_len // 2))
    room = info.max_seq_len - longest  # for an answer behind any prompt
    # Few prompts, again and again: each new one would read pages of the mapped model file (rows of the embedding) that
    # none before had read, and resident memory would seem to grow.
    prompts = [
        tuple(draw.randrange(info.vocab_size) for _ in range(draw.randint(1, longest))) for _ in range(_NUM_PROMPTS)
    ]
    for number, kind in enumerate(kinds(mix)):
        prompt = prompts[number % _NUM_PROMPTS]
        wanted, cancel_after, deadline_s = draw.randint(1, min(_MAX_ANSWER, room)), None, None
        if kind == "cancel":
            wanted, cancel_after = min(_LONG, room), draw.randint(0, 4)
        elif kind == "fail":
            fault = FAULTS[num_faults % len(FAULTS)]
            num_faults += 1
            if fault == "deadline":
                wanted, deadline_s = min(_LONG, room), draw.uniform(0, _MAX_DEADLINE_S)
            elif fault == "prompt too long":
                prompt = (prompt[0],) * (info.max_seq_len + 1)
            else:
                prompt = (*prompt[:-1], info.vocab_size)
        yield Planned(f"memdebug-{mix.seed}-{number}", prompt, wanted, kind, cancel_after, deadline_s)


def run(
    engine: "EngineClient",
    planned: Iterable[Planned],
    concurrency: int,
    *,
    on_done: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Counter[str]:
    """Sends all of `planned`, `concurrency` open at once, and waits for the last. Gives how many ended in which way.

    Raises `EngineDeadError` when the engine dies, and whatever `submit` says of a request that was to succeed.
    """
    endings: Counter[str] = Counter()
    waiting = iter(planned)
    window: list[_Open] = []
    while True:
        while len(window) < concurrency and (request := next(waiting, None)) is not None:
            try:
                window.append(_Open(_submit(engine, request, clock()), request.cancel_after))
            except EngineDeadError:
                raise
            except AieError as error:
                if request.kind != "fail":
                    raise
                endings[f"refused ({error.code})"] += 1
                on_done()
        if not window:
            return endings
        # The oldest runs in every step, so waiting for its next token is waiting for a step; the rest never waits.
        for place, entry in enumerate(window):
            entry.read(wait=place == 0)
        for entry in window:
            if entry.ending is not None:
                endings[entry.ending] += 1
                on_done()
        window = [entry for entry in window if entry.ending is None]


class _Open:
    """A request on its way."""

    __slots__ = ("_cancel_after", "_num_tokens", "_stream", "ending")

    def __init__(self, stream: "TokenStream", cancel_after: int | None) -> None:
        self.ending: str | None = None
        self._stream = stream
        self._num_tokens = 0
        self._cancel_after = cancel_after
        self._cancel_if_due()

    def read(self, *, wait: bool) -> None:
        """Takes what has arrived; `wait`: at least one event."""
        with suppress(TimeoutError):
            self._take(self._stream.get(None if wait else 0))

    def _take(self, event: "TokenEvent") -> None:
        self._num_tokens += len(event.token_ids)
        self._cancel_if_due()
        if event.finish_reason is not None:
            failed = event.error is not None and event.finish_reason == "error"
            self.ending = f"error ({event.error.code})" if failed and event.error else event.finish_reason

    def _cancel_if_due(self) -> None:
        if self._cancel_after is not None and self._num_tokens >= self._cancel_after and not self._stream.finished:
            self._cancel_after = None
            self._stream.cancel()


def _submit(engine: "EngineClient", request: Planned, now: float) -> "TokenStream":
    sampling = SamplingParams(temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True)
    deadline_s = None if request.deadline_s is None else now + request.deadline_s
    return engine.submit(GenerateRequest(request.request_id, request.prompt_ids, sampling, deadline_s))
