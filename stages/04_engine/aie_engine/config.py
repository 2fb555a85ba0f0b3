"""Everything an engine can be told, as one frozen value that also travels to the worker process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aie_loader import find_leniency, find_precision
from aie_tensor import InvalidInputError
from aie_tensor.ops import ACTIVATIONS, KV_DTYPES, Activations, KVDtype

__all__ = ["EngineConfig", "KernelChoice"]

KernelChoice = Literal["auto", "native", "numpy"]

_AT_LEAST_ONE = ("max_batch_size", "max_batch_tokens", "block_size", "kv_memory_bytes", "memdebug_sample")


@dataclass(frozen=True)
class EngineConfig:
    """Raises `InvalidInputError` naming the field when a value makes no sense."""

    model_path: Path  # a .gguf file or a safetensors folder
    model_name: str | None = None  # the name to serve; None: as the model file says
    kernels: KernelChoice = "auto"  # auto: native where a C compiler exists, else NumPy
    num_threads: int | None = None  # None: the cores this process may use
    lenient: tuple[str, ...] = ()  # differences from the format's rules to let through (`aie_loader.Leniency`)
    precision: str | None = None  # of the weights, such as int8 (`aie_loader.precision`); None: as the file has them
    max_batch_size: int = 64  # requests running at once
    max_batch_tokens: int = 512  # tokens computed in one step, prefill and decode together
    max_prefill_tokens: int | None = 256  # of those, prompts while others decode; None: no limit of its own
    max_queue: int = 256  # requests that may be open beyond max_batch_size before submit refuses
    max_seq_len: int | None = None  # prompt and answer together; None: what model and KV memory allow
    block_size: int = 16  # tokens in one KV block
    kv_memory_bytes: int = 768 << 20  # upper bound; less is taken when the batch cannot need it
    memdebug: bool = False  # record where every KV block and allocation came from
    memdebug_sample: int = 1  # of so many allocations one is recorded; with `memdebug`
    memory_log: Path | None = None  # a file for every allocation and release, to be replayed; needs `memdebug`
    memory_ring: Path | None = None  # a ring file that exists, for the last of them; needs `memdebug`
    seed: int = 0  # seeds the draws of requests that name no seed; worker i uses seed + i
    warm_up: bool = True  # run a small batch before the first request
    prefix_caching: bool = True  # keep the KV blocks of prompts, for requests that begin alike
    speculate: int = 8  # most tokens guessed ahead of a request and checked in one step; 0: none

    kv_dtype: KVDtype = "fp32"  # of the cached keys and values; fp16 and int8 hold more tokens and cost some exactness
    activations: Activations = "fp32"  # int8: products round what they read to eight bits; faster, no longer exact

    def __post_init__(self) -> None:
        for field in ("model_path", "memory_log", "memory_ring"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, Path(getattr(self, field)))
        find_leniency(self.lenient)
        if self.precision is not None:
            find_precision(self.precision)
        if self.kernels not in ("auto", "native", "numpy"):
            raise InvalidInputError(f"kernels must be auto, native or numpy, not {self.kernels!r}.", param="kernels")
        if self.kv_dtype not in KV_DTYPES:
            raise InvalidInputError(
                f"kv_dtype must be {', '.join(KV_DTYPES)}, not {self.kv_dtype!r}.", param="kv_dtype"
            )
        if self.activations not in ACTIVATIONS:
            raise InvalidInputError(
                f"activations must be {' or '.join(ACTIVATIONS)}, not {self.activations!r}.", param="activations"
            )
        if self.activations != "fp32" and self.kernels == "numpy":
            raise InvalidInputError(
                f"{self.activations} activations are for native kernels; leave out kernels = numpy.",
                param="activations",
            )
        for field in _AT_LEAST_ONE:
            _require(field, getattr(self, field), at_least=1)
        _require("max_queue", self.max_queue, at_least=0)
        _require("speculate", self.speculate, at_least=0)
        _require("max_prefill_tokens", self.max_prefill_tokens, at_least=1)
        _require("num_threads", self.num_threads, at_least=1)
        _require("max_seq_len", self.max_seq_len, at_least=2)  # one token of prompt and one of answer
        for field in ("memory_log", "memory_ring"):
            if getattr(self, field) is not None and not self.memdebug:
                raise InvalidInputError(f"{field} records nothing without memdebug; switch that on too.", param=field)
        if self.max_batch_tokens < self.max_batch_size:
            raise InvalidInputError(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_batch_size ({self.max_batch_size}): "
                "every running request computes one token per step.",
                param="max_batch_tokens",
            )


def _require(field: str, value: int | None, *, at_least: int) -> None:
    if value is not None and value < at_least:
        raise InvalidInputError(f"{field} must be at least {at_least}, not {value}.", param=field)
