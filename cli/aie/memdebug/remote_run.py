"""Unkind traffic over HTTP: answered requests, clients that hang up, and requests that the server must refuse.

The server's memory is read while none of our requests is open. A client that hangs up is noticed by the server only at
its next write, so a mark waits until no request holds memory any more, for a few seconds at most: longer is not late,
it is a leak, or somebody else's request.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aie.bench.client import HUNG_UP, Endpoint, Outcome, send_streaming
from aie.console import note
from aie.memdebug.load import Load, report
from aie.memdebug.outputs import Outputs
from aie.memdebug.remote import fetch
from aie.memdebug.show import Progress, print_endings, print_verdict, say, screen
from aie.memdebug.traffic import Mix, kinds
from aie.memdebug.verdict import Marks, judge, slab_blocks
from aie_engine import EnvironmentLacksError, InvalidInputError

if TYPE_CHECKING:
    from aie_tensor.memdebug import MemorySnapshot

__all__ = ["HttpRequest", "http_plan", "look_or_run", "mark_remote_run", "settled"]

_PATH = "/v1/chat/completions"
_SERVE = "`aie serve --memdebug`"
_TIMEOUT_S = 120.0
_SETTLE_S = 5.0
_LOOK_EVERY_S = 0.2
_WORDS = ("memory", "comes", "and", "goes", "but", "what", "never", "comes", "back", "is", "lost")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request to send. `hang_up_after`: the client goes away after so many events; 0: when it has sent all."""

    ending: str
    body: Mapping[str, object]
    hang_up_after: int | None = None


def http_plan(mix: Mix, model: str) -> Iterator[HttpRequest]:
    """Requests without end; the same for the same seed."""
    draw = random.Random(mix.seed)
    faults: Iterator[Mapping[str, object]] = itertools.cycle(
        [{"max_tokens": 0}, {"messages": []}, {"model": "no such model"}, {"max_tokens": 10**9}, {"temperature": "hot"}]
    )
    for kind in kinds(mix):
        text = " ".join(draw.choices(_WORDS, k=draw.randint(1, 8)))
        body: dict[str, object] = {
            "model": model, "messages": [{"role": "user", "content": text}], "max_tokens": draw.randint(1, 8),
            "temperature": 0, "ignore_eos": True, "stream": True,
        }  # fmt: skip
        if kind == "cancel":
            yield HttpRequest("hung up", {**body, "max_tokens": 64}, draw.randint(0, 4))
        elif kind == "fail":
            yield HttpRequest("refused", {**body, **next(faults)})
        else:
            yield HttpRequest("answered", body)


def look_or_run(url: str, model: str | None, api_key: str | None, load: Load | None, outputs: Outputs) -> bool:
    """One look, or traffic and what grew. Prints and writes; True when nothing leaks or grew beyond the limit."""
    found = fetch(url, model, api_key)
    if len(found) > 1 and outputs.takes_one:
        raise InvalidInputError(f"{url} serves {', '.join(found)}; name the MODEL whose snapshot shall be written.")
    if load is None:
        for name, snapshot in found.items():
            say(f"{name}\n{screen(snapshot)}")
        if not all(snapshot.sample_every for snapshot in found.values()):
            note(f"The server's ledger is off, so nobody knows which line holds what; start it with {_SERVE}.")
        outputs.write_snapshots(list(found.values()))
        outputs.write_report({name: snapshot.to_json() for name, snapshot in found.items()})
        return True
    if len(found) > 1:
        raise InvalidInputError(f"{url} serves {', '.join(found)}; name the MODEL that the requests are for.")
    ((name, first),) = found.items()
    if not first.sample_every:
        raise InvalidInputError(f"The ledger of {url} is off, so no leak could be named; start it with {_SERVE}.")
    marks, endings, was_idle = mark_remote_run(url, name, api_key, load)
    print_endings(endings)
    verdict = judge(marks, limit_bytes=load.limit_bytes, is_idle=was_idle)
    say(screen(marks.end))
    print_verdict(marks, verdict, num_warm_up=load.num_warm_up)
    if not was_idle:
        note("Other requests were open; memory that a request holds counts as a leak only if it grew in each half.")
    outputs.write_snapshots([marks.end])
    outputs.write_report(report(marks, verdict, endings, load))
    return not verdict.failed


def mark_remote_run(url: str, model: str, api_key: str | None, load: Load) -> tuple[Marks, Counter[str], bool]:
    """The traffic in three pieces with a mark before and after each. The last value: whether no request held memory at
    the start, so that what one holds at the end is a leak. Raises `EnvironmentLacksError` when the server is gone."""
    endpoint = Endpoint.parse(url, api_key)
    planned = http_plan(load.mix, model)
    progress = Progress(load.requests)
    endings: Counter[str] = Counter()
    measured = load.requests - load.num_warm_up

    def look() -> "MemorySnapshot":
        return settled(lambda: fetch(url, model, api_key)[model])

    marks = [look()]
    was_idle = not _requests_hold(marks[0])
    try:
        for count in (load.num_warm_up, measured // 2, measured - measured // 2):
            piece = itertools.islice(planned, count)
            endings += asyncio.run(_send(endpoint, piece, load.concurrency, progress.step))
            marks.append(look())
    finally:
        progress.end()
    return Marks(*marks), endings, was_idle


def settled(
    look: "Callable[[], MemorySnapshot]",
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> "MemorySnapshot":
    """The first snapshot in which no request holds anything, or the last one taken within a few seconds."""
    end_s = clock() + _SETTLE_S
    while _requests_hold(snapshot := look()) and clock() < end_s:
        sleep(_LOOK_EVERY_S)
    return snapshot


def _requests_hold(snapshot: "MemorySnapshot") -> bool:
    return any(group.requests for group in snapshot.groups) or slab_blocks(snapshot) > 0


async def _send(
    endpoint: Endpoint, planned: Iterator[HttpRequest], concurrency: int, on_done: Callable[[], None]
) -> Counter[str]:
    endings: Counter[str] = Counter()

    async def client() -> None:
        for request in planned:
            body, hang_up_after = dict(request.body), request.hang_up_after
            outcome = await send_streaming(endpoint, _PATH, body, timeout_s=_TIMEOUT_S, hang_up_after=hang_up_after)
            endings[_ending(request, outcome)] += 1
            on_done()

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return endings


def _ending(request: HttpRequest, outcome: Outcome) -> str:
    if outcome.error == HUNG_UP:
        return "hung up"
    if outcome.status == 0:
        raise EnvironmentLacksError(f"The server stopped answering: {outcome.error}.")
    if outcome.status in (401, 403):
        raise EnvironmentLacksError(f"The server does not let us in: {outcome.error}.")
    if outcome.status == 200:
        # An answer may be empty: the model's text is not what is looked at here.
        return "answered" if outcome.error in (None, "the answer had no text") else f"error ({outcome.error})"
    return f"refused ({outcome.status})"
