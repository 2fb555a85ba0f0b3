"""Synthetic traffic: who comes when, with how long a prompt, wanting how many tokens. Seeded, hence repeatable.

Real lengths are skewed: most prompts are short, a few are very long. Log-normal lengths show that; equal lengths
would flatter every batcher, because padding and waiting for the longest member then cost nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

__all__ = ["SimulatedRequest", "Workload"]


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One arrival."""

    arrival_s: float
    prompt_len: int  # tokens
    output_len: int  # tokens sampled before it ends by itself
    priority: int = 0
    deadline_s: float | None = None
    client: str = ""
    model: str = ""
    shared_len: int = 0  # tokens at the prompt's beginning that are the same in all requests, as of a system prompt


@dataclass(frozen=True, slots=True)
class Workload:
    """Arrivals in order of time."""

    requests: Sequence[SimulatedRequest]

    def with_shared_prefix(self, num_tokens: int) -> "Workload":
        """The same traffic with `num_tokens` equal tokens before each prompt."""
        return Workload(
            tuple(
                replace(request, prompt_len=request.prompt_len + num_tokens, shared_len=num_tokens)
                for request in self.requests
            )
        )

    @classmethod
    def poisson(
        cls,
        *,
        seed: int,
        num_requests: int,
        rate_per_s: float,
        prompt_median: int,
        output_median: int,
        max_len: int,
        sigma: float = 0.8,
    ) -> "Workload":
        """Independent arrivals at `rate_per_s`; log-normal lengths with these medians, each cut off at `max_len`."""
        random = Random(seed)

        def length(median: int) -> int:
            return min(max(1, round(median * random.lognormvariate(0.0, sigma))), max_len)

        requests: list[SimulatedRequest] = []
        now = 0.0
        for _ in range(num_requests):
            now += random.expovariate(rate_per_s)
            requests.append(SimulatedRequest(now, length(prompt_median), length(output_median)))
        return cls(tuple(requests))
