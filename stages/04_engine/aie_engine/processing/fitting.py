"""Whether declared steps lead to what a model takes: told when it is loaded, as far as no input is needed for that."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aie_engine.processing.config import Steps
from aie_engine.processing.errors import ProcessingError
from aie_engine.processing.image import Crop, Resize
from aie_engine.processing.outputs import Boxes, Pool
from aie_tensor import EnvironmentLacksError, InvalidInputError

__all__ = ["check_image_steps", "check_lists", "check_output_steps", "check_row_steps"]


def check_lists(model: str, steps: Steps, reads: str) -> None:
    """reads: text, image, row, or what no step touches. Raises `ProcessingError` for steps that would never run."""
    for name in ("text", "image", "row"):
        if name != reads and getattr(steps, name):
            takes = {"text": "texts", "image": "images", "row": "rows"}.get(reads, reads)
            raise ProcessingError(f"{model} takes {takes}; the steps for {name} in processing.toml would never run")


def check_image_steps(model: str, steps: Steps, name: str, shape: Sequence[int | str]) -> None:
    """An image of any size must come out in the `shape` [items, channels, height, width] of the input `name`. Raises
    `ProcessingError`."""
    pixels: npt.NDArray[Any] = np.zeros((8, 8, len(steps.mode)), np.uint8)
    try:
        for step in steps.image:
            pixels = step(pixels)
    except EnvironmentLacksError:  # no Pillow: the model still takes arrays
        return
    except InvalidInputError as error:
        raise ProcessingError(f"{model}: in image, {error}") from None
    found = (pixels.shape[2], *pixels.shape[:2])
    fixed = any(isinstance(step, Crop) or (isinstance(step, Resize) and step.height) for step in steps.image)
    wrong = [have != want for have, want in zip(found, shape[1:], strict=True) if isinstance(want, int)]
    if wrong[:1] == [True] or (fixed and True in wrong):
        raise ProcessingError(
            f"{model}: the steps for images give {list(found)}, but {name} is {list(shape[1:])}; give mode and size in "
            "processing.toml"
        )


def check_row_steps(model: str, steps: Steps, name: str, shape: Sequence[int | str]) -> None:
    """A value for each column of the input `name`, [rows, columns], or one for all. Raises `ProcessingError`."""
    columns = shape[1]
    if not isinstance(columns, int):
        return
    table = np.zeros((1, columns))
    try:
        for step in steps.row:
            table = step(table)
    except InvalidInputError as error:
        raise ProcessingError(f"{model}: in row, {error}; {name} has {columns} columns") from None


def check_output_steps(model: str, steps: Steps, outputs: Mapping[str, Sequence[int | str]]) -> None:
    """outputs: shapes by name, the first output first. Raises `ProcessingError` for steps that want others."""
    first = next(iter(outputs))
    for step in steps.output:
        if isinstance(step, Pool) and outputs[first][0] != "T":
            raise ProcessingError(
                f"{model}: in output, pool wants a vector per token; {first} is {list(outputs[first])}, pooled already"
            )
        if isinstance(step, Boxes):
            _check_boxes(model, step, outputs)


def _check_boxes(model: str, step: Boxes, outputs: Mapping[str, Sequence[int | str]]) -> None:
    for key, name in (("boxes", step.boxes), ("scores", step.scores)):
        if name not in outputs:
            raise ProcessingError(f"{model}: in output, {key} names {name!r}; the model gives {', '.join(outputs)}")
    shape = outputs[step.boxes]
    own = shape[1:] if shape[0] in ("B", "S") else shape
    if len(own) != 2 or (isinstance(own[1], int) and own[1] != 4):
        raise ProcessingError(f"{model}: in output, boxes must be [N, 4] for an input; {step.boxes} is {list(own)}")
