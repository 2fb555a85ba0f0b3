"""In what sizes memory is cut.

Size classes are powers of two, or with `classes_per_doubling` k, k evenly spaced steps between them (as jemalloc does).
Rounding waste for sizes drawn log-uniformly is about 28 %, 15 %, 8 %, 4 % for k = 1, 2, 4, 8: fewer classes mean more
reuse and more waste.
"""

import operator
import sys
from bisect import bisect_left

from aie_tensor.errors import InvalidInputError

__all__ = ["ALIGNMENT", "SizeClasses", "checked_bytes", "rounded_up"]

ALIGNMENT = 64  # bytes: a cache line, and one AVX-512 register


class SizeClasses:
    """The block sizes of a pool, ascending, from `min_block` to `max_block` (both powers of two)."""

    def __init__(self, min_block: int, max_block: int, classes_per_doubling: int) -> None:
        min_block, max_block = checked_bytes(min_block, "min_block"), checked_bytes(max_block, "max_block")
        for name, value in (("min_block", min_block), ("max_block", max_block)):
            if value < ALIGNMENT or value & (value - 1):
                raise InvalidInputError(f"{name} must be a power of two, at least {ALIGNMENT}, not {value}", param=name)
        if max_block < min_block:
            raise InvalidInputError(f"max_block {max_block} is below min_block {min_block}", param="max_block")
        if (
            type(classes_per_doubling) is not int
            or classes_per_doubling not in (1, 2, 4, 8)
            or min_block % (ALIGNMENT * classes_per_doubling)
        ):
            raise InvalidInputError(
                f"classes_per_doubling must be 1, 2, 4 or 8 with min_block a multiple of {ALIGNMENT} times it, "
                f"not {classes_per_doubling} with {min_block}",
                param="classes_per_doubling",
            )
        self.per_doubling = classes_per_doubling
        self.sizes: list[int] = []
        base = min_block
        while base < max_block:
            self.sizes += [base + base * step // classes_per_doubling for step in range(classes_per_doubling)]
            base *= 2
        self.sizes.append(max_block)

    def index(self, nbytes: int) -> int | None:
        """The smallest class that holds `nbytes`; None when even the largest does not."""
        found = bisect_left(self.sizes, nbytes)
        return found if found < len(self.sizes) else None


def checked_bytes(nbytes: object, param: str = "nbytes") -> int:
    """`nbytes` as a plain integer. InvalidInputError unless it is a whole number that an address space can hold: a
    `True` or a 4096.0 is a mistake somewhere above, and a size that is off by 2⁶⁴ must not wrap around to a small one.
    """
    if isinstance(nbytes, bool):
        raise InvalidInputError(f"{param} is a number of bytes, not {nbytes!r}", param=param)
    try:
        number = operator.index(nbytes)  # type: ignore[arg-type]  # integers of NumPy pass, floats do not
    except TypeError:
        raise InvalidInputError(
            f"{param} is a whole number of bytes, not {nbytes!r}: convert it with int()", param=param
        ) from None
    if number < 0:
        raise InvalidInputError(f"{param} cannot be negative: {number} bytes", param=param)
    if number > sys.maxsize:
        raise InvalidInputError(f"{param} is more than an address space holds: {number} bytes", param=param)
    return number


def rounded_up(nbytes: int, granularity: int) -> int:
    """The next multiple of `granularity`, at least one of it."""
    return max(1, -(-nbytes // granularity)) * granularity
