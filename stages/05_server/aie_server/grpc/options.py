"""What a call says beside its tensors: how long its client waits, and how urgent it is."""

from typing import Final

from aie_engine import InvalidInputError
from aie_server.api.inputs import of_level
from aie_server.config import ServerConfig
from aie_server.grpc.schema import Values
from aie_server.http.messages import Request

__all__ = ["read_patience", "read_priority"]

_FOR_EVER_S: Final = 1e9  # a call without a deadline has one that no clock will see


def read_patience(asked: Values, request: Request) -> float | None:
    """Seconds: what is left of the call's deadline, or the parameter `timeout` in microseconds, whichever is less."""
    timeout_us = _number(asked, "timeout")
    patience = [request.patience_s, timeout_us * 1e-6 if timeout_us else None]
    return min((seconds for seconds in patience if seconds is not None and seconds < _FOR_EVER_S), default=None)


def read_priority(asked: Values, config: ServerConfig) -> int:
    """Lower runs first; raises what `of_level` does."""
    return of_level(_number(asked, "priority"), config)


def _number(asked: Values, key: str) -> int | None:
    """A parameter of the request. Raises `InvalidInputError` for one that is no whole number from 0 on."""
    for parameter in asked.get("parameters", []):
        if parameter.get("key") == key:
            value = parameter.get("value", {})
            number = value.get("uint64_param", value.get("int64_param"))
            if number is None or number < 0:
                raise InvalidInputError(f"{key} must be a whole number from 0 on.", param=key)
            return int(number)
    return None
