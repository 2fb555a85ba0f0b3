"""`aie doctor`: is everything here that serving needs, and does a server serve as it should? If not, what to change.

Reading order, a line each:

said            finding (one thing looked at), remedies (the right flag of each server)
without a server here (Python, cache, kernels, models, port), machine (limits, threads, swap, clock)
numbers         measured: what the experiments give and the judges take
judges          first_request, memory_growth, reasons → utilisation → throughput, spikes, sameness, refusals,
                contention: pure functions, each with the rule that it goes by
measuring       asking (one request; all that is known of the load generator), processes, server (its metrics), probe,
                loop, gaps, memory_rounds → generating and predicting (the experiments)
together        connecting (who it is, and how it is asked) → live (in which order, in what time)

Then command.
"""

from aie.doctor.command import register

__all__ = ["register"]
