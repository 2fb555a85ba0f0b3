"""A scratch engine: a small network served on memory from a pool. Right as it stands; each drill breaks one place.

A request brings a vector, the hidden layer is computed into a tensor of the pool, the logits from it are the answer,
and the tensor goes back. Some requests are cancelled halfway and some are refused, since on those paths releases get
forgotten.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aie_tensor.errors import InvalidInputError
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.tensor import Tensor

__all__ = ["NUM_INPUTS", "Request", "ScratchEngine", "traffic"]

Floats = NDArray[np.float32]
NUM_INPUTS, NUM_HIDDEN, NUM_LOGITS = 64, 512, 32
NUM_PROMPTS = 8  # different inputs in the traffic: real prompts repeat too
PERIOD, NUM_CANCELLED, NUM_REFUSED = 20, 4, 1  # of every 20 requests, 4 are cancelled and 1 is refused


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `fate` is what befalls it: "answered", "cancelled" halfway, or "refused" for what it asks."""

    request_id: str
    inputs: Floats  # [NUM_INPUTS]
    fate: str = "answered"


class ScratchEngine:
    """The network, its weights in exact blocks of `pool`. `close` gives them back."""

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool
        self.num_refused = 0
        source = np.random.default_rng(0)
        shapes = ((NUM_HIDDEN, NUM_INPUTS), (NUM_LOGITS, NUM_HIDDEN))
        self._blocks = [pool.allocate_exact(rows * columns * 4, owner="weights") for rows, columns in shapes]
        self._up, self._out = (block.array(np.float32, s) for block, s in zip(self._blocks, shapes, strict=True))
        for weights in (self._up, self._out):
            weights[...] = source.standard_normal(weights.shape).astype(np.float32) / 8

    def answer(self, request: Request) -> Floats | None:
        """The logits [NUM_LOGITS]; None when the request was cancelled or refused."""
        try:
            return self.serve(request)
        except InvalidInputError:
            self.num_refused += 1
            return None

    def serve(self, request: Request) -> Floats | None:
        """As `answer`, but InvalidInputError when it is refused. `finally` is what makes this right on every path."""
        hidden = Tensor.from_array(self.pool, self.layer(request), owner=owner_of(request))
        try:
            return self.logits(request, hidden)
        finally:
            hidden.release()

    def layer(self, request: Request) -> Floats:
        """The hidden layer of a request [NUM_HIDDEN]: max(0, W x)."""
        hidden: Floats = np.maximum(self._up @ request.inputs, 0)
        return hidden

    def logits(self, request: Request, hidden: Tensor) -> Floats | None:
        """[NUM_HIDDEN] → [NUM_LOGITS]; None for a cancelled request, InvalidInputError for one to refuse."""
        if request.fate == "cancelled":
            return None
        if request.fate == "refused":
            raise InvalidInputError(f"request {request.request_id} asks for more than there is")
        logits: Floats = self._out @ hidden.numpy()
        return logits

    def close(self) -> None:
        """Give the weights back."""
        del self._up, self._out
        for block in self._blocks:
            block.release()


def owner_of(request: Request) -> Owner:
    """Whose the hidden layer is."""
    return Owner("activations", request_id=request.request_id)


def traffic(num_requests: int, seed: int) -> Iterator[Request]:
    """The same shares of fates in every period of 20 requests, in an order and with inputs that follow from `seed`."""
    source = random.Random(seed)
    prompts = np.random.default_rng(seed).standard_normal((NUM_PROMPTS, NUM_INPUTS)).astype(np.float32)
    fates = ["cancelled"] * NUM_CANCELLED + ["refused"] * NUM_REFUSED
    fates += ["answered"] * (PERIOD - len(fates))
    for number in range(num_requests):
        if number % PERIOD == 0:
            source.shuffle(fates)
        yield Request(f"r-{number}", prompts[source.randrange(NUM_PROMPTS)], fates[number % PERIOD])
