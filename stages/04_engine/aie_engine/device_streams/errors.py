"""What can go wrong on a stream."""

from aie_tensor import AieError, Frame, HazardError

__all__ = ["MissingDependencyError", "StreamError"]


class StreamError(AieError):
    """Work on a stream raised. What was queued behind it did not run; the cause is `__cause__`."""

    code = "stream_failed"


class MissingDependencyError(HazardError):
    """Two pieces of work touch one buffer, at least one of them writes, and no event orders them.

    first_at, second_at: the call stacks that queued them, innermost first.
    """

    def __init__(self, message: str, *, first_at: tuple[Frame, ...], second_at: tuple[Frame, ...]) -> None:
        lines = [message]
        for title, frames in (("the first was queued at", first_at), ("the second was queued at", second_at)):
            lines += [f"  {title}:", *(f"    {frame}" for frame in frames)]
        AieError.__init__(self, "\n".join(lines))  # past the base, whose stacks are those of an allocation
        self.allocated_at = self.freed_at = ()
        self.first_at = first_at
        self.second_at = second_at
