"""Where a step's time goes, operator by operator, against what this machine can do at most.

costs.py   operations and bytes that an operator needs at least
steps.py   steps that are timed: prompts, and batches that decode
trace.py   one of them for Perfetto
"""

from aie_engine.profiling.costs import Cost, StepShape, node_cost
from aie_engine.profiling.steps import OpProfile, Peaks, StepProfile, StepProfiler, measure_peaks
from aie_engine.profiling.trace import trace_events

__all__ = [
    "Cost",
    "OpProfile",
    "Peaks",
    "StepProfile",
    "StepProfiler",
    "StepShape",
    "measure_peaks",
    "node_cost",
    "trace_events",
]
