"""How a thread waits for work: block, spin, or one or the other by the load.

A blocked thread costs nothing and is slow to wake: the producer has to signal, the kernel has to schedule. A spinning
thread is awake already and burns a core. The hybrid spins while the load is high, when work is about to come anyway
and waiting is short, and blocks while it is low. What it goes by is the queue's length: how much was there each time
that the consumer looked, smoothed. Two thresholds, so that a load between them does not switch it back and forth.

A strategy says only how long to spin before blocking; the queue does both (`front.py`). `benchmarks/waiting.py`
measures what each costs.
"""

from typing import Protocol

from aie_tensor import InvalidInputError

__all__ = ["Block", "Hybrid", "Spin", "WaitStrategy"]


class WaitStrategy(Protocol):
    """Told what the consumer found, asked how long to spin. Used by the one consumer, under the queue's lock."""

    def found(self, num_items: int) -> None:
        """The consumer looked, and so many items were there."""

    def spin_s(self) -> float:
        """Seconds to spin before blocking; 0 blocks at once, infinity never does."""
        ...


class Block:
    """Always sleep until woken."""

    def found(self, num_items: int) -> None:
        """Of no interest."""

    def spin_s(self) -> float:
        """Not at all."""
        return 0.0


class Spin:
    """Never sleep. For a core that has nothing else to do."""

    def found(self, num_items: int) -> None:
        """Of no interest."""

    def spin_s(self) -> float:
        """For ever."""
        return float("inf")


class Hybrid:
    """Spin from `spin_at` items found per look on, block again below `block_at`.

    Even at high load a pause ends the spinning: after `longest_spin_s` the thread blocks, and having found nothing it
    begins to count the load down.
    """

    WEIGHT = 1 / 4  # of the newest look in the smoothed length

    def __init__(self, *, spin_at: float = 4.0, block_at: float = 1.5, longest_spin_s: float = 0.002) -> None:
        if not 0 < block_at <= spin_at:
            raise InvalidInputError(
                f"block_at {block_at:g} must be above 0 and not above spin_at, which is {spin_at:g}", param="block_at"
            )
        if longest_spin_s < 0:
            raise InvalidInputError(f"longest_spin_s must not be negative, but is {longest_spin_s:g}")
        self._spin_at = spin_at
        self._block_at = block_at
        self._longest_spin_s = longest_spin_s
        self._length = 0.0
        self.is_spinning = False

    def found(self, num_items: int) -> None:
        """Blend the length in; change over at the thresholds."""
        self._length += self.WEIGHT * (num_items - self._length)
        if self._length >= self._spin_at:
            self.is_spinning = True
        elif self._length < self._block_at:
            self.is_spinning = False

    def spin_s(self) -> float:
        """`longest_spin_s` at high load, else nothing."""
        return self._longest_spin_s if self.is_spinning else 0.0
