"""What crosses the pipe between the front process and a worker: msgpack, one frame per message.

Never pickle: a frame can only become one of the types below, whoever wrote it, and msgspec checks each field while it
decodes. A frame is an array whose first element names its type. All news of one step travel in one `StepFrame`.

    front → worker    Submit · Cancel · Ask · Stop
    worker → front    Progress* · (Ready | StartFailed), then Step* · Answer* · Died?; the pipe's end says the rest
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from aie_engine.config import EngineConfig
from aie_engine.protocol import EngineInfo
from aie_engine.requests import GenerateRequest, TokenEvent
from aie_engine.stats import EngineStats
from aie_engine.timeline_report import Explanation

__all__ = [
    "Answer",
    "Ask",
    "Cancel",
    "Died",
    "FromWorker",
    "Progress",
    "Ready",
    "StartFailed",
    "StepFrame",
    "Stop",
    "Submit",
    "ToWorker",
    "Topic",
    "decode_config",
    "decode_from_worker",
    "decode_to_worker",
    "encode",
    "encode_config",
]


class _Frame(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all frames; the tag is the class's name."""


class Submit(_Frame, frozen=True):
    """Take this request in."""

    request: GenerateRequest


class Cancel(_Frame, frozen=True):
    """End this request at the next step."""

    request_id: str


Topic = Literal["stats", "memory", "requests"]


class Ask(_Frame, frozen=True):
    """Answered between two steps by an `Answer` of the same number."""

    number: int
    about: Topic
    request_ids: tuple[str, ...] | None = None  # about requests: which; None: those that are open
    num_ended: int = 0  # and so many of those that ended last


class Stop(_Frame, frozen=True):
    """End all requests and exit."""


class Progress(_Frame, frozen=True):
    """A line for a person to read while the worker starts."""

    line: str


class Ready(_Frame, frozen=True):
    """The engine is built and warm; requests may come."""

    info: EngineInfo


class StartFailed(_Frame, frozen=True):
    """The parts of an `AieError`, from which the front rebuilds it."""

    message: str
    code: str
    status: int
    exit_code: int


class StepFrame(_Frame, frozen=True):
    """All news of one step."""

    events: list[TokenEvent]
    stats: EngineStats | None = None  # where they are due


class Answer(_Frame, frozen=True):
    """To the `Ask` of the same number."""

    number: int
    stats: EngineStats | None = None
    memory: dict[str, Any] | None = None  # a snapshot; None where taking it failed
    requests: Explanation | None = None


class Died(_Frame, frozen=True):
    """The engine gave up, and this is why; the worker exits."""

    reason: str


ToWorker = Submit | Cancel | Ask | Stop
FromWorker = Progress | Ready | StartFailed | StepFrame | Answer | Died


def _to_plain(value: object) -> str:
    assert isinstance(value, Path), f"cannot send {type(value)}"
    return str(value)


def _from_plain(kind: type, value: object) -> object:
    return kind(value)


_encoder = msgspec.msgpack.Encoder()
_config_encoder = msgspec.msgpack.Encoder(enc_hook=_to_plain)

encode = _encoder.encode
encode_config = _config_encoder.encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_config = msgspec.msgpack.Decoder(EngineConfig, dec_hook=_from_plain).decode
