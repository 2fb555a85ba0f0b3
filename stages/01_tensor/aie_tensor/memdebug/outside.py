"""What the process uses besides its pools: the reconciliation with the system's and the driver's own figures.

A pool sees only what it handed out. The interpreter, libraries, the C library's allocator and, on a device, the
driver's context lie outside, and a leak there shows nowhere else. The difference is not exact: pages that were reserved
and never written are not in RSS (fresh pages cost nothing until the first write), and pages of mapped files are in it
as far as they were read. Where the difference is negative, that is said; it is no amount of anything.
"""

from aie_tensor.memdebug.snapshot import MemorySnapshot
from aie_tensor.memdebug.text import Style, format_bytes

__all__ = ["outside"]

_HOST = "cpu"


def outside(snapshot: MemorySnapshot, style: Style) -> list[str]:
    """The lines: one reckoning for the host, one for each device of which the driver's figure is known."""
    reserved: dict[str, int] = {}
    mapped = 0
    for pool in snapshot.pools:
        reserved[pool.device] = reserved.get(pool.device, 0) + pool.stats.reserved_bytes
        mapped += pool.stats.mapped_bytes if pool.device == _HOST else 0
    known = {_HOST: snapshot.rss_bytes, **dict(snapshot.device_bytes)}
    lines = ["Outside the pools"]
    for device, used in known.items():
        lines += _reckoning(device, used, reserved.get(device, 0), mapped if device == _HOST else 0, style)
    lines += [
        f"  {device}: unknown, since nobody tells what this process uses of it"
        for device in reserved
        if device not in known
    ]
    return lines


def _reckoning(device: str, used: int, reserved: int, mapped: int, style: Style) -> list[str]:
    host = device == _HOST
    name = "RSS" if host else "process"
    text = f"{device}: {name} {format_bytes(used)} − reserved {format_bytes(reserved)}"
    if used < reserved:
        why = "was never written, so no page stands behind it yet" if host else "is missing in the driver's figure"
        return style.wrap(f"{text} < 0: at least {format_bytes(reserved - used)} of what is reserved {why}", "  ")
    rest = "interpreter, libraries, their own memory" if host else "the driver's context, other libraries"
    text += f" = {format_bytes(used - reserved)}: {rest}"
    if mapped:
        text += f", and of the {format_bytes(mapped)} of mapped files those pages that were read"
    return style.wrap(text, "  ")
