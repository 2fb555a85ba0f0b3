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
from aie.bench.workload import Cancel, Draw, length_draw

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
            options.seed, options.timeout_s, _MIX_S, options.leaving if _at_all(options.leaving) else None,
            warm_up=(4, len(parts)),
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


def _at_all(leaving: Cancel | None) -> bool:
    """Whether clients hang up without waiting for tokens, which any of them can."""
    return leaving is not None and leaving.after == 0


def _source_of(part: Part, target: Target, options: BenchOptions, sources: Sources) -> Source:
    """What is said of lengths is of the parts that generate, where there is one."""
    if part.endpoint == "http":
        found = Source(_always(options.plain_http.call()), 1)
    elif part.endpoint in GENERATE:
        traffic = _generated(options, sources, chat=part.endpoint == "chat")
        if _at_all(options.leaving):  # drawn over all parts
            traffic = replace(traffic, cancel=None)
        found = Source(_prompts(traffic, part.model or target.model), _MOST_PROMPTS)
    else:
        model = part.model or target.model
        inputs = _inputs_of(part.endpoint, model, target)
        lengths = ("lognormal", SENTENCE) if options.generates else (options.shape, options.bounds)
        found = _at_once(part.endpoint, model, inputs, length_draw(*lengths))
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
