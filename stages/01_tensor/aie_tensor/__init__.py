"""Stage 1: bytes into arrays and operators."""

from aie_tensor.errors import AieError, EnvironmentLacksError, InvalidInputError

__all__ = ["AieError", "EnvironmentLacksError", "InvalidInputError"]
