"""Predictors: encoders, classifiers and image models under dynamic batching.

requests.py, protocol.py   what goes in, what comes out, and what every predictor promises
config.py                  everything a predictor can be told
signature.py, checking.py  what an item looks like, and what is refused before it waits
runner.py                  a batch into one run of the graph, and the results of each item out of it
build.py                   a configuration into a runner that is ready
books.py                   open requests, batches, lanes
room.py, pause.py          who finds the queue full; how the front waits for work
front.py                   **the batcher in front**: who waits, who runs where, whose result is whose
lanes_here.py              a batch in this process: at once, or staged while another is computed
local.py                   the model in a thread of this process
frames.py, worker.py       the model in processes of their own: what travels, and what runs there
lane.py, workers.py        one such process seen from here, and N of them as one predictor
"""

from aie_engine.predictors.config import PredictorConfig
from aie_engine.predictors.local import LocalPredictor
from aie_engine.predictors.protocol import ArrayInfo, PredictorClient, PredictorInfo, PredictorStats, WorkerStats
from aie_engine.predictors.requests import BatchFacts, PredictFuture, Prediction, PredictRequest
from aie_engine.predictors.workers import WorkerPredictor

__all__ = [
    "ArrayInfo",
    "BatchFacts",
    "LocalPredictor",
    "PredictFuture",
    "PredictRequest",
    "Prediction",
    "PredictorClient",
    "PredictorConfig",
    "PredictorInfo",
    "PredictorStats",
    "WorkerPredictor",
    "WorkerStats",
]
