"""Stage 4, batches to results: the engine loop, the executors, the paged KV cache, sampling, and the worker process.

Layout, each line built on those above it:

    params, requests, stats, errors      what goes in and comes out
    memory, block_book                   the pool, the ledger, and who holds which KV block
    batch, kv_cache, executors/          one step of the model: arrays in, logits out
    philox, sampling/                    logits in, tokens out
    timeline, timeline_*, queue_watch,
    decode_pace                          where the time of every request goes
    predicting                           texts through a model that does not generate
    constraints/                         answers of a given form: masks of the tokens that may come next
    drafting, generation                 one open request: its tokens, and guesses at the next ones
    step_cost, speculation               which guesses are worth a row of the step
    assembler, stepping, taking          the numbers of a step: rows in, tokens out
    admission, preparing, preemptions,
    counting, core                       one step of the engine: guess, schedule, compute, events
    garbage_watch, loop                  the step again and again, in one thread, fed through a queue
    sizing, build                        a configuration into a core that is ready
    streams, registry, local             the engine in a thread of this process
    frames, sending, recorder, worker, client
                                         the engine in a process of its own, behind a pipe
    device_streams/                      streams and events backed by threads; a missing event is found
    processing/                          what stands before and after them: declared steps, tensors on the wire
    predictors/                          models that answer at once: dynamic batches, in a thread or in N processes
    evaluation/, profiling/              what a precision costs; where a step's time goes
    start, text                          what the stages above call first
    need, golden, garbage                before a model is loaded, before it serves, and after it has gone

It may import stages 1 to 3, by their public names, and knows nothing of HTTP. Stages 5 and 6 import this stage and none
below it; what they need from below (errors, the text side of a model) is passed on here. Axes of shapes: see
ARCHITECTURE.md.
"""

from aie_engine.build import EngineParts, Report, build_engine
from aie_engine.client import WorkerEngine
from aie_engine.config import EngineConfig
from aie_engine.constraints import (
    ConstraintError,
    ConstraintsBusyError,
    ConstraintSpec,
    ConstraintsUnavailableError,
    check_constraint,
)
from aie_engine.demo_model import demo_model
from aie_engine.errors import (
    DeadlinePassedError,
    EngineDeadError,
    ModelCheckError,
    PredictionFailedError,
    RequestCancelledError,
    UnsupportedOpError,
    WorkerUnavailableError,
)
from aie_engine.garbage import collect_closed_engines, freeze_what_lives
from aie_engine.garbage_watch import watch_garbage
from aie_engine.golden import Golden, check_engine, read_golden
from aie_engine.local import LocalEngine
from aie_engine.need import MemoryNeed, available_memory_bytes, memory_need
from aie_engine.params import SamplingParams
from aie_engine.predicting import GraphRunner, embed_texts, predict_ids, predict_texts
from aie_engine.predictors import (
    ArrayInfo,
    BatchFacts,
    LocalPredictor,
    PredictFuture,
    Prediction,
    PredictorClient,
    PredictorConfig,
    PredictorInfo,
    PredictorStats,
    PredictRequest,
    WorkerPredictor,
    WorkerStats,
)
from aie_engine.protocol import EngineClient, EngineInfo
from aie_engine.requests import ErrorInfo, FinishReason, GenerateRequest, TokenEvent, TokenLogprobs
from aie_engine.sizing import available_cores
from aie_engine.start import start_engine
from aie_engine.stats import EngineStats
from aie_engine.streams import TokenStream
from aie_engine.text import TextModel, load_text_model
from aie_engine.timeline_report import ENGINE_PHASES, Explanation, QueueReport, Share, TimelineReport, whole_us
from aie_loader import ModelVersion
from aie_scheduler import QueueFullError, RequestTooLongError
from aie_tensor import AieError, EnvironmentLacksError, InvalidInputError, run_program

__all__ = [
    "ENGINE_PHASES",
    "AieError",
    "ArrayInfo",
    "BatchFacts",
    "ConstraintError",
    "ConstraintSpec",
    "ConstraintsBusyError",
    "ConstraintsUnavailableError",
    "DeadlinePassedError",
    "EngineClient",
    "EngineConfig",
    "EngineDeadError",
    "EngineInfo",
    "EngineParts",
    "EngineStats",
    "EnvironmentLacksError",
    "ErrorInfo",
    "Explanation",
    "FinishReason",
    "GenerateRequest",
    "Golden",
    "GraphRunner",
    "InvalidInputError",
    "LocalEngine",
    "LocalPredictor",
    "MemoryNeed",
    "ModelCheckError",
    "ModelVersion",
    "PredictFuture",
    "PredictRequest",
    "Prediction",
    "PredictionFailedError",
    "PredictorClient",
    "PredictorConfig",
    "PredictorInfo",
    "PredictorStats",
    "QueueFullError",
    "QueueReport",
    "Report",
    "RequestCancelledError",
    "RequestTooLongError",
    "SamplingParams",
    "Share",
    "TextModel",
    "TimelineReport",
    "TokenEvent",
    "TokenLogprobs",
    "TokenStream",
    "UnsupportedOpError",
    "WorkerEngine",
    "WorkerPredictor",
    "WorkerStats",
    "WorkerUnavailableError",
    "available_cores",
    "available_memory_bytes",
    "build_engine",
    "check_constraint",
    "check_engine",
    "collect_closed_engines",
    "demo_model",
    "embed_texts",
    "freeze_what_lives",
    "load_text_model",
    "memory_need",
    "predict_ids",
    "predict_texts",
    "read_golden",
    "run_program",
    "start_engine",
    "watch_garbage",
    "whole_us",
]
