"""What a batch costs, for `aie simulate`: as the user states it, or measured here on a model."""

import re
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from aie.console import note
from aie_engine import InvalidInputError

if TYPE_CHECKING:
    from aie_loader import Predictor
    from aie_scheduler import BatchCost

__all__ = ["fit_line", "measure_cost", "parse_cost"]

_UNITS = {"": 1e-3, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "s": 1.0}
_TERM = r"(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(ms|us|µs|s|)"
_FORM = re.compile(rf"\s*{_TERM}\s*\+\s*{_TERM}\s*\*\s*tokens\s*")
_TEXT_BATCHES = ((1, 8), (1, 32), (4, 16), (8, 16), (4, 64), (16, 32), (8, 128), (32, 64))  # texts, tokens of each
_ITEM_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_ROUNDS = 7
_MIN_BATCH_S = 1e-6  # of a fit: a step takes some time, or the virtual clock would stand still


def parse_cost(text: str) -> "BatchCost":
    """`3ms+0.05ms*tokens`; a number without a unit is in milliseconds. Raises `InvalidInputError`."""
    from aie_scheduler import BatchCost

    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidInputError(f"--cost is {text[:60]!r}; write it as 3ms+0.05ms*tokens.", param="cost")
    per_batch_s, per_token_s = float(match[1]) * _UNITS[match[2]], float(match[3]) * _UNITS[match[4]]
    if not 0 < per_batch_s + per_token_s <= 3600:
        raise InvalidInputError(
            f"--cost is {text[:60]!r}; a batch of one token must cost something, and an hour at most.", param="cost"
        )
    return BatchCost(per_batch_s, per_token_s)


def measure_cost(model: str, *, num_threads: int | None) -> "tuple[BatchCost, float]":
    """Time batches of several sizes on this machine (median of seven, taken in turn) and lay a line through them.

    Returns the line, and by what part of the measured time it misses at worst.

    For encoders and classifiers of texts; of models that take other inputs a token is one item. Raises as loading does,
    and `InvalidInputError` for a model that generates.
    """
    from aie.assemble import find_model
    from aie_engine.executors.choosing import make_stateless_executor
    from aie_loader import is_predictor, load_predictor
    from aie_scheduler import BatchCost

    path = find_model(model)
    if not is_predictor(path):
        raise InvalidInputError(
            f"{model} generates text; --measure is for encoders, classifiers and the like. State a cost with --cost.",
            param="measure",
        )
    predictor = load_predictor(path)
    try:
        runner = make_stateless_executor(predictor.graph, report=note, num_threads=num_threads)
        try:
            points = _timed(_batches(predictor, runner))
        finally:
            runner.close()
    finally:
        predictor.close()
    per_batch_s, per_token_s = fit_line(points)
    misses = [abs(per_batch_s + per_token_s * tokens - seconds) / seconds for tokens, seconds in points]
    return BatchCost(per_batch_s, per_token_s), max(misses)


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares of the *relative* error through (tokens, seconds), so that small batches count as much as large.

    Returns seconds per batch and per token, neither below zero.
    """
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_x = sum(weight * x for weight, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(weight * y for weight, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(weight * (x - mean_x) ** 2 for weight, (x, _) in zip(weights, points, strict=True))
    slope = sum(weight * (x - mean_x) * (y - mean_y) for weight, (x, y) in zip(weights, points, strict=True)) / spread
    slope = max(slope, 0.0)
    return max(mean_y - slope * mean_x, _MIN_BATCH_S), slope


def _batches(predictor: "Predictor", runner: Any) -> list[tuple[int, Callable[[], object]]]:
    """(tokens, a run of so many)."""
    import numpy as np

    from aie_engine.predicting import predict_ids

    random = np.random.default_rng(0)
    shapes = {name: predictor.graph.shapes[name] for name in predictor.graph.inputs}

    def texts(number: int, length: int) -> Callable[[], object]:
        ids = random.integers(0, 100, (number, length)).tolist()
        return lambda: predict_ids(predictor, ids, runner=runner, batch_tokens=number * length)

    def items(number: int) -> Callable[[], object]:
        values = {
            name: random.random((number, *(int(size) for size in shape[1:])), dtype=np.float32)
            for name, shape in shapes.items()
        }
        return lambda: runner.run(values)

    if "token_ids" in shapes:
        most = predictor.max_length or 512
        return [(number * length, texts(number, length)) for number, length in _TEXT_BATCHES if length <= most]
    if not all(isinstance(size, int) for shape in shapes.values() for size in shape[1:]):
        raise InvalidInputError(
            f"the inputs of {predictor.name} have no fixed shape; state a cost with --cost.", param="measure"
        )
    return [(number, items(number)) for number in _ITEM_BATCHES]


def _timed(batches: list[tuple[int, Callable[[], object]]]) -> list[tuple[float, float]]:
    times_s: list[list[float]] = [[] for _ in batches]
    for _ in range(_ROUNDS + 1):
        for own, (_, run) in zip(times_s, batches, strict=True):
            started = time.perf_counter()
            run()
            own.append(time.perf_counter() - started)
    return [(float(tokens), median(own[1:])) for (tokens, _), own in zip(batches, times_s, strict=True)]
