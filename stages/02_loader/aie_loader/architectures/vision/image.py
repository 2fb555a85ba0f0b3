"""What an image classifier wants to be given, from `preprocessor_config.json` where there is one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aie_loader.config import Fields
from aie_loader.formats import optional_json_object

__all__ = ["ImageInput", "read_image_input"]

# Of the images of ImageNet, per channel, in 0…1: what the published ResNets were trained with.
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)
_SIZE = 224
_MAX_SIZE = 1 << 14


@dataclass(frozen=True, slots=True)
class ImageInput:
    """Pixels in 0…1, less `mean`, divided by `std`, as float32 [B, channels, height, width]."""

    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def read_image_input(folder: Path | None, channels: int) -> ImageInput:
    """Size and normalisation that the model was trained with; ImageNet's where no file says it."""
    path = folder / "preprocessor_config.json" if folder else None
    fields = Fields(optional_json_object(path) if path else {}, str(path))
    key = "crop_size" if fields.get("crop_size") is not None else "size"
    height, width = _size(fields, key)
    return ImageInput(
        channels,
        height,
        width,
        mean=_channels(fields, "image_mean", channels, _MEAN),
        std=_channels(fields, "image_std", channels, _STD),
    )


def _size(fields: Fields, key: str) -> tuple[int, int]:
    """A number, {"height": …, "width": …} or {"shortest_edge": …}."""
    value = fields.get(key)
    if not isinstance(value, dict):
        side = fields.integer(key, _SIZE, high=_MAX_SIZE)
        return side, side
    inside = Fields(value, f"{fields.where}: {key}")
    edge: int | None = inside.integer("shortest_edge", high=_MAX_SIZE) if inside.has("shortest_edge") else None
    return inside.integer("height", edge, high=_MAX_SIZE), inside.integer("width", edge, high=_MAX_SIZE)


def _channels(fields: Fields, key: str, channels: int, default: tuple[float, ...]) -> tuple[float, ...]:
    if fields.get(key) is not None:
        return fields.numbers(key, channels)
    known: Mapping[int, tuple[float, ...]] = {3: default}
    return known.get(channels, (0.5,) * channels)
