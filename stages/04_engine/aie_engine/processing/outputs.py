"""Steps after the model: its numbers become scores, vectors, labels or boxes.

Scores and vectors are float32 [items, …, width]; every step works along the last axis, for all items at once.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from aie_tensor import InvalidInputError, ops

__all__ = ["Argmax", "Boxes", "Detection", "OutputStep", "Pool", "Sigmoid", "TopK", "unit"]

Floats = npt.NDArray[np.float32]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="step"):
    """`step = "…"` in the file names the class."""


class Pool(_Step, tag="pool", frozen=True):
    """A vector per token becomes one per text: their mean, or the first token's. For graphs that do not do it."""

    how: Literal["mean", "cls"] = "mean"

    def __call__(self, states: Floats) -> Floats:
        """[tokens, width] → [width]."""
        return np.asarray(states[0] if self.how == "cls" else states.mean(axis=0), np.float32)


class Normalise(_Step, tag="normalise", frozen=True):
    """Euclidean length 1, so that a dot product is a cosine."""

    def __call__(self, values: Floats) -> Floats:
        return unit(values)


class Softmax(_Step, tag="softmax", frozen=True):
    """Of several labels one holds: positive scores that add up to 1."""

    def __call__(self, values: Floats) -> Floats:
        weights = np.exp(values - values.max(axis=-1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True), np.float32)


class Sigmoid(_Step, tag="sigmoid", frozen=True):
    """Every label holds or does not, by itself; named are those with at least `threshold`."""

    threshold: Share = 0.0

    def __call__(self, values: Floats) -> Floats:
        # exp of what is not positive cannot overflow
        small = np.exp(-np.abs(values))
        return np.asarray(np.where(values >= 0, 1, small) / (1 + small), np.float32)


class TopK(_Step, tag="top_k", frozen=True):
    """The `k` labels with the highest scores, unless a request asks for another number."""

    k: Annotated[int, msgspec.Meta(ge=1)]


class Argmax(_Step, tag="argmax", frozen=True):
    """The label with the highest score."""


class Boxes(_Step, tag="boxes", frozen=True):
    """Boxes [N, 4] and scores [N, labels] (or [labels, N], told by the sizes) of a detector: those with at least
    `threshold`, and of each label only the best of those that overlap."""

    boxes: str  # name of the output
    scores: str
    form: Literal["xyxy", "xywh", "cxcywh"] = "xyxy"  # corners; corner and size; centre and size
    threshold: Share = 0.25
    iou: Share = 0.5  # intersection over union from which two boxes are the same thing
    most: Annotated[int, msgspec.Meta(ge=1)] = 100

    def detect(self, outputs: "dict[str, npt.NDArray[Any]]") -> "list[Detection]":
        """The boxes of one item, best first; equal scores in the model's order."""
        if self.boxes not in outputs or self.scores not in outputs:
            raise InvalidInputError(f"boxes reads {self.boxes} and {self.scores}; the model gives {', '.join(outputs)}")
        boxes, scores = np.asarray(outputs[self.boxes], np.float32), np.asarray(outputs[self.scores], np.float32)
        scores = scores.reshape(len(boxes), -1) if scores.shape[:1] == boxes.shape[:1] else scores.T
        if boxes.ndim != 2 or boxes.shape[1] != 4 or len(scores) != len(boxes):
            raise InvalidInputError(f"boxes must be [N, 4] with scores for each, not {boxes.shape} and {scores.shape}")
        corners = self._corners(boxes)
        found: list[Detection] = []
        for label in range(scores.shape[1]):
            likely = np.flatnonzero(scores[:, label] >= self.threshold)
            kept = likely[ops.nms(corners[likely], scores[likely, label], self.iou, self.most)]
            found += [Detection(label, float(scores[i, label]), tuple(corners[i].tolist())) for i in kept]
        return sorted(found, key=lambda one: -one.score)[: self.most]

    def _corners(self, boxes: Floats) -> Floats:
        if self.form == "xyxy":
            return boxes
        first, size = boxes[:, :2], boxes[:, 2:]
        if self.form == "cxcywh":
            first = first - size * np.float32(0.5)
        return np.concatenate([first, first + size], axis=1)


class Detection(msgspec.Struct, frozen=True):
    """One thing in an image, in the coordinates that the model gives."""

    label: int
    score: float
    box: tuple[float, ...]  # x1, y1, x2, y2


OutputStep: TypeAlias = Pool | Normalise | Softmax | Sigmoid | TopK | Argmax | Boxes


def unit(values: Floats) -> Floats:
    """Each vector divided by its length; one of zeros stays."""
    length = np.sqrt(np.square(values, dtype=np.float32).sum(axis=-1, keepdims=True, dtype=np.float32))
    return np.asarray(values / np.where(length > 0, length, 1), np.float32)
