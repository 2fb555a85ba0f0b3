"""From token ids to deltas of text: admission, submission, waiting, cancellation, measurement. The same for both
endpoints.

A `Generation` holds its lease on the model until `close`, the gate from `admitted` on, and one engine request per
choice. Whatever happens in between (an error, a client that left, a stop string), `close` cancels what still runs, so
that the engine frees its blocks within one step.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from aie_engine import (
    ConstraintSpec,
    EngineDeadError,
    ErrorInfo,
    GenerateRequest,
    SamplingParams,
    TokenEvent,
    TokenStream,
)
from aie_server.api.choices import Fanout
from aie_server.config import ServerConfig
from aie_server.errors import DeadlineExceededError, GenerationError, ServerDrainingError
from aie_server.gate import AdmitRequest, Gate
from aie_server.http.messages import ClientGoneError, Request
from aie_server.leases import Lease
from aie_server.metrics_catalog import ModelMetrics, ServerMetrics
from aie_server.request_book import ChoiceTrace, RequestBook
from aie_server.text_output import Delta, OutputOptions, TextOutput

__all__ = ["Choice", "Generation", "GenerationContext", "Usage"]

_SEVERAL_WAIT_S: Final = 0.02  # with several choices, how long one may keep the others waiting
_ONE_EACH: Final = Fanout()
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class GenerationContext:
    """What every generation of a server shares."""

    gate: Gate
    config: ServerConfig
    metrics: ServerMetrics
    requests: RequestBook
    has_keys: bool = False  # whether clients are known by keys of their own


@dataclass(slots=True)
class Usage:
    """Tokens of all choices of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class Choice:
    """One prompt and one of the answers to it."""

    index: int
    number: int  # among the choices of the same prompt
    prompt_ids: tuple[int, ...]
    stream: TokenStream
    output: TextOutput
    trace: ChoiceTrace
    last_token_s: float  # when the last token came, or when the request began
    num_cached_tokens: int = 0
    is_done: bool = False


