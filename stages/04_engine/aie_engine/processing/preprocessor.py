"""Steps for images from `preprocessor_config.json`, as Hugging Face's processors of images read it.

crop_size                 resize (shortest side, or exactly), then the centre
crop_pct                  the shortest side to the model's size / crop_pct, then the centre; from 384 on exactly
size with height, width   exactly, without a crop
nothing                   as torchvision evaluates: the shortest side to 256/224 of the model's size, then the centre
"""

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from aie_engine.processing.errors import ProcessingError
from aie_engine.processing.image import Crop, ImageStep, Normalise, Resize, Scale
from aie_loader import Predictor

__all__ = ["image_steps"]

_FILE: Final = "preprocessor_config.json"
_MAX_BYTES: Final = 1 << 20
_LARGE: Final = 384  # models for images of this size and above are evaluated without a crop
_USUAL: Final = 256 / 224
_FILTERS: Final[dict[int, Literal["nearest", "bilinear", "bicubic"]]] = {0: "nearest", 2: "bilinear", 3: "bicubic"}

_Side = Annotated[int, msgspec.Meta(ge=1, le=16384)]


class _Size(msgspec.Struct):
    height: _Side | None = None
    width: _Side | None = None
    shortest_edge: _Side | None = None


class _Preprocessor(msgspec.Struct):
    """What we use of it; whatever else stands there is left alone."""

    size: _Size | _Side | None = None
    crop_size: _Size | _Side | None = None
    crop_pct: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    resample: int | None = None
    do_resize: bool | None = True
    do_center_crop: bool | None = None
    do_rescale: bool | None = True
    rescale_factor: float | None = None
    do_normalize: bool | None = True


def image_steps(predictor: Predictor) -> tuple[ImageStep, ...]:
    """None for a model that does not say what images it wants. Raises `ProcessingError` naming file and key."""
    wanted = predictor.image
    if wanted is None:
        return ()
    given = _read(predictor.path if predictor.path.is_dir() else predictor.path.parent)
    steps: list[ImageStep] = []
    if given is None or given.do_resize is not False:
        steps.append(_resize(given or _Preprocessor(), wanted.height, wanted.width))
    steps.append(Crop(wanted.height, wanted.width))  # does nothing after an exact resize
    if given is None or given.do_rescale is not False:
        steps.append(Scale() if given is None or given.rescale_factor is None else Scale(given.rescale_factor))
    if given is None or given.do_normalize is not False:
        steps.append(Normalise(wanted.mean, wanted.std))
    return tuple(steps)


def _resize(given: _Preprocessor, height: int, width: int) -> Resize:
    method = _FILTERS.get(2 if given.resample is None else given.resample)
    if method is None:
        raise ProcessingError(f"{_FILE}: resample must be 0, 2 or 3, not {given.resample}; say how in processing.toml")
    size = given.size
    crops = given.crop_size is not None and given.do_center_crop is not False
    if crops and isinstance(size, _Size) and size.height is not None and size.width is not None:
        return Resize(height=size.height, width=size.width, filter=method)
    shortest = _shortest(given, height, crops) if height == width else None
    if shortest is None:
        return Resize(height=height, width=width, filter=method)
    return Resize(shortest=shortest, filter=method)


def _shortest(given: _Preprocessor, side: int, crops: bool) -> int | None:
    """To which the shortest side is brought for a model of `side`; None: exactly to the model's size."""
    size = given.size
    edge = size.shortest_edge if isinstance(size, _Size) else size if crops else None
    if crops:
        return edge or side
    if given.crop_pct is not None:
        return None if side >= _LARGE else int(side / given.crop_pct)
    return round(side * _USUAL) if size is None else edge


def _read(folder: Path) -> _Preprocessor | None:
    path = folder / _FILE
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > _MAX_BYTES:
            raise ProcessingError(f"{path} has more than {_MAX_BYTES} bytes")
        return msgspec.json.decode(path.read_bytes(), type=_Preprocessor)
    except (OSError, msgspec.DecodeError) as error:
        raise ProcessingError(f"{path} cannot be used: {error}; say what to do in processing.toml") from None
