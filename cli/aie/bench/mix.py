"""`--mix`: several models and endpoints of one server at once, each with its share of the requests.

Real servers answer chats, embeddings and classifications side by side, and what one of them costs the others shows in
no test of one alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aie_engine import InvalidInputError

__all__ = ["GENERATES", "MIXABLE", "NEED_A_MODEL", "Part", "models_of", "named", "parse_mix"]

GENERATES = ("completions", "chat")
MIXABLE = (*GENERATES, "embeddings", "infer", "predict", "http")
NEED_A_MODEL = ("embeddings", "infer", "predict")  # a server's first model may be of another kind
_EXAMPLE = "chat:smollm2-135m=0.7,embeddings:minilm-l6=0.3"


@dataclass(frozen=True, slots=True)
class Part:
    """One of them. share: of all requests; all shares sum to 1."""

    endpoint: str
    model: str | None  # None: the server's first; plain HTTP has none
    share: float

    @property
    def label(self) -> str:
        """As in the report."""
        return self.endpoint if self.model is None else f"{self.endpoint}:{self.model}"


def parse_mix(text: str) -> tuple[Part, ...]:
    """`endpoint[:model]=weight`, by comma; weights of any size. Raises `InvalidInputError`."""
    parts = [_part(one.strip(), text) for one in text.split(",")]
    if len(parts) < 2:
        raise InvalidInputError(
            f"--mix is {text!r}, which is one part; give --endpoint and --model for it, or more, as in {_EXAMPLE}.",
            param="mix",
        )
    labels = [part.label for part in parts]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise InvalidInputError(f"--mix has {twice} twice; add the two weights.", param="mix")
    total = sum(part.share for part in parts)
    return tuple(replace(part, share=part.share / total) for part in parts)


def _part(one: str, text: str) -> Part:
    what, _, weight_text = one.rpartition("=")
    endpoint, colon, model = what.partition(":")
    try:
        weight = float(weight_text)
    except ValueError:
        weight = math.nan
    if endpoint not in MIXABLE or not 0 < weight < 1e9 or (colon and not model) or (model and endpoint == "http"):
        raise InvalidInputError(
            f"--mix has {one!r}; write endpoint[:model]=weight by comma, as in {_EXAMPLE}. Endpoints are "
            f"{', '.join(MIXABLE)}; http has no model.",
            param="mix",
        )
    return Part(endpoint, model or None, weight)


def models_of(parts: Sequence[Part], default: str) -> list[str]:
    """For a server that is started for the test: each once; where a part has none, the default, as the first."""
    asked = [part.model for part in parts if part.endpoint != "http"]
    named_ones = [model for model in asked if model is not None]
    return list(dict.fromkeys([default, *named_ones] if None in asked else named_ones))


def named(parts: Sequence[Part], first: str) -> tuple[Part, ...]:
    """With the server's first model where none was given. Raises `InvalidInputError` where that may be of any kind."""
    found = []
    for part in parts:
        if part.model is None and part.endpoint in NEED_A_MODEL:
            raise InvalidInputError(
                f"--mix needs the model of {part.endpoint}, as in {part.endpoint}:NAME={part.share:g}.", param="mix"
            )
        unnamed = part.model is None and part.endpoint != "http"
        found.append(replace(part, model=first) if unnamed else part)
    return tuple(found)
