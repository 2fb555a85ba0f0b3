"""What moves logits before a token is chosen, so that it counts for a greedy request, too.

The order is vLLM's, so that the same wishes give the same text:

    mask of a constraint → allowed tokens → bad words → no end before min_tokens → bias → penalties

Forbidden means a logit of −∞; nothing behind it brings a token back. Everything that touches single tokens is done
for all rows of the step at once, by indices into the flat array; only a mask and a list of allowed tokens touch all V
logits of their row.

Penalties follow their sources: repetition (Keskar et al. 2019, "CTRL", section 4.1; over prompt and answer) divides a
positive logit and multiplies a negative one; frequency and presence (OpenAI's API; over the answer alone) subtract once
per occurrence, and once.

Axes: R rows, V vocabulary.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aie_engine.params import SamplingParams

if TYPE_CHECKING:
    from aie_engine.sampling.rows import SampleRow

__all__ = ["Steering", "steer"]

Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.intp]

_NEVER = np.float32(-np.inf)
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDENDS = np.where(_BITS == 1, np.float32(0), _NEVER)  # [256, 8]: what a byte of a mask adds to eight logits


@dataclass(frozen=True, slots=True)
class Steering:
    """A request's wishes, made ready for NumPy once. A list of allowed tokens, bias, … that is not wanted is empty."""

    is_lasting: bool  # False: it is over once min_tokens are there
    stop_ids: IndexArray  # not before min_tokens
    allowed: IndexArray | None
    bad_tokens: IndexArray  # words of one token
    bad_words: Mapping[int, Sequence[tuple[int, ...]]]  # longer ones, by their last but one, which must have been said
    bias_ids: IndexArray
    bias: Float32Array
    repetition: float
    frequency: float
    presence: float

    @classmethod
    def of(cls, params: SamplingParams, stop_ids: Iterable[int]) -> "Steering | None":
        """None where nothing is wanted: such a row costs nothing."""
        is_lasting = bool(
            params.logit_bias
            or params.bad_words
            or params.allowed_token_ids is not None
            or params.repetition_penalty != 1
            or params.frequency_penalty
            or params.presence_penalty
        )
        if not is_lasting and not params.min_tokens:
            return None
        return cls(
            is_lasting,
            _index(sorted(stop_ids)),
            None if params.allowed_token_ids is None else _index(params.allowed_token_ids),
            _index([word[0] for word in params.bad_words if len(word) == 1]),
            _by_last_but_one(params.bad_words),
            _index([token for token, _ in params.logit_bias]),
            np.array([value for _, value in params.logit_bias], np.float32),
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )


def _by_last_but_one(words: Iterable[tuple[int, ...]]) -> Mapping[int, Sequence[tuple[int, ...]]]:
    found: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for word in words:
        if len(word) > 1:
            found[word[-2]].append(word)
    return dict(found)


def _index(values: Sequence[int]) -> IndexArray:
    return np.array(values, np.intp)


def steer(logits: Float32Array, rows: Sequence["SampleRow"]) -> None:
    """Change `logits` [R, V] in place as `rows` [R] wish."""
    for row, values in zip(rows, logits, strict=True):
        if row.mask is not None:
            _apply_mask(values, row)
        if row.steering is not None and row.steering.allowed is not None:
            _keep_only(values, row.steering.allowed)
    steered = [(r, row, row.steering) for r, row in enumerate(rows) if row.steering is not None]
    if not steered:
        return
    flat, width = logits.reshape(-1), logits.shape[1]
    _forbid(flat, width, steered)
    _add_bias(flat, width, steered)
    _penalise_repetition(flat, width, steered)
    _penalise_occurrence(flat, width, steered)


_Steered = Sequence[tuple[int, "SampleRow", Steering]]


def _apply_mask(values: Float32Array, row: "SampleRow") -> None:
    assert row.mask is not None
    octets = row.mask.astype("<u4", copy=False).view(np.uint8)
    addends = _ADDENDS.take(octets, axis=0).reshape(-1)[: len(values)]  # adding is ten times as fast as choosing
    values[: len(addends)] += addends
    values[len(addends) :] = _NEVER  # padding of the model's vocabulary, of which the mask does not know


def _keep_only(values: Float32Array, allowed: IndexArray) -> None:
    kept = values[allowed]
    values.fill(_NEVER)
    values[allowed] = kept


def _forbid(flat: Float32Array, width: int, steered: _Steered) -> None:
    never: list[IndexArray] = []
    for r, row, wish in steered:
        if row.num_sampled < row.params.min_tokens and len(wish.stop_ids):
            never.append(wish.stop_ids + r * width)
        if len(wish.bad_tokens):
            never.append(wish.bad_tokens + r * width)
        if wish.bad_words and row.num_sampled and (ends := _ends_of_bad_words(row, wish.bad_words)):
            never.append(_index(ends) + r * width)
    if never:
        flat[np.concatenate(never)] = _NEVER


def _ends_of_bad_words(row: "SampleRow", words: Mapping[int, Sequence[tuple[int, ...]]]) -> list[int]:
    """Tokens that would complete a word whose others are the last of the answer."""
    ends: list[int] = []
    for word in words.get(int(row.tokens[row.position - 1]), ()):
        begin = row.position - len(word) + 1
        if begin >= row.num_prompt and tuple(row.tokens[begin : row.position].tolist()) == word[:-1]:
            ends.append(word[-1])
    return ends


def _add_bias(flat: Float32Array, width: int, steered: _Steered) -> None:
    biased = [(r, wish) for r, _, wish in steered if len(wish.bias_ids)]
    if biased:
        where = np.concatenate([wish.bias_ids + r * width for r, wish in biased])
        flat[where] += np.concatenate([wish.bias for _, wish in biased])


def _penalise_repetition(flat: Float32Array, width: int, steered: _Steered) -> None:
    some = [(r, row, wish.repetition) for r, row, wish in steered if wish.repetition != 1]
    if some:
        where = np.concatenate([row.tokens[: row.position].astype(np.intp) + r * width for r, row, _ in some])
        penalty = np.repeat(_floats([value for _, _, value in some]), [row.position for _, row, _ in some])
        values = flat[where]  # a token that came twice is here twice, with the same outcome
        flat[where] = np.where(values > 0, values / penalty, values * penalty)


def _penalise_occurrence(flat: Float32Array, width: int, steered: _Steered) -> None:
    some = [entry for entry in steered if (entry[2].frequency or entry[2].presence) and entry[1].num_sampled > 0]
    if some:
        said = [row.tokens[row.num_prompt : row.position].astype(np.intp) + r * width for r, row, _ in some]
        where, counts = np.unique(np.concatenate(said), return_counts=True)
        owner = np.searchsorted([r for r, _, _ in some], where // width)
        flat[where] -= _floats([wish.frequency for _, _, wish in some])[owner] * counts.astype(np.float32)
        flat[where] -= _floats([wish.presence for _, _, wish in some])[owner]


def _floats(values: Sequence[float]) -> Float32Array:
    return np.array(values, np.float32)
