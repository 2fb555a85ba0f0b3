"""Four classic leaks, each planted in a scratch engine at one marked line, and how they are found.

    engine.py                                     the engine as it should be, and its traffic
    exception.py, cycle.py, cache.py, logger.py   one leak each, and its fix
    catalog.py                                    the four by name
    run.py                                        traffic, three snapshots, what keeps growing, who holds it

Guess first: read one of the four without its texts at the top, then run `aie memdebug --drill NAME`.
"""

from aie_tensor.memdebug.drills.catalog import DRILLS, Drill
from aie_tensor.memdebug.drills.run import MIN_REQUESTS, DrillReport, run_clean, run_drill

__all__ = ["DRILLS", "MIN_REQUESTS", "Drill", "DrillReport", "run_clean", "run_drill"]
