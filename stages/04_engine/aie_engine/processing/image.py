"""Images: bytes to pixels, and the steps between that and what a model looks at.

Pixels are uint8 [height, width, channels] until `scale` or `normalise` makes them float32. Files are decoded and
resized by Pillow (`pip install 'aie[images]'`); everything else is NumPy.
"""

import io
import math
import struct
import warnings
import zlib
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from aie_engine.processing.errors import ImageError
from aie_tensor import EnvironmentLacksError, InvalidInputError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Crop", "ImageStep", "Resize", "decode_image", "pillow"]

Pixels = npt.NDArray[Any]
Mode = Literal["RGB", "L", "RGBA"]
Side = Annotated[int, msgspec.Meta(ge=1, le=16384)]

_FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_UINT8_MAX: Final = 255
_MAX_RESIZED: Final = 1 << 25  # pixels that a resize may make of an image of whatever proportions
# what Pillow's readers raise for files that are not what they claim
_BROKEN: Final = (OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, TypeError, struct.error, zlib.error)


class _Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="step"):
    """`step = "…"` in the file names the class."""


class Resize(_Step, tag="resize", frozen=True):
    """To a shortest side, keeping the proportions, or to exactly height × width. Averages where it makes smaller."""

    shortest: Side | None = None
    height: Side | None = None
    width: Side | None = None
    filter: Literal["nearest", "bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        if (self.shortest is None) == (self.height is None) or (self.height is None) != (self.width is None):
            raise ValueError("resize takes either shortest, or height and width")

    def __call__(self, pixels: Pixels) -> Pixels:
        image = pillow()
        height, width = self._target(*pixels.shape[:2])
        if (height, width) == pixels.shape[:2]:
            return pixels
        if self.shortest is not None and height * width > _MAX_RESIZED:  # a line of pixels would become gigabytes
            raise ImageError(
                f"an image of {pixels.shape[1]} × {pixels.shape[0]} pixels would become {width} × {height}; at most "
                f"{_MAX_RESIZED} pixels are made of one."
            )
        method = getattr(image.Resampling, self.filter.upper())
        flat = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        resized = np.asarray(image.fromarray(np.ascontiguousarray(flat)).resize((width, height), method))
        return resized.reshape(height, width, pixels.shape[2])

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if self.shortest is None:
            assert self.height is not None and self.width is not None
            return self.height, self.width
        if height < width:
            return self.shortest, max(1, width * self.shortest // height)
        return max(1, height * self.shortest // width), self.shortest


class Crop(_Step, tag="crop", frozen=True):
    """The centre. What is smaller gets a black border."""

    height: Side
    width: Side

    def __call__(self, pixels: Pixels) -> Pixels:
        missing_y, missing_x = (
            max(0, want - have) for want, have in zip((self.height, self.width), pixels.shape[:2], strict=True)
        )
        if missing_y or missing_x:
            edges = [(missing_y // 2, missing_y - missing_y // 2), (missing_x // 2, missing_x - missing_x // 2), (0, 0)]
            pixels = np.pad(pixels, edges)
        top, left = (pixels.shape[0] - self.height) // 2, (pixels.shape[1] - self.width) // 2
        return pixels[top : top + self.height, left : left + self.width]


class Order(_Step, tag="order", frozen=True):
    """The order of the colours: files have red first, some models want blue first."""

    channels: Literal["rgb", "bgr"]

    def __call__(self, pixels: Pixels) -> Pixels:
        return pixels[:, :, ::-1] if self.channels == "bgr" else pixels


class Scale(_Step, tag="scale", frozen=True):
    """Times `by`: 0…255 becomes 0…1 by default."""

    by: float = 1 / _UINT8_MAX

    def __post_init__(self) -> None:
        if not math.isfinite(self.by):
            raise ValueError("by must be finite")

    def __call__(self, pixels: Pixels) -> Pixels:
        return pixels.astype(np.float32) * np.float32(self.by)


class Normalise(_Step, tag="normalise", frozen=True):
    """Less `mean`, divided by `std`, for each channel or one for all."""

    mean: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
    std: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        is_fit = all(map(math.isfinite, self.mean)) and all(0 < std < math.inf for std in self.std)
        if len(self.mean) != len(self.std) or not is_fit:
            raise ValueError("mean and std must have as many finite numbers, those of std above 0")

    def __call__(self, pixels: Pixels) -> Pixels:
        if len(self.mean) not in (1, pixels.shape[2]):
            raise InvalidInputError(f"normalise has {len(self.mean)} means for {pixels.shape[2]} channels")
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        return (pixels.astype(np.float32) - mean) / std


ImageStep: TypeAlias = Resize | Crop | Order | Scale | Normalise


def decode_image(data: bytes, mode: Mode, *, max_pixels: int, param: str) -> Pixels:
    """The pixels of a JPEG, PNG, WebP, GIF (its first frame), BMP, TIFF or PPM file, upright as its EXIF data says:
    uint8 [height, width, channels].

    The size is read from the head of the file and checked before a pixel is decoded, so a few bytes cannot claim the
    memory. ImageError for what is no image, broken, or has more than `max_pixels`.
    """
    image = pillow()
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images; our own limit is below
            with image.open(io.BytesIO(data), formats=_FORMATS) as opened:
                width, height = opened.size
                if width * height > max_pixels:
                    raise ImageError(
                        f"{param} is an image of {width} × {height} pixels; at most {max_pixels} are read.", param=param
                    )
                upright = ImageOps.exif_transpose(opened)
                pixels = np.asarray(_converted(upright, mode))
    except ImageError:
        raise
    except image.DecompressionBombError:  # Pillow's own limit, while it reads the head
        raise ImageError(f"{param} is an image of more than {max_pixels} pixels.", param=param) from None
    except _BROKEN as error:
        raise ImageError(
            f"{param} is not an image that can be read here ({', '.join(_FORMATS)}): {type(error).__name__}.",
            param=param,
        ) from None
    return pixels.reshape(*pixels.shape[:2], -1)


def _converted(image: Any, mode: Mode) -> Any:
    """Sixteen bits become eight by their upper half; what is transparent is laid on black, as it is stored."""
    if image.mode.startswith("I;16") or image.mode == "I":
        wide = np.asarray(image)
        image = pillow().fromarray((wide.clip(0, 65535) >> 8).astype(np.uint8))
    return image if image.mode == mode else image.convert(mode)


def pillow() -> "ModuleType":
    """Pillow's `Image` module. `EnvironmentLacksError` where it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise EnvironmentLacksError(
            "Reading images needs Pillow; install it with: pip install 'aie[images]'."
        ) from None
    return Image
