"""The one call with which the stages above start an engine."""

from aie_engine.build import Report
from aie_engine.client import WorkerEngine
from aie_engine.config import EngineConfig
from aie_engine.local import LocalEngine
from aie_engine.protocol import EngineClient
from aie_tensor import InvalidInputError

__all__ = ["start_engine"]


def start_engine(config: EngineConfig, workers: int = 1, report: Report | None = None) -> EngineClient:
    """An engine that is ready: in a worker process (1), or in a thread of this one (0).

    Several workers are several engines, to be supervised one by one; sharing requests out among them is the business of
    whoever supervises. report: takes lines for a person to read meanwhile. Raises what loading raises.
    """
    if workers not in (0, 1):
        raise InvalidInputError(f"An engine has one worker process (1) or none (0), not {workers}.", param="workers")
    return WorkerEngine(config, report) if workers else LocalEngine(config, report)
