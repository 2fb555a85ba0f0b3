"""The leak in a log line: a handler that keeps records keeps what they were asked to print."""

import logging

from aie_tensor.memdebug.drills.engine import Floats, Request, ScratchEngine, owner_of
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.tensor import Tensor

__all__ = ["FIX", "HAPPENED", "WHY", "LoggerEngine", "RecentLines"]

HAPPENED = "Every request leaves its activations behind, passed to a log line as an argument and forgotten."
WHY = (
    "A log record is formatted late, so it carries its arguments as objects. A handler that keeps records, to show "
    "the last lines or to send them in bulk, keeps those objects."
)
FIX = "Log figures, not tensors; keep the text of a line (`getMessage()`), not its record; release what you allocate."


class RecentLines(logging.Handler):
    """Keeps the lines of the log, for a page that shows them."""

    def __init__(self, *, as_text: bool) -> None:
        super().__init__()
        self.as_text = as_text
        self.records: list[logging.LogRecord | str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage() if self.as_text else record)  # what keeps it


class LoggerEngine(ScratchEngine):
    """Logs the hidden layer of every request."""

    def __init__(self, pool: MemoryPool, *, fixed: bool = False) -> None:
        super().__init__(pool)
        self.fixed = fixed
        self.log = logging.Logger("scratch engine")  # its own, not one of the process
        self.lines = RecentLines(as_text=fixed)
        self.log.addHandler(self.lines)

    def serve(self, request: Request) -> Floats | None:
        if self.fixed:
            return self.serve_quietly(request)
        hidden = Tensor.from_array(self.pool, self.layer(request), owner=owner_of(request))  # the leak
        self.log.info("request %s: %s", request.request_id, hidden)
        return self.logits(request, hidden)  # Python drops the tensor here, or so it was meant

    def serve_quietly(self, request: Request) -> Floats | None:
        """The fix."""
        hidden = Tensor.from_array(self.pool, self.layer(request), owner=owner_of(request))
        try:
            self.log.info("request %s: %d hidden values", request.request_id, hidden.shape[0])
            return self.logits(request, hidden)
        finally:
            hidden.release()
