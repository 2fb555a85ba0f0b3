"""The leak in a circle: a call knows its callback, and the callback knows its call."""

from collections.abc import Callable

from aie_tensor.errors import InvalidInputError
from aie_tensor.memdebug.drills.engine import Floats, Request, ScratchEngine, owner_of
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.tensor import Tensor

__all__ = ["FIX", "HAPPENED", "WHY", "Call", "CycleEngine"]

HAPPENED = "Every request leaves its activations behind: nobody releases them, since Python drops a call that is done."
WHY = (
    "It does not: the call holds its callback, and the callback's closure holds the call, so neither count reaches "
    "zero. Only the garbage collector frees a circle, and it counts objects, not bytes: it may come after gigabytes, "
    "or never where a server has switched it off for steady latencies, as this one has."
)
FIX = "Release at the end of the call instead of waiting for Python, and cut the circle there: `on_done = None`."


class Call:
    """One request under way."""

    def __init__(self, request: Request, hidden: Tensor) -> None:
        self.request = request
        self.hidden = hidden
        self.on_done: Callable[[], None] | None = None

    def finish(self) -> None:
        """Tell whoever wants to know."""
        if self.on_done is not None:
            self.on_done()


class CycleEngine(ScratchEngine):
    """Counts what it has served by a callback of each call."""

    def __init__(self, pool: MemoryPool, *, fixed: bool = False) -> None:
        super().__init__(pool)
        self.fixed = fixed
        self.num_served: dict[str, int] = {}

    def serve(self, request: Request) -> Floats | None:
        call = Call(request, Tensor.from_array(self.pool, self.layer(request), owner=owner_of(request)))  # the leak
        call.on_done = lambda: self.count(call)  # what keeps it: the call holds the callback, which holds the call
        try:
            return self.logits(request, call.hidden)
        except InvalidInputError:
            self.num_refused += 1
            return None
        finally:
            call.finish()
            if self.fixed:
                call.hidden.release()
                call.on_done = None

    def count(self, call: Call) -> None:
        """What the callback is for."""
        fate = call.request.fate
        self.num_served[fate] = self.num_served.get(fate, 0) + 1
