"""Memory of others, listed so that a report misses nothing: a mapped model file, a buffer that a library made."""

from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, SupportsIndex

from aie_tensor.errors import DoubleFreeError, InvalidInputError
from aie_tensor.memory.owner import Owner, checked_owner
from aie_tensor.stacks import RawStack, resolve

if TYPE_CHECKING:
    from aie_tensor.memory.pool import MemoryPool

__all__ = ["Adopted", "AdoptedKey"]


class Adopted:
    """Made by `MemoryPool.adopt`. It owns nothing: `release` ends the listing, not the memory. A context manager; one
    that Python drops ends its listing too."""

    def __init__(self, pool: "MemoryPool", nbytes: int, owner: str | Owner) -> None:
        self.nbytes = nbytes
        self.owner = Owner.of(checked_owner(owner))
        self._pool = pool
        self._released = True  # until it is counted
        self._freed_at: RawStack | None = None
        self._key = AdoptedKey()
        with pool.lock:
            pool.adopted_bytes += nbytes
            self._released = False
        self._allocated_at = pool.ledger.record(self._key, nbytes, owner) if pool.ledger.enabled else None

    def release(self) -> None:
        """End the listing. DoubleFreeError the second time."""
        with self._pool.lock:
            if self._released:
                raise DoubleFreeError(
                    f"double release of {self.nbytes} adopted bytes (owner '{self.owner}')",
                    allocated_at=resolve(self._allocated_at or ()),
                    freed_at=resolve(self._freed_at or ()),
                )
            freed_at = self._pool.ledger.capture()
            self._pool.ledger.forget(self._key)
            self._freed_at = freed_at
            self._pool.adopted_bytes -= self.nbytes  # last, so that what is interrupted before is done by the finalizer
            self._released = True

    def __enter__(self) -> "Adopted":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InvalidInputError("an adoption cannot be copied or pickled: a copy would end its listing a second time")

    def __del__(self) -> None:
        if not getattr(self, "_released", True):
            self._pool.dropped_adoptions.append((self.nbytes, self._key))


class AdoptedKey:
    """What the ledger knows it by: not the object itself, which the ledger would keep alive."""
