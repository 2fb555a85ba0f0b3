"""What every executor promises, whatever device it runs on."""

from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from aie_engine.batch import Int32Array, StepBatch

__all__ = ["Executor", "Float32Array", "KernelKind"]

Float32Array = npt.NDArray[np.float32]
KernelKind = Literal["native", "numpy"]


class Executor(Protocol):
    """Runs a model's graph over one step and keeps its keys and values in the paged cache it was built with.

    Results for a sequence do not depend on what else is in the batch, nor on how its prompt was cut into chunks, beyond
    the rounding of float32 sums.
    """

    @property
    def kernels(self) -> KernelKind: ...

    def run(self, batch: StepBatch) -> Float32Array:
        """Logits [R, V] of `batch.logit_rows`. The array belongs to the executor and is valid until the next run."""
        ...

    def argmax_rows(self, logits: Float32Array) -> Int32Array:
        """Index of each row's first largest, or first NaN where there is one: [R, V] → [R]."""
        ...

    def close(self) -> None:
        """Stop threads and give buffers back."""
        ...