class Generation:
    """Use as a context manager, or call `close` yourself. Iterating gives `(choice, delta)` until every choice has
    ended. `lease` is the generation's own from now on."""

    def __init__(self, context: GenerationContext, lease: Lease, request: Request, output: OutputOptions) -> None:
        self._context = context
        self._model = model = lease.model
        self._request = request
        self._output = output
        self._metrics: ModelMetrics = context.metrics.of_model(model.name)
        self._trace = context.requests.open(request, model.name)
        self._exit = ExitStack()
        self._exit.callback(lease.close)
        self._started_s = time.monotonic()
        self._alive_s = self._started_s  # when the engine was last seen alive
        self._looked_s = self._started_s  # when somebody last looked whether the client is still there
        self._deadline_s: float | None = None
        self.choices: list[Choice] = []

    def __enter__(self) -> "Generation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Pass the gate, and do within the context what leads to `submit`. Raises the gate's errors; after any error,
        nothing is left behind."""
        try:
            self._exit.enter_context(
                self._context.gate.admit(AdmitRequest(self._request.client_key, self._request.head.path))
            )
            self._trace.admitted_s = time.monotonic()
            budget_s = self._context.gate.default_deadline_s
            self._deadline_s = None if budget_s is None else self._started_s + budget_s
            yield
        except BaseException:
            self.close()
            raise

    def submit(
        self,
        prompts: Sequence[tuple[int, ...]],
        sampling: SamplingParams,
        constraint: ConstraintSpec | None = None,
        fanout: Fanout = _ONE_EACH,
    ) -> None:
        """Every choice of every prompt becomes a request of the engine. Raises the engine's errors, and
        `InvalidInputError` where they are too many."""
        fanout.check_prompts(len(prompts), self._context.config)
        self._trace.submitted_s = time.monotonic()
        for prompt in prompts:
            for number in range(fanout.num_choices):
                own = fanout.sampling_of(number, sampling, scores_prompt=self._output.echo)
                self._submit(number, prompt, own, constraint, fanout)

    def close(self) -> None:
        """Cancel what has not ended and leave the gate. A second call does nothing."""
        try:
            for choice in self.choices:
                if not choice.is_done:
                    choice.is_done = True
                    choice.stream.cancel()
                    self._count_end(choice, "cancelled")
        finally:
            self._exit.close()

    @property
    def usage(self) -> Usage:
        """As OpenAI counts: a prompt once, however many choices it has."""
        firsts = [choice for choice in self.choices if choice.number == 0]
        return Usage(
            sum(len(choice.prompt_ids) for choice in firsts),
            sum(choice.output.num_tokens for choice in self.choices),
            sum(choice.num_cached_tokens for choice in firsts),
        )

    def __iter__(self) -> Iterator[tuple[Choice, Delta]]:
        """Raises `ClientGoneError`, `DeadlineExceededError`, `GenerationError` or `EngineDeadError`."""
        while open_choices := [choice for choice in self.choices if not choice.is_done]:
            first = open_choices[0]
            wait_s = self._context.config.disconnect_poll_s if len(open_choices) == 1 else _SEVERAL_WAIT_S
            for choice in open_choices:
                # The engine's steps serve all choices at once: after the first has something, the others do too.
                event = self._next_event(choice, wait_s if choice is first else 0.0)
                if event is not None:
                    yield choice, self._take(choice, event)

    def _submit(
        self,
        number: int,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        constraint: ConstraintSpec | None,
        fanout: Fanout,
    ) -> None:
        index = len(self.choices)
        request_id = f"{self._request.request_id}-{next(_serial)}"  # a client may send the same X-Request-Id twice
        client = self._request.client_key
        stream = self._model.engine.submit(
            GenerateRequest(
                request_id,
                prompt,
                sampling,
                self._deadline_s,
                fanout.priority,
                client=client,
                cache_salt=f"{self._tenant} {fanout.cache_salt}",
                constraint=constraint,
            )
        )
        output = TextOutput(self._model.text.tokenizer, self._output, prompt)
        trace = self._trace.add_choice(index, request_id)
        self.choices.append(Choice(index, number, prompt, stream, output, trace, self._started_s))
        if number == 0:
            self._metrics.prompt_tokens.inc(len(prompt))
            self._trace.prompt_tokens += len(prompt)
        self._metrics.prompt_length.observe(len(prompt))

    @property
    def _tenant(self) -> str:
        """Whose prompts may be found in the cache again: a key's own. Without keys nobody is anybody's tenant, and one
        system prompt serves all."""
        return self._request.client_key if self._context.has_keys else ""

    def _next_event(self, choice: Choice, wait_s: float) -> TokenEvent | None:
        try:
            event = choice.stream.get(wait_s)
        except TimeoutError:
            if wait_s:
                self._check_client(time.monotonic())
                self._check_engine_and_deadline()
            return None
        # Tokens may come so fast that nobody ever waits, and nothing is written that could fail.
        now_s = time.monotonic()
        if now_s - self._looked_s >= self._context.config.disconnect_poll_s and event.finish_reason is None:
            self._check_client(now_s)
        return event

    def _check_client(self, now_s: float) -> None:
        self._looked_s = now_s
        if self._request.client_gone():
            raise ClientGoneError

    def _check_engine_and_deadline(self) -> None:
        now_s, config = time.monotonic(), self._context.config
        if self._model.engine.is_alive:
            self._alive_s = now_s
        elif now_s > self._alive_s + config.dead_engine_grace_s:
            raise EngineDeadError(f"The engine of {self._model.name!r} stopped.")
        if self._deadline_s is not None and now_s > self._deadline_s + config.deadline_grace_s:
            raise self._deadline_error()

    def _take(self, choice: Choice, event: TokenEvent) -> Delta:
        choice.num_cached_tokens = event.num_cached_tokens or choice.num_cached_tokens
        if event.token_ids:
            self._count_tokens(choice, len(event.token_ids))
        reason = event.finish_reason
        if reason in ("cancelled", "deadline", "error"):
            choice.is_done = True
            self._count_end(choice, reason)
            raise self._failure(event)
        delta = choice.output.push(event)
        if delta.finish_reason is not None:
            choice.is_done = True
            if reason is None:  # a stop string ended it; the engine does not know yet
                choice.stream.cancel()
            self._count_end(choice, delta.finish_reason)
        return delta

    def _failure(self, event: TokenEvent) -> Exception:
        if event.finish_reason == "deadline":
            return self._deadline_error()
        if event.finish_reason == "cancelled":  # not by us: we would not be listening any more
            return ServerDrainingError("The request was cancelled because the server is shutting down.")
        return GenerationError(event.error or ErrorInfo("engine_fault", "The engine failed on this request.", 500))

    def _deadline_error(self) -> DeadlineExceededError:
        return DeadlineExceededError(f"The request was not done within {self._context.gate.default_deadline_s:g} s.")

    def _count_tokens(self, choice: Choice, num_tokens: int) -> None:
        now_s = time.monotonic()
        self._metrics.generation_tokens.inc(num_tokens)
        if choice.output.num_tokens == 0:
            choice.trace.first_token_s = now_s
            self._metrics.time_to_first_token.observe(now_s - self._started_s)
        else:
            self._metrics.inter_token_latency.observe((now_s - choice.last_token_s) / num_tokens)
        choice.last_token_s = now_s

    def _count_end(self, choice: Choice, reason: str) -> None:
        choice.trace.reason, choice.trace.done_s = reason, time.monotonic()
        choice.trace.num_tokens = choice.output.num_tokens
        self._context.metrics.success.labels(self._model.name, reason).inc()
        self._metrics.e2e_latency.observe(choice.trace.done_s - self._started_s)
        self._metrics.generation_length.observe(choice.output.num_tokens)
