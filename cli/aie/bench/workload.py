"""What a load test sends: seeded pseudo-English prompts of drawn lengths, so that two runs send the same bytes."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from aie_engine import InvalidInputError

__all__ = ["LENGTHS", "Draw", "PlannedRequest", "length_draw", "parse_lengths", "plan_requests", "words"]

Draw = Callable[[random.Random], int]
"""The length of one prompt in tokens."""

LENGTHS = ("uniform", "lognormal", "fixed")

# Common words, so that a word is about one token for any English tokenizer.
_WORDS = "".join(
    (
        "time year people way day man thing woman life child world school state family student group country problem ",
        "hand part place case week company system program question work government number night point home water ",
        "room mother area money story fact month lot right study book eye job word business issue side kind head ",
        "house service friend father power hour game line end member law car city community name president team ",
        "minute idea body information back parent face others level office door health person art war history party ",
        "result change morning reason research girl guy moment air teacher force education and or but with from into ",
        "over under after before while",
    )
).split()
_WORDS_PER_TOKEN = 0.95
_SIGMA = 0.73  # of the logarithm: the mean is 1.3 medians, as among sentences that encoders are given


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request, decided before the clock starts."""

    prompt: str
    max_tokens: int


def parse_lengths(text: str, *, param: str) -> tuple[int, int]:
    """`128` → (128, 128); `64-192` → (64, 192), drawn uniformly. Raises `InvalidInputError`."""
    low, _, high = text.partition("-")
    try:
        bounds = int(low), int(high or low)
    except ValueError:
        raise InvalidInputError(
            f"--{param} is {text!r}; give a number (128) or a range (64-192).", param=param
        ) from None
    if not 1 <= bounds[0] <= bounds[1] <= 1_000_000:
        raise InvalidInputError(f"--{param} is {text!r}; give positive lengths, the smaller first.", param=param)
    return bounds


def length_draw(shape: str, bounds: tuple[int, int]) -> Draw:
    """uniform: between the bounds. lognormal: around their geometric mean, cut at both. fixed: their mean, always."""
    low, high = bounds
    if shape == "lognormal":
        mu = (math.log(low) + math.log(high)) / 2
        return lambda draw: min(high, max(low, round(draw.lognormvariate(mu, _SIGMA))))
    if shape == "fixed":
        return lambda _: round((low + high) / 2)
    return lambda draw: draw.randint(low, high)


def words(count: int, draw: random.Random) -> str:
    """So many common words."""
    return " ".join(draw.choices(_WORDS, k=max(1, count)))


def plan_requests(
    count: int,
    *,
    input_tokens: tuple[int, int],
    output_tokens: tuple[int, int],
    seed: int,
    shape: str = "uniform",
    shared_prefix: int = 0,
) -> list[PlannedRequest]:
    """`count` different prompts, after `shared_prefix` tokens that all have in common, such as a system prompt. Lengths
    are aimed at, in words; the server's own count is what is reported."""
    draw = random.Random(seed)
    length = length_draw(shape, input_tokens)
    common = words(round(shared_prefix * _WORDS_PER_TOKEN), draw) + " " if shared_prefix else ""
    return [
        PlannedRequest(common + words(round(length(draw) * _WORDS_PER_TOKEN), draw), draw.randint(*output_tokens))
        for _ in range(count)
    ]
