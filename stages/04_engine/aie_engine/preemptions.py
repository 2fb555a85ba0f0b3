"""Who lost what to whom, for the log: every case at level info, and now and then a warning that names the remedy."""

import logging
from collections.abc import Sequence

from aie_scheduler import Preemption

__all__ = ["PreemptionLog"]

_WARN_EVERY_S = 10.0

_log = logging.getLogger("aie.engine")


class PreemptionLog:
    """Times are on the clock that `note` is given."""

    def __init__(self) -> None:
        self._warn_at_s = float("-inf")
        self._num = self._lost_tokens = 0  # since the last warning

    def note(self, preempted: Sequence[Preemption], now: float) -> None:
        """A step has put these requests back."""
        for lost in preempted:
            _log.info("%s lost the KV blocks of %d tokens to %s", lost.request_id, lost.lost_tokens, lost.by)
            self._num += 1
            self._lost_tokens += lost.lost_tokens
        if now < self._warn_at_s:
            return
        _log.warning(
            "out of KV blocks: %d requests were put back and lose %d computed tokens, the last of them %s to %s; more "
            "--kv-memory or a smaller --max-batch-size would prevent it",
            self._num, self._lost_tokens, preempted[-1].request_id, preempted[-1].by,
        )  # fmt: skip
        self._num = self._lost_tokens = 0
        self._warn_at_s = now + _WARN_EVERY_S
