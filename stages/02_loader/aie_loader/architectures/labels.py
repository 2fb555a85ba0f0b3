"""What a classifier's numbers mean, from `id2label` and `problem_type` of a configuration."""

from typing import Literal, TypeAlias

from aie_loader.config import Fields

__all__ = ["Problem", "read_labels", "read_problem"]

Problem: TypeAlias = Literal["single_label", "multi_label", "regression"]
"""One label of several (softmax), each label by itself (sigmoid), or the numbers as they are."""

_PROBLEMS: dict[str, Problem] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
_MAX_LABELS = 1_000_000


def read_labels(fields: Fields) -> tuple[str, ...]:
    """In the order of the outputs. A file that names none has `num_labels` of them, by default two."""
    named = fields.get("id2label")
    if named is None:
        return tuple(f"LABEL_{index}" for index in range(fields.integer("num_labels", 2, high=_MAX_LABELS)))
    labels = [named.get(str(index)) for index in range(len(named))] if isinstance(named, dict) else []
    texts = tuple(label for label in labels if isinstance(label, str))
    if not texts or len(texts) != len(labels):
        raise fields.wrong("id2label", 'an object that gives each of "0", "1", … a label')
    return texts


def read_problem(fields: Fields, num_labels: int) -> Problem:
    """A single output is a score, several exclude each other, unless the file says otherwise."""
    if fields.get("problem_type") is None:
        return "regression" if num_labels == 1 else "single_label"
    return _PROBLEMS[fields.text("problem_type", "", tuple(_PROBLEMS))]
