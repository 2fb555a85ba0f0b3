"""The traffic of a test, whatever it is of: made of its options once the server under test is known."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from aie.bench.call_traffic import AnyTraffic, CallTraffic, Source
from aie.bench.generator import Call
from aie.bench.load import calls_of
from aie.bench.mix import Part, named
from aie.bench.options import GENERATE, SENTENCE, BenchOptions
from aie.bench.questions import MAX_DIFFERENT, Tensor, ask_inputs, plan_questions
from aie.bench.sources import Sources
from aie.bench.streaming_plan import Traffic
from aie.bench.target import Target
from aie.bench.workload import Draw, length_draw

__all__ = ["traffic_of"]

_AT_ONCE_S = 5.0  # a level, unless told
_MIX_S = 10.0
_MOST_PROMPTS = 2048  # different ones of a part of a mix


def traffic_of(target: Target, options: BenchOptions, sources: Sources) -> AnyTraffic:
    """Raises `InvalidInputError` for a model that is not what the endpoint needs."""
    if options.parts:
        parts = named(options.parts, target.model)
        target.part_models = {part.label: part.model for part in parts if part.model is not None}
        return CallTraffic(
            ", ".join(f"{part.share:.0%} {part.label}" for part in parts),
            [_source_of(part, target, options, sources) for part in parts],
            options.seed, options.timeout_s, _MIX_S, warm_up=(max(8, 4 * len(parts)), len(parts)),
        )  # fmt: skip
    if options.generates:
        return _generated(options, sources, chat=options.endpoint == "chat")
    if options.endpoint == "http":
        what = f"{options.plain_http.sent_as} {options.plain_http.path}"
        source = Source(_always(options.plain_http.call()), 1)
    else:
        inputs = _inputs_of(options.endpoint, target.model, target)
        reads_text = not inputs or any(one.datatype == "BYTES" for one in inputs)
        what = f"{options.endpoint}, one input per request{f', {options.shape} lengths' if reads_text else ''}"
        source = _at_once(options.endpoint, target.model, inputs, length_draw(options.shape, options.bounds))
    return CallTraffic(what, [source], options.seed, options.timeout_s, _AT_ONCE_S, options.leaving)


def _generated(options: BenchOptions, sources: Sources, *, chat: bool) -> Traffic:
    return Traffic(
        options.bounds, options.output_bounds, options.shape, options.shared_prefix, options.leaving, options.seed,
        chat, options.timeout_s, pairs=sources.pairs, turns=options.turns, think_s=options.think_s,
    )  # fmt: skip


def _source_of(part: Part, target: Target, options: BenchOptions, sources: Sources) -> Source:
    if part.endpoint == "http":
        found = Source(_always(options.plain_http.call()), 1)
    elif part.endpoint in GENERATE:
        traffic = _generated(options, sources, chat=part.endpoint == "chat")
        found = Source(_prompts(traffic, part.model or target.model), _MOST_PROMPTS)
    else:
        model = part.model or target.model
        inputs = _inputs_of(part.endpoint, model, target)
        found = _at_once(part.endpoint, model, inputs, length_draw("lognormal", SENTENCE))
    return replace(found, part=part.label, share=part.share)


def _always(call: Call) -> Callable[[int, int], Sequence[Call]]:
    return lambda _count, _seed: [call]


def _prompts(traffic: Traffic, model: str) -> Callable[[int, int], Sequence[Call]]:
    def make(count: int, seed: int) -> list[Call]:
        calls = calls_of(replace(traffic, seed=seed).requests(count, 0), model, chat=traffic.chat)
        return [call for call in calls if isinstance(call, Call)]

    return make


def _inputs_of(kind: str, model: str, target: Target) -> list[Tensor]:
    return [] if kind == "embeddings" else ask_inputs(target.endpoint, model)


def _at_once(kind: str, model: str, inputs: list[Tensor], length: Draw) -> Source:
    """The same for every level: some are large, and such models keep nothing of what they were asked before."""
    made: list[Call] = []

    def make(count: int, seed: int) -> Sequence[Call]:
        if len(made) < count:
            questions = plan_questions(kind, model, inputs, count, length=length, seed=seed)
            made[:] = [
                Call(
                    one.path, one.body, headers=one.headers, answer="whole", keep_alive=True,
                    reads_usage=kind == "embeddings",
                )
                for one in questions
            ]  # fmt: skip
        return made[:count]

    return Source(make, MAX_DIFFERENT)
