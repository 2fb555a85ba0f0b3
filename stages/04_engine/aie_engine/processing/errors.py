"""Errors of what stands around a predictor; both are leaves below `InvalidInputError` (see `aie_engine.errors`)."""

from aie_tensor import InvalidInputError

__all__ = ["ImageError", "ProcessingError"]


class ProcessingError(InvalidInputError):
    """`processing.toml`, or what stands in for it, is not what it must be; the message names file, key and rule."""

    code = "invalid_processing"


class ImageError(InvalidInputError):
    """The bytes are no image that we read, or one that is too large."""

    code = "invalid_image"
