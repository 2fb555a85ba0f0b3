"""Whether declared steps lead to what a model takes: told when it is loaded, as far as no input is needed for that."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aie_engine.processing.config import Steps
from aie_engine.processing.errors import ProcessingError
from aie_engine.processing.image import Crop, Resize
from aie_tensor import EnvironmentLacksError, InvalidInputError

__all__ = ["check_image_steps", "check_row_steps"]


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
