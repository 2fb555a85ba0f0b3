"""How far one model's predictions are from another's, position by position.

    KL(p ‖ q) = Σ p(v) · (ln p(v) − ln q(v))       over the vocabulary, in nats; 0 only where q is p
    perplexity = exp(− mean of ln q(next token))   as if the model chose among so many tokens at each step

KL asks what changed, whatever the text; perplexity asks how good what is left is at predicting it. On a short text two
precisions can swap places in perplexity by luck; in KL hardly.

Axes: R rows (positions), V vocabulary.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["Comparison", "Tally", "compare_logits"]

Logits = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Per position: divergence in nats, loss of the other model in nats, and whether both like the same token best."""

    kl: Float64Array  # [R]
    loss: Float64Array  # [R]
    agrees: npt.NDArray[np.bool_]  # [R]


def compare_logits(reference: Logits, other: Logits, targets: npt.NDArray[np.integer]) -> Comparison:
    """reference and other [R, V] at the same positions, targets [R] the tokens that come next. In float64."""
    assert reference.shape == other.shape and len(targets) == len(reference), (reference.shape, other.shape)
    p, q = _log_softmax(reference), _log_softmax(other)
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    loss = -q[np.arange(len(targets)), targets]
    # Rounding can make the divergence of two equal distributions a hair less than nothing.
    return Comparison(np.maximum(kl, 0.0), loss, reference.argmax(axis=1) == other.argmax(axis=1))


def _log_softmax(logits: Logits) -> Float64Array:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: Float64Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


@dataclass(slots=True)
class Tally:
    """Sums over all positions of all texts."""

    _parts: list[Comparison] = field(default_factory=list)

    def add(self, part: Comparison) -> None:
        self._parts.append(part)

    @property
    def num_positions(self) -> int:
        return sum(len(part.kl) for part in self._parts)

    @property
    def mean_kl(self) -> float:
        """Nats per token."""
        return self._mean("kl")

    @property
    def max_kl(self) -> float:
        """Nats, at the worst position."""
        return float(max(part.kl.max() for part in self._parts))

    @property
    def perplexity(self) -> float:
        return float(np.exp(self._mean("loss")))

    @property
    def agreement(self) -> float:
        """Share of positions at which both models like the same token best."""
        return self._mean("agrees")

    def _mean(self, name: str) -> float:
        return float(np.concatenate([getattr(part, name) for part in self._parts]).mean())
