"""What becomes of a model's last values: pooled sentences, the best few, boxes without their doubles.

Axes: T tokens, S sequences, C width, N boxes.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aie_tensor.errors import InvalidInputError
from aie_tensor.ops.linear import Floats, Ints

__all__ = ["nms", "pool_tokens", "top_k"]

PoolKind = Literal["mean", "cls", "max", "last"]


def pool_tokens(x: Floats, seq_starts: Ints, kind: PoolKind) -> Floats:
    """One row per sequence, x [T, C] and seq_starts [S + 1] → [S, C]: the mean, the first, the largest or the last.

    Sequences lie one after another without padding, so there is no mask to forget. Each mean is summed in the
    sequence's own order, whatever stands beside it.
    """
    begin, end = seq_starts[:-1], seq_starts[1:]
    if (end <= begin).any():
        raise InvalidInputError("an empty sequence has no tokens to pool")
    if kind == "cls":
        return x[begin]
    if kind == "last":
        return x[end - 1]
    reduce = np.mean if kind == "mean" else np.max
    return np.stack([reduce(x[first:last], axis=0) for first, last in zip(begin, end, strict=True)]).astype(np.float32)


def top_k(x: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
    """The k largest of the last axis, largest first, and where they were; of equals the first comes first."""
    if not 0 < k <= x.shape[-1]:
        raise InvalidInputError(f"k must be from 1 to {x.shape[-1]}, not {k}", param="k")
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, axis=-1), order


def nms(boxes: Floats, scores: Floats, iou_threshold: float, max_output: int | None = None) -> NDArray[np.int64]:
    """Non-maximum suppression: boxes [N, 4] as (x1, y1, x2, y2), scores [N] → indices of those that stay, best first.

    A box falls if it overlaps a better one that stays by more than `iou_threshold` (intersection over union). Of equal
    scores the first is the better one. Greedy, O(N · kept).
    """
    if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
        raise InvalidInputError(f"boxes must be [N, 4] and scores [N], not {boxes.shape} and {scores.shape}")
    area = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
    order = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while len(order) and (max_output is None or len(kept) < max_output):
        best, rest = order[0], order[1:]
        kept.append(int(best))
        size = np.minimum(boxes[best, 2:], boxes[rest, 2:]) - np.maximum(boxes[best, :2], boxes[rest, :2])
        overlap = np.prod(np.maximum(size, 0), axis=1)
        union = area[best] + area[rest] - overlap
        order = rest[overlap <= iou_threshold * union]
    return np.array(kept, dtype=np.int64)
