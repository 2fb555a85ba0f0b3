"""Stage 6: a server that stays up. Guards before the engine, a supervisor behind it, and an orderly end.

Reading order, downward: errors → config → rate_limit → breaker → gate (the door: draining, rate, room) → wrapped (an
engine around another) → guarded (the breaker around the engine) → supervisor (restart) → loading, reload (new versions
of models while the server answers) → watch (a folder that brings them) → drain (SIGTERM). It may import stages 4 and 5
and nothing below.
"""

from aie_reliability.breaker import BreakerState, CircuitBreaker, Permit
from aie_reliability.config import ReliabilityConfig
from aie_reliability.drain import Drain
from aie_reliability.errors import (
    BrokenVersionError,
    CircuitOpenError,
    DrainingError,
    LoadCancelledError,
    LoadFailedError,
    ModelBusyError,
    ModelTooLargeError,
    OverloadedError,
    RateLimitedError,
    RefusedError,
)
from aie_reliability.gate import AdmissionGate
from aie_reliability.guarded import GuardedEngine
from aie_reliability.loading import Catalog, Load, PreparedModel
from aie_reliability.rate_limit import RateLimiter, TokenBucket
from aie_reliability.reload import ModelManager
from aie_reliability.supervisor import SupervisedEngine
from aie_reliability.watch import RepositoryWatcher

__all__ = [
    "AdmissionGate",
    "BreakerState",
    "BrokenVersionError",
    "Catalog",
    "CircuitBreaker",
    "CircuitOpenError",
    "Drain",
    "DrainingError",
    "GuardedEngine",
    "Load",
    "LoadCancelledError",
    "LoadFailedError",
    "ModelBusyError",
    "ModelManager",
    "ModelTooLargeError",
    "OverloadedError",
    "Permit",
    "PreparedModel",
    "RateLimitedError",
    "RateLimiter",
    "RefusedError",
    "ReliabilityConfig",
    "RepositoryWatcher",
    "SupervisedEngine",
    "TokenBucket",
]
