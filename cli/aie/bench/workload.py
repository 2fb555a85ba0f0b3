"""What a load test sends: seeded pseudo-English prompts of drawn lengths, so that two runs send the same bytes."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aie.bench.lengths_file import Pairs
from aie_engine import InvalidInputError

__all__ = [
    "LENGTHS",
    "Cancel",
    "Draw",
    "PlannedRequest",
    "length_draw",
    "parse_cancel",
    "parse_lengths",
    "plan_requests",
    "plan_sessions",
    "tokens_to_words",
    "words",
]

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
    hang_up_after: int | None = None  # events with text, after which the client goes away
    later: tuple["PlannedRequest", ...] = ()  # the next turns of the conversation that this begins
    session: str | None = None  # whose conversation it is


@dataclass(frozen=True, slots=True)
class Cancel:
    """What share of the clients goes away, and after how many events with text."""

    share: float
    after: int


def parse_cancel(text: str) -> Cancel:
    """`0.1@20tok`: a tenth hangs up after 20 events, which are tokens where a server sends each by itself. Raises
    `InvalidInputError`."""
    share, _, after = text.partition("@")
    try:
        cancel = Cancel(float(share), int(after.removesuffix("tok") or 1))
    except ValueError:
        cancel = Cancel(-1.0, 0)
    if not (0 < cancel.share <= 1 and cancel.after >= 0):
        raise InvalidInputError(
            f"--cancel is {text!r}; give a share from 0 to 1 and after how many tokens, as in 0.1@20tok.",
            param="cancel",
        )
    return cancel


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


def tokens_to_words(tokens: int) -> int:
    """How many of our words have about so many tokens."""
    return round(tokens * _WORDS_PER_TOKEN)


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
    cancel: Cancel | None = None,
    pairs: Pairs = (),
) -> list[PlannedRequest]:
    """`count` different prompts, after `shared_prefix` tokens that all have in common, such as a system prompt. Lengths
    are aimed at, in words; the server's own count is what is reported. pairs: lengths of input and output to draw from,
    instead of the bounds."""
    draw = random.Random(seed)
    leave = random.Random(seed ^ 0x5EED)  # of its own, so that the prompts are the same with and without
    length = length_draw(shape, input_tokens)
    common = words(tokens_to_words(shared_prefix), draw) + " " if shared_prefix else ""
    planned = []
    for _ in range(count):
        given = draw.choice(pairs) if pairs else None
        prompt = common + words(tokens_to_words(length(draw) if given is None else given[0]), draw)
        max_tokens = draw.randint(*output_tokens) if given is None else given[1]
        leaves = cancel is not None and leave.random() < cancel.share
        planned.append(PlannedRequest(prompt, max_tokens, cancel.after if cancel and leaves else None))
    return planned


def plan_sessions(requests: Sequence[PlannedRequest], turns: int, name: str) -> list[PlannedRequest]:
    """Conversations of so many turns each; the last may be shorter."""
    return [
        replace(requests[begin], later=tuple(requests[begin + 1 : begin + turns]), session=f"{name}-{begin // turns}")
        for begin in range(0, len(requests), turns)
    ]
