"""What stage 3 can refuse, and what it cannot survive.

AieError                                    (from aie_tensor)
├── InvalidInputError
│   └── RequestTooLongError    400  exit 2   the request can never run here, however long it waits
├── QueueFullError             503  exit 1   too many wait already; try again after `retry_after_s`
├── QueueClosedError           503  exit 1   the front queue lets nobody in any more
├── OutOfBlocksError           500  exit 1   more blocks asked for than are free (schedulers look before they ask)
└── BlockDoubleFreeError       500  exit 1   a block was given back that nobody holds
"""

from aie_tensor import AieError, InvalidInputError

__all__ = ["BlockDoubleFreeError", "OutOfBlocksError", "QueueClosedError", "QueueFullError", "RequestTooLongError"]


class RequestTooLongError(InvalidInputError):
    """Prompt and requested output exceed what this server can ever hold; `param` is "prompt" or "max_tokens"."""

    code = "context_length_exceeded"


class QueueFullError(AieError):
    """The waiting room is full. `retry_after_s` estimates when it will have been worked off."""

    status = 503
    code = "queue_full"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueClosedError(AieError):
    """The front queue was closed: the server is shutting down."""

    status = 503
    code = "shutting_down"


class OutOfBlocksError(AieError):
    """Fewer KV blocks are free than were asked for."""

    code = "out_of_blocks"


class BlockDoubleFreeError(AieError):
    """A KV block was freed twice, or was never this allocator's."""

    code = "block_double_free"
