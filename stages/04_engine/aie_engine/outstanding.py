"""What the leak ledger holds, in a form that can leave the process."""

import msgspec

from aie_tensor import Ledger

__all__ = ["Outstanding", "outstanding"]


class Outstanding(msgspec.Struct, frozen=True):
    """One live allocation or KV block."""

    owner: str
    nbytes: int
    age_s: float
    stack: list[str]  # "file:line function", innermost first


def outstanding(ledger: Ledger) -> list[Outstanding]:
    """Everything that is held now; empty while the ledger is off."""
    return [
        Outstanding(
            str(entry.owner),
            entry.nbytes,
            entry.age_s,
            [f"{frame.file}:{frame.line} {frame.function}" for frame in entry.stack],
        )
        for entry in ledger.outstanding()
    ]
