"""The leak that was meant to save work: a cache with a key that never comes again, and no end."""

from collections import OrderedDict

from aie_tensor.memdebug.drills.engine import Floats, Request, ScratchEngine, owner_of
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.tensor import Tensor

__all__ = ["FIX", "HAPPENED", "WHY", "CacheEngine"]

HAPPENED = "Every request leaves its activations in a cache, and none is ever found there again."
WHY = (
    "The cache is keyed by request id, and ids do not repeat. It is a plain dictionary, reachable from the engine, so "
    "nothing is garbage: to Python this memory is in use."
)
FIX = "Key it by what repeats (the input), bound it, and release what falls out."

MAX_ENTRIES = 4  # of the fixed cache


class CacheEngine(ScratchEngine):
    """Keeps hidden layers, since prompts repeat."""

    def __init__(self, pool: MemoryPool, *, fixed: bool = False) -> None:
        super().__init__(pool)
        self.fixed = fixed
        self.num_hits = 0
        self.seen: dict[str, Tensor] = {}
        self.recent: OrderedDict[bytes, Tensor] = OrderedDict()  # the fixed cache, least recently used first

    def serve(self, request: Request) -> Floats | None:
        return self.logits(request, self.recall(request) if self.fixed else self.remember(request))

    def remember(self, request: Request) -> Tensor:
        """The hidden layer, from the cache if it is there."""
        if request.request_id in self.seen:
            self.num_hits += 1
        else:
            hidden = self.layer(request)
            self.seen[request.request_id] = Tensor.from_array(self.pool, hidden, owner=owner_of(request))  # the leak
        return self.seen[request.request_id]

    def recall(self, request: Request) -> Tensor:
        """The fix: as `remember`, for the newest few inputs."""
        key = request.inputs.tobytes()
        if key in self.recent:
            self.num_hits += 1
            self.recent.move_to_end(key)
        else:
            if len(self.recent) == MAX_ENTRIES:
                self.recent.popitem(last=False)[1].release()
            self.recent[key] = Tensor.from_array(self.pool, self.layer(request), owner="cache of hidden layers")
        return self.recent[key]

    def close(self) -> None:
        while self.recent:
            self.recent.popitem()[1].release()
        super().close()
