"""Many requests at once. In the closed loop every client waits for its answer; in the open loop requests go out when
they are due, whatever became of those before."""

import asyncio
import json
import math
import time
from collections.abc import Callable

from aie.bench.generator.ask import Asker
from aie.bench.generator.outcome import Outcome
from aie.bench.generator.plan import Call, Closed, Conversation, Open, Plan, Turn

__all__ = ["News", "Sending"]

News = Callable[[Outcome], None]


class Sending:
    """One plan on its way. on_start, on_done: called with the same object, before it is sent and when it has ended."""

    def __init__(self, plan: Plan, on_start: News, on_done: News) -> None:
        self._plan = plan
        self._on_start, self._on_done = on_start, on_done
        self._asker = Asker(plan.endpoint, plan.timeout_s)
        self._until_s = math.inf
        self._gate: asyncio.Semaphore | None = None
        self._stopped = asyncio.Event()

    def stop(self, *, hang_up: bool = False) -> None:
        """No request is begun any more. hang_up: those under way end now, as stopped."""
        self._stopped.set()
        if hang_up:
            self._asker.hang_up()

    async def prepare(self) -> None:
        """Before the clock starts."""
        await self._asker.prepare()

    async def run(self, start_s: float) -> None:
        """From `start_s` on; returns when all have ended. Cancelled, it hangs up on everything."""
        loop = self._plan.loop
        self._until_s = math.inf if loop.duration_s is None else start_s + loop.duration_s
        try:
            if isinstance(loop, Closed):
                await self._closed(loop, start_s)
            else:
                await self._open(loop, start_s)
        finally:
            self._asker.close()

    async def _closed(self, loop: Closed, start_s: float) -> None:
        waiting = iter(self._plan.calls)
        await self._sleep_until(start_s)

        async def client() -> None:
            for call in waiting:
                if self._is_over:
                    break
                await self._send(call, None)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(loop.clients):
                tasks.create_task(client())
                await asyncio.sleep(0)  # as in the open loop

    async def _open(self, loop: Open, start_s: float) -> None:
        self._gate = None if loop.max_in_flight is None else asyncio.Semaphore(loop.max_in_flight)
        async with asyncio.TaskGroup() as tasks:
            for call, offset in zip(self._plan.calls, loop.due, strict=True):
                await self._sleep_until(start_s + offset)
                if self._stopped.is_set():
                    break
                tasks.create_task(self._send(call, start_s + offset))
                # Of a burst one goes out after the other without a pause; but what arrives meanwhile is read between
                # two of them, and not when all are out.
                await asyncio.sleep(0)

    @property
    def _is_over(self) -> bool:
        return self._stopped.is_set() or time.perf_counter() >= self._until_s

    async def _sleep_until(self, at_s: float) -> None:
        """Not at all where the time has come: what is due at once goes out at once. Less where all was stopped."""
        while (left_s := at_s - time.perf_counter()) > 0 and not self._stopped.is_set():
            if left_s < 0.05:
                await asyncio.sleep(left_s)
                continue
            try:
                async with asyncio.timeout(left_s):
                    await self._stopped.wait()
            except TimeoutError:
                pass

    async def _send(self, call: Call | Conversation, due_s: float | None) -> None:
        if isinstance(call, Call):
            is_stream = call.answer == "stream"
            await self._one(call, Outcome(part=call.part, session=call.session, due_s=due_s, is_stream=is_stream))
            return
        said: list[bytes] = []
        for number, turn in enumerate(call.turns):
            if number:
                due_s = None if due_s is None else time.perf_counter() + turn.wait_s
                await self._sleep_until(time.perf_counter() + turn.wait_s)
                if self._is_over:
                    return
            said.append(turn.message)
            outcome = Outcome(turn=number, session=call.session, part=call.part, due_s=due_s, pieces=[])
            answer = await self._one(_call_of(call, turn, said), outcome)
            if answer is None:
                return
            said.append(json.dumps({"role": "assistant", "content": answer}).encode())

    async def _one(self, call: Call, outcome: Outcome) -> str | None:
        """What was answered, where that is wanted."""
        if self._gate is None:
            return await self._ask(call, outcome)
        async with self._gate:
            return await self._ask(call, outcome)

    async def _ask(self, call: Call, outcome: Outcome) -> str | None:
        if self._stopped.is_set():
            return None
        self._on_start(outcome)
        await self._asker.ask(call, outcome)
        answer = None if outcome.error is not None else "".join(outcome.pieces or ())
        outcome.pieces = None
        self._on_done(outcome)
        return answer


def _call_of(conversation: Conversation, turn: Turn, said: list[bytes]) -> Call:
    body = turn.before + b"[" + b", ".join(said) + b"]" + turn.after
    return Call(conversation.path, body, headers=conversation.headers, part=conversation.part,
                hang_up_after=turn.hang_up_after, keep_alive=conversation.keep_alive)  # fmt: skip
