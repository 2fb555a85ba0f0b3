"""Who may read which request's name.

With API keys a client sees its own requests and nothing of the others' but that there are some: the id of a request is
its client's choice and may say anything. Without keys everybody sees everything, as with everything else here.
"""

from collections.abc import Iterable

from aie_engine import Share
from aie_server.request_book import RequestTrace

__all__ = ["ANOTHER_CLIENT", "OTHERS", "Names"]

ANOTHER_CLIENT = "another client"
OTHERS = "others"


class Names:
    """From the engine's names to those that the reader knows. client_key: who asks; None: sees everything."""

    def __init__(self, traces: Iterable[RequestTrace], client_key: str | None) -> None:
        self._client_key = client_key
        self._known = {
            choice.engine_id: trace.request_id if len(trace.choices) == 1 else f"{trace.request_id}#{choice.index}"
            for trace in traces
            if self.may_see(trace)
            for choice in trace.choices
        }

    def may_see(self, trace: RequestTrace) -> bool:
        return self._client_key is None or trace.client_key == self._client_key

    def of(self, engine_id: str) -> str:
        """What the reader may know of the request that the engine calls so."""
        if not engine_id:
            return OTHERS
        return self._known.get(engine_id, engine_id if self._client_key is None else ANOTHER_CLIENT)

    def shares(self, shares: Iterable[Share]) -> list[dict[str, object]]:
        """Summed up by who it was, the largest first as they came."""
        found: dict[str, dict[str, int]] = {}
        for share in shares:
            sums = found.setdefault(self.of(share.request_id), {"us": 0, "blocks": 0, "times": 0})
            sums["us"] += share.us
            sums["blocks"] += share.blocks
            sums["times"] += share.times
        return [{"who": who, **{name: n for name, n in sums.items() if n}} for who, sums in found.items()]
