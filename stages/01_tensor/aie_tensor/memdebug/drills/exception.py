"""The leak in the error path: an error is kept, and with it everything its traceback can see."""

from aie_tensor.errors import InvalidInputError
from aie_tensor.memdebug.drills.engine import Floats, Request, ScratchEngine, owner_of
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.tensor import Tensor

__all__ = ["FIX", "HAPPENED", "WHY", "ExceptionEngine"]

HAPPENED = "Refused requests leave their activations behind: the line that releases them comes after one that raises."
WHY = (
    "Python would free them when `serve` ends, but the error was kept for a later report. An error holds its "
    "traceback, the traceback holds the frames it passed, and the frame of `serve` holds the tensor."
)
FIX = "Release in `finally`, so that no path can jump over it; and keep the error's text, not the error."


class ExceptionEngine(ScratchEngine):
    """Remembers its failures, for a page that shows them."""

    def __init__(self, pool: MemoryPool, *, fixed: bool = False) -> None:
        super().__init__(pool)
        self.fixed = fixed
        self.failures: list[InvalidInputError | str] = []

    def answer(self, request: Request) -> Floats | None:
        try:
            return self.serve_safely(request) if self.fixed else self.serve(request)
        except InvalidInputError as error:
            self.failures.append(str(error) if self.fixed else error)  # what keeps it
            return None

    def serve(self, request: Request) -> Floats | None:
        hidden = Tensor.from_array(self.pool, self.layer(request), owner=owner_of(request))  # the leak
        logits = self.logits(request, hidden)
        hidden.release()  # not reached when the line above raises
        return logits

    def serve_safely(self, request: Request) -> Floats | None:
        """The fix."""
        hidden = Tensor.from_array(self.pool, self.layer(request), owner=owner_of(request))
        try:
            return self.logits(request, hidden)
        finally:
            hidden.release()
