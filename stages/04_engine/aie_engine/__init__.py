"""Stage 4, batches to results: the engine loop, the executors, the paged KV cache, sampling, and the worker process.

Layout, each line built on those above it:

    params, requests, stats, errors      what goes in and comes out
    batch, kv_cache, executors/          one step of the model: arrays in, logits out
    sampling                             logits in, tokens out
    core                                 the loop's one step: commands, schedule, execute, sample, events
    streams, local                       the loop in a thread of this process
    frames, worker, client               the loop in a process of its own, behind a pipe
    start, text                          what the stages above call first
"""

from aie_engine.config import EngineConfig
from aie_engine.errors import EngineDeadError, UnsupportedOpError
from aie_engine.params import SamplingParams
from aie_engine.protocol import EngineClient, EngineInfo
from aie_engine.requests import ErrorInfo, FinishReason, GenerateRequest, TokenEvent, TokenLogprobs
from aie_engine.stats import EngineStats
from aie_engine.streams import TokenStream
from aie_scheduler import QueueFullError, RequestTooLongError
from aie_tensor import AieError, EnvironmentLacksError, InvalidInputError

__all__ = [
    "AieError",
    "EngineClient",
    "EngineConfig",
    "EngineDeadError",
    "EngineInfo",
    "EngineStats",
    "EnvironmentLacksError",
    "ErrorInfo",
    "FinishReason",
    "GenerateRequest",
    "InvalidInputError",
    "QueueFullError",
    "RequestTooLongError",
    "SamplingParams",
    "TokenEvent",
    "TokenLogprobs",
    "TokenStream",
    "UnsupportedOpError",
]
