"""Every error of the framework descends from `AieError`.

The tree as far as stage 1 goes; each later stage adds its own branches, drawn in its own `errors.py`:

    AieError                       500  exit 1   the root; raised itself only for an error of another process
    ├── InvalidInputError          400  exit 2   the caller's fault: a request, a flag, a broken file
    ├── EnvironmentLacksError      500  exit 3   the machine's fault: no compiler, no network, port in use, disk full
    │   └── NativeUnavailableError               the C kernels cannot be built or loaded
    ├── MemoryMisuseError          500  exit 1   a reference count was broken; carries both call stacks
    │   ├── DoubleFreeError                      released more often than retained
    │   ├── UseAfterFreeError                    touched after the last release
    │   ├── ForeignFreeError                     given back to a pool that did not make it
    │   ├── WriteAfterFreeError                  a free block's poison was overwritten
    │   └── HazardError                          a simulated stream met a block that was reused too early
    ├── CudaError                  500  exit 1   the CUDA runtime reports a fault other than a lack of memory
    └── OutOfMemoryError           503  exit 1   the pool's budget or the machine is exhausted

`assert` is for our own bugs; these are for the caller's and the world's faults. A message is one sentence that says
what is wrong with which thing, and where a remedy exists, a second one that names it.
"""

from typing import ClassVar

from aie_tensor.stacks import Frame

__all__ = [
    "AieError",
    "CudaError",
    "DoubleFreeError",
    "EnvironmentLacksError",
    "ForeignFreeError",
    "HazardError",
    "InvalidInputError",
    "MemoryMisuseError",
    "NativeUnavailableError",
    "OutOfMemoryError",
    "UseAfterFreeError",
    "WriteAfterFreeError",
]


class AieError(Exception):
    """Root of all errors: `status` is for an HTTP client, `exit_code` for a shell, `code` for a program."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "internal_error"


class InvalidInputError(AieError):
    """The input is wrong and trying again will not help. `param` names the offending field where there is one."""

    status = 400
    exit_code = 2
    code = "invalid_input"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class EnvironmentLacksError(AieError):
    """The machine lacks something (compiler, network, disk space, a free port); the message names it and the remedy."""

    status = 500
    exit_code = 3
    code = "environment_lacks"


class NativeUnavailableError(EnvironmentLacksError):
    """The C kernels cannot be built or loaded here; the message says why and how to get a compiler."""

    code = "native_unavailable"


class MemoryMisuseError(AieError):
    """A reference count was broken. `allocated_at` and `freed_at` are call stacks, empty when the ledger was off."""

    code = "memory_misuse"
    freed_title: ClassVar[str] = "first freed at"

    def __init__(self, message: str, *, allocated_at: tuple[Frame, ...] = (), freed_at: tuple[Frame, ...] = ()) -> None:
        super().__init__("\n".join([message, *_describe({"allocated at": allocated_at, self.freed_title: freed_at})]))
        self.allocated_at = allocated_at
        self.freed_at = freed_at


class DoubleFreeError(MemoryMisuseError):
    """An allocation was released more often than it was retained."""

    code = "double_free"


class UseAfterFreeError(MemoryMisuseError):
    """A released allocation was touched."""

    code = "use_after_free"


class ForeignFreeError(MemoryMisuseError):
    """An allocation was handed to a pool that did not make it."""

    code = "foreign_free"
    freed_title = "handed over at"


class CudaError(AieError):
    """A call of the CUDA runtime, or a kernel queued before it, failed. After some faults (an illegal address) the
    process cannot use the GPU any more and has to be started anew."""

    code = "cuda_error"


class WriteAfterFreeError(MemoryMisuseError):
    """Somebody wrote into a block after its release; found when a pool that poisons handed it out again."""

    code = "write_after_free"
    freed_title = "freed at"


class HazardError(MemoryMisuseError):
    """A simulated stream found other bytes than it wrote: a block was reused before the stream was done with it."""

    code = "hazard"


class OutOfMemoryError(AieError):
    """The pool's budget or the machine is exhausted, after the whole ladder; the message carries the figures."""

    status = 503
    code = "out_of_memory"


def _describe(stacks: dict[str, tuple[Frame, ...]]) -> list[str]:
    """Each stack under its title, one line per frame, innermost first; if none is known, how to come by them."""
    if not any(stacks.values()):
        return ["  call stacks unknown, since the ledger was off: MemoryPool(ledger=Ledger(enabled=True)) records them"]
    lines = []
    for title, frames in stacks.items():
        lines += [f"  {title}:", *(f"    {frame}" for frame in frames)]
    return lines
