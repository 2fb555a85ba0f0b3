"""The pipe between the front process and a predictor's worker: msgpack, as in `aie_engine.frames`; arrays as raw bytes.

front → worker    Compute · Tell · Halt
worker → front    Progress* · (Started | StartFailed), then for each Compute a Computed, for each Tell a Holding
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from aie_engine.frames import Progress, StartFailed, encode, encode_config
from aie_engine.predictors.config import PredictorConfig
from aie_engine.predictors.made_of import FileStamp
from aie_engine.predictors.protocol import PredictorInfo
from aie_engine.predictors.requests import Array

__all__ = [
    "ArrayFrame",
    "Compute",
    "Computed",
    "Failure",
    "FromWorker",
    "Halt",
    "Holding",
    "Progress",
    "StartFailed",
    "Started",
    "Tell",
    "ToWorker",
    "copied_from_frames",
    "decode_config",
    "decode_from_worker",
    "decode_to_worker",
    "encode",
    "encode_config",
    "from_frames",
    "to_frames",
]


class _Frame(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all frames; the tag is the class's name."""


class ArrayFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An array as it travels."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class Compute(_Frame, frozen=True):
    """One batch."""

    items: list[list[ArrayFrame]]


class Tell(_Frame, frozen=True):
    """Say what is held in memory."""


class Halt(_Frame, frozen=True):
    """Exit."""


class Started(_Frame, frozen=True):
    """The model is built and warm."""

    info: PredictorInfo
    made_of: list[FileStamp]


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The parts of an `AieError`."""

    message: str
    code: str
    status: int
    exit_code: int


class Computed(_Frame, frozen=True):
    """One entry per item of the batch: its outputs, or in `failures` by its place what went wrong."""

    items: list[list[ArrayFrame]]
    failures: dict[int, Failure]
    pre_s: float
    compute_s: float


class Holding(_Frame, frozen=True):
    """A memory snapshot; None where taking it failed."""

    memory: dict[str, Any] | None


ToWorker = Compute | Tell | Halt
FromWorker = Progress | StartFailed | Started | Computed | Holding

decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode


def _from_plain(kind: type, value: object) -> object:
    return kind(value)


decode_config = msgspec.msgpack.Decoder(PredictorConfig, dec_hook=_from_plain).decode


def to_frames(arrays: Mapping[str, Array]) -> list[ArrayFrame]:
    """An item's arrays, ready to travel."""
    return [
        ArrayFrame(name, array.dtype.str, array.shape, memoryview(np.ascontiguousarray(array).tobytes()))
        for name, array in arrays.items()
    ]


def from_frames(frames: list[ArrayFrame]) -> dict[str, Array]:
    """What `to_frames` was given, standing on the received bytes: not to be written, and they live as long as it."""
    return {frame.name: np.frombuffer(frame.data, dtype=np.dtype(frame.dtype)).reshape(frame.shape) for frame in frames}


def copied_from_frames(frames: list[ArrayFrame]) -> dict[str, Array]:
    """The same for whoever keeps it: arrays of their own, so that one item does not keep its whole batch."""
    return {name: array.copy() for name, array in from_frames(frames).items()}
