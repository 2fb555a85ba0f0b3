"""A model's outputs, read as its pipeline says: vectors, labelled scores, boxes, or plain numbers.

outputs: for each item the model's arrays by name, without the batch axis.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from aie_engine.processing.outputs import Argmax, Boxes, Normalise, Pool, Sigmoid, Softmax, TopK, unit
from aie_engine.processing.pipeline import Pipeline
from aie_tensor import InvalidInputError

__all__ = ["Label", "Reader", "stacked", "vector_base64"]

Floats = npt.NDArray[np.float32]
Outputs = Sequence[Mapping[str, npt.NDArray[Any]]]


class Label(msgspec.Struct, frozen=True):
    """One label of an item and how sure the model is."""

    label: str
    index: int
    score: float


class Reader:
    """The second half of a pipeline; as little changed, as thread-safe."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        steps = pipeline.steps.output
        self._pool = next((step for step in steps if isinstance(step, Pool)), None)
        self._maps = [step for step in steps if isinstance(step, Softmax | Sigmoid | Normalise)]
        self._boxes = next((step for step in steps if isinstance(step, Boxes)), None)
        self._threshold = max((step.threshold for step in steps if isinstance(step, Sigmoid)), default=-np.inf)
        self._default_k: int | None = None
        for step in steps:
            if isinstance(step, TopK | Argmax):
                self._default_k = step.k if isinstance(step, TopK) else 1

    @property
    def gives_vectors(self) -> bool:
        return self._pipeline.output == "embedding" or (self._pipeline.output == "token_states" and bool(self._pool))

    @property
    def gives_labels(self) -> bool:
        """Whether its scores are to be read as labels: somebody says how, or names them."""
        pipeline = self._pipeline
        said = bool(pipeline.labels) or any(isinstance(step, Softmax | Sigmoid) for step in self._maps)
        return (pipeline.output in ("logits", "image_logits") and said) or (
            pipeline.output == "embedding" and any(isinstance(step, Softmax | Sigmoid) for step in self._maps)
        )

    @property
    def scores_pairs(self) -> bool:
        """One number for a pair of texts: a cross-encoder."""
        pipeline = self._pipeline
        return pipeline.reads == "text" and pipeline.output == "logits" and pipeline.width == 1

    def vectors(self, outputs: Outputs, dimensions: int | None = None) -> Floats:
        """[items, width], or of the first `dimensions` numbers, then of length 1 again. InvalidInputError for a model
        that gives none, and more dimensions than there are."""
        pipeline = self._pipeline
        if not self.gives_vectors:
            raise InvalidInputError(
                f"{pipeline.name} gives {pipeline.output}, not one vector per input.", param="model"
            )
        first = [_first(item) for item in outputs]
        if pipeline.output == "token_states":
            assert self._pool is not None
            first = [self._pool(states) for states in first]
        vectors = self._mapped(np.stack(first))
        if dimensions is None or dimensions == vectors.shape[1]:
            return vectors
        if dimensions > vectors.shape[1]:
            raise InvalidInputError(
                f"dimensions must be at most {vectors.shape[1]}, the width of {pipeline.name}.", param="dimensions"
            )
        return unit(vectors[:, :dimensions])

    def labels(self, outputs: Outputs, k: int | None = None) -> list[list[Label]]:
        """For each item its labels, best first: at most `k`, by default as many as the pipeline says."""
        pipeline = self._pipeline
        if not self.gives_labels:
            raise InvalidInputError(
                f"Nobody says how the {pipeline.output} of {pipeline.name} are to be read; declare softmax or sigmoid "
                "as an output step in processing.toml.",
                param="model",
            )
        scores = self._mapped(np.stack([_first(item) for item in outputs]))
        k = min(k or self._default_k or scores.shape[1], scores.shape[1])
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        names = pipeline.labels or tuple(map(str, range(scores.shape[1])))
        return [
            [Label(names[i], i, float(row[i])) for i in best.tolist() if row[i] >= self._threshold]
            for row, best in zip(scores, order, strict=True)
        ]

    def pair_scores(self, outputs: Outputs) -> list[float]:
        """Of a cross-encoder, how well each pair fits: its logit, as declared, or through a sigmoid into 0…1."""
        assert self.scores_pairs
        logits = np.stack([_first(item) for item in outputs]).reshape(len(outputs))
        scores = self._mapped(logits) if self._maps else Sigmoid()(logits)
        return [float(score) for score in scores]

    def cosines(self, outputs: Outputs) -> list[float]:
        """Of the first item with each of the others."""
        vectors = unit(self.vectors(outputs))
        return [float(value) for value in np.einsum("ij,j->i", vectors[1:], vectors[0])]

    def plain(self, outputs: Outputs, k: int | None = None) -> list[dict[str, object]]:
        """Each item in the form that suits the model: `labels`, `boxes`, `embedding`, else `outputs` by name."""
        if self._boxes is not None:
            return [{"boxes": self._detections(item)} for item in outputs]
        if self.gives_labels:
            return [{"labels": labels} for labels in self.labels(outputs, k)]
        if self.gives_vectors:
            return [{"embedding": vector} for vector in self.vectors(outputs).tolist()]
        return [{"outputs": {name: array.tolist() for name, array in item.items()}} for item in outputs]

    def _detections(self, item: Mapping[str, npt.NDArray[Any]]) -> list[dict[str, object]]:
        assert self._boxes is not None
        names = self._pipeline.labels
        return [
            {
                "label": names[found.label] if found.label < len(names) else str(found.label),
                "index": found.label,
                "score": found.score,
                "box": found.box,
            }
            for found in self._boxes.detect(dict(item))
        ]

    def _mapped(self, values: Floats) -> Floats:
        for step in self._maps:
            values = step(values)
        return values


def stacked(outputs: Outputs) -> dict[str, npt.NDArray[Any]]:
    """[items, …] by name; outputs per token are filled up with zeros to the longest text."""
    if len(outputs) == 1:
        return {name: np.asarray(array)[None] for name, array in outputs[0].items()}
    arrays = {}
    for name in outputs[0]:
        parts = [np.asarray(item[name]) for item in outputs]
        longest = tuple(max(sizes) for sizes in zip(*(part.shape for part in parts), strict=True))
        whole = np.zeros((len(parts), *longest), parts[0].dtype)
        for index, part in enumerate(parts):
            whole[index][tuple(slice(size) for size in part.shape)] = part
        arrays[name] = whole
    return arrays


def vector_base64(vector: Floats) -> str:
    """float32, little-endian, as OpenAI's clients ask for it."""
    return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode()


def _first(item: Mapping[str, npt.NDArray[Any]]) -> Floats:
    return np.asarray(next(iter(item.values())), np.float32)
