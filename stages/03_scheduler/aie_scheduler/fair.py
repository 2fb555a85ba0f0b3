"""Fair share: who has been served least goes next, first among the models and then among the clients of a model.

Each flow (a model; a client of a model) has a counter of the work that was done for it, in tokens. The waiting flow
with the smallest counter is served next and its counter grows by what that costs, so that flows which always have
something waiting get equal work, however many requests they send and however long those are. A flow that comes back
after a pause starts where the others are now: what it did not use it cannot save up.

This is start-time fair queueing (Goyal, Vin and Cheng 1996, "Start-time Fair Queuing"): a counter is the start tag of
the flow's next request, and virtual time is the start tag of what was served last. That the charge comes with the
service, not with the arrival, is the virtual token counter of Sheng et al. 2024, "Fairness in Serving Large Language
Models": a request that is cancelled or expires while it waits costs nothing, and tokens are charged as they turn up.

Counters only grow, so a heap of flows may hold old ones and be corrected when it is looked at. Cost: O(1) per charge.
"""

from collections import Counter

from aie_scheduler.request import SequenceState

__all__ = ["FairShare"]

Flow = tuple[str, ...]
MAX_IDLE_FLOWS = 1024  # counters kept of flows with nobody waiting: clients come and go, memory must not


class _Level:
    """Counters of flows of one kind."""

    def __init__(self) -> None:
        self.served: dict[Flow, float] = {}  # tokens, on the level's own virtual time
        self._num_waiting: Counter[Flow] = Counter()
        self._virtual = 0.0  # counter of the flow that was served last, before the service

    def join(self, flow: Flow) -> None:
        self._num_waiting[flow] += 1
        if self._num_waiting[flow] == 1:
            self.served[flow] = max(self.served.get(flow, 0.0), self._virtual)

    def leave(self, flow: Flow) -> None:
        self._num_waiting[flow] -= 1
        if self._num_waiting[flow]:
            return
        del self._num_waiting[flow]
        if not self._num_waiting:  # nobody waits: old debts are void, all begin anew from here
            self._virtual = max(self._virtual, *self.served.values())
            self.served.clear()
        elif len(self.served) - len(self._num_waiting) > MAX_IDLE_FLOWS:
            self.served = {flow: self.served[flow] for flow in self._num_waiting}

    def serve(self, flow: Flow, num_tokens: int) -> None:
        """Charge a flow that is still waiting for a request of its own that begins now."""
        self._virtual = max(self._virtual, self.served[flow])
        self.served[flow] += num_tokens

    def charge(self, flow: Flow, num_tokens: int) -> None:
        """Charge a flow for more of what has begun; forgiven where the flow is forgotten."""
        if flow in self.served:
            self.served[flow] += num_tokens


class FairShare:
    """The counters of one scheduler. All its queues look at the same, so that fairness holds across buckets."""

    def __init__(self) -> None:
        self._models = _Level()
        self._clients = _Level()

    def key(self, flow: Flow) -> tuple[float, float]:
        """Sort key of a waiting (model, client): least served model first, then its least served client."""
        return self._models.served.get(flow[:1], 0.0), self._clients.served.get(flow, 0.0)

    def join(self, state: SequenceState) -> None:
        """A request begins to wait."""
        self._models.join((state.model,))
        self._clients.join((state.model, state.client))

    def leave(self, state: SequenceState) -> None:
        """A request waits no longer, whatever becomes of it. After `serve`, if it is served."""
        self._models.leave((state.model,))
        self._clients.leave((state.model, state.client))

    def serve(self, state: SequenceState, num_tokens: int) -> None:
        """A waiting request begins: charge its client and its model."""
        self._models.serve((state.model,), num_tokens)
        self._clients.serve((state.model, state.client), num_tokens)

    def charge(self, state: SequenceState, num_tokens: int) -> None:
        """A request has cost more since it began, as a generation does."""
        self._models.charge((state.model,), num_tokens)
        self._clients.charge((state.model, state.client), num_tokens)
