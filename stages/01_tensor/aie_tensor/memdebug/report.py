"""One screen of text that says how a process stands with its memory.

Four bars per pool, each a part of the one above it: capacity → reserved → live → requested. What is lost on the way has
three causes with three remedies, so they are three numbers: rounding (more size classes), idle blocks (trim), memory in
pieces (another order or other sizes). Then the blocks themselves, how long things have been held, and by which line.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from aie_tensor.memdebug.blockmap import block_map
from aie_tensor.memdebug.growth import Growth, Totals, diff, totals
from aie_tensor.memdebug.outside import outside
from aie_tensor.memdebug.pieces import external_fragmentation, free_pieces
from aie_tensor.memdebug.snapshot import HeldGroup, MemorySnapshot
from aie_tensor.memdebug.text import Style, format_bytes, format_percent, format_seconds
from aie_tensor.memory.state import PoolState

__all__ = ["render", "render_diff", "render_growth"]

MAX_GROUPS = 8
MAX_FRAMES = 3


def render(snapshot: MemorySnapshot, width: int = 100, unicode: bool = True) -> str:
    """The screen for one moment. `width` in characters, at least 60; `unicode` False for plain ASCII."""
    style = Style(max(width, 60), unicode)
    lines = style.wrap(_title(snapshot), "")
    for pool in snapshot.pools:
        lines += ["", *_pool(pool, style)]
    lines += ["", *outside(snapshot, style), "", *_held(snapshot, style)]
    return style.fit(lines)


def render_diff(before: MemorySnapshot, after: MemorySnapshot, width: int = 100, unicode: bool = True) -> str:
    """What changed between two moments: the process's figures, then the groups that grew, then those that shrank."""
    style = Style(max(width, 60), unicode)
    change = totals(before, after)
    title = (
        f"Memory of {after.process} from {_moment(before)} to {_moment(after)}: {change.num_requests:,} requests ended"
    )
    lines = style.wrap(title, "")
    comparable = before.pid == after.pid and change.num_requests >= 0
    if not comparable:
        text = "These are two processes, or the order is wrong: what differs between them is no growth."
        lines += style.wrap(text, "  ")
    if (every := after.sample_every) > 1:
        text = f"The ledger saw 1 in {every} allocations: the groups are that sample, about 1/{every} of what changed."
        lines += style.wrap(text, "  ")
    changes = diff(before, after)
    if not comparable:  # a difference between two processes has no rate
        change = replace(change, num_requests=0)
        changes = [replace(each, bytes_per_1000=None) for each in changes]
    lines += ["", *_totals(change), "", *_groups_that_changed(changes, style)]
    return style.fit(lines)


def render_growth(growth: Sequence[Growth], width: int = 100, unicode: bool = True) -> str:
    """The groups that `keeps_growing` found, or that there are none."""
    style = Style(max(width, 60), unicode)
    if not growth:
        return style.fit(["Nothing keeps growing."])
    return style.fit(["Keeps growing", *_changes(growth, style)])


def _title(snapshot: MemorySnapshot) -> str:
    return (
        f"Memory of {snapshot.process} (pid {snapshot.pid}) · {_moment(snapshot)} · "
        f"{snapshot.num_requests:,} requests ended · {_ledger(snapshot)}"
    )


def _moment(snapshot: MemorySnapshot) -> str:
    return datetime.fromtimestamp(snapshot.taken_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _ledger(snapshot: MemorySnapshot) -> str:
    if not snapshot.sample_every:
        return "ledger off"
    return "ledger on" if snapshot.sample_every == 1 else f"ledger sees 1 in {snapshot.sample_every}"


def _pool(pool: PoolState, style: Style) -> list[str]:
    return [
        f"Pool {pool.name} on {pool.device}",
        *_bars(pool, style),
        "",
        *_losses(pool),
        *_counters(pool, style),
        *([""] if pool.segments or pool.slabs else []),
        *block_map(pool, style),
    ]


def _bars(pool: PoolState, style: Style) -> list[str]:
    """To the scale of the capacity, or of what is reserved where that would be too little to see."""
    now = pool.stats
    small = 10 * now.reserved_bytes < pool.capacity_bytes
    scale = (now.reserved_bytes if small else pool.capacity_bytes) or 1
    rows = [
        ("capacity", pool.capacity_bytes, "the most it may take" if not small else "bar not to scale: at most"),
        ("reserved", now.reserved_bytes, "taken from the system, not returned"),
        ("live", now.live_bytes, "blocks that somebody holds"),
        ("requested", now.requested_bytes, "what their holders asked for"),
    ]
    num_cells = max(style.width - 72, 10)
    return [
        f"  {name:<10}{style.bar(nbytes / scale, num_cells)}{format_bytes(nbytes):>11}"
        f"{format_percent(nbytes, pool.capacity_bytes):>9}  {meaning}"
        for name, nbytes, meaning in rows
    ]


def _losses(pool: PoolState) -> list[str]:
    now = pool.stats
    free = free_pieces(pool)
    fragmentation = external_fragmentation(free)
    apart = "–" if fragmentation is None else f"{100 * fragmentation:.1f} %"
    rounding = now.live_bytes - now.requested_bytes
    of_live = f"{format_percent(rounding, now.live_bytes)} of live"
    idle = f"{format_percent(now.cached_bytes, now.reserved_bytes)} of reserved"
    waiting = f"{format_percent(now.pending_bytes, now.reserved_bytes)} of reserved"
    pieces = f"in {len(free):,} pieces" if free else "nothing is free"
    rows = [
        ("internal waste", format_bytes(rounding), of_live, "rounding: live − requested"),
        ("cached, idle", format_bytes(now.cached_bytes), idle, "free blocks kept for reuse"),
        ("pending", format_bytes(now.pending_bytes), waiting, "freed; a stream may use it"),
        ("external frag.", apart, pieces, "1 − largest free / all free"),
    ]
    if now.mapped_bytes:
        rows.append(("mapped", format_bytes(now.mapped_bytes), "beside reserved", "files of others, listed only"))
    return [f"  {name:<15}{value:>10}  {share:<19} {meaning}" for name, value, share, meaning in rows]


def _counters(pool: PoolState, style: Style) -> list[str]:
    now = pool.stats
    hits = format_percent(now.num_reuses, now.num_allocations)
    peaks = f"peaks: live {format_bytes(now.peak_live_bytes)}, reserved {format_bytes(now.peak_reserved_bytes)}"
    lines = [*style.wrap(f"{now.num_allocations:,} allocations, {hits} of them from a free list · {peaks}", "  ")]
    if now.num_dropped:
        lines.append(
            f"  {now.num_dropped:,} handles were collected before anyone released them: returned late, by luck"
        )
    return lines


def _held(snapshot: MemorySnapshot, style: Style) -> list[str]:
    if not snapshot.sample_every and not snapshot.groups:
        return style.wrap("Who holds it: unknown, since the ledger is off. Switched on, it names every line.", "")
    count, num_stacks = sum(group.count for group in snapshot.groups), len(snapshot.groups)
    lines = [f"Who holds it: {count:,} things that {num_stacks:,} call stacks asked for"]
    if not snapshot.groups:
        lines = ["Who holds it: nobody; nothing that the ledger saw is held"]
    if snapshot.num_lost:
        lines.append(
            f"  {snapshot.num_lost:,} more are held that the ledger left out: it was off or sampling at the time"
        )
    lines += _ages(snapshot, style)
    for group in snapshot.groups[:MAX_GROUPS]:
        lines += _group(group, style)
    if hidden := len(snapshot.groups) - MAX_GROUPS:
        lines += [f"  … and {hidden:,} smaller groups"] if hidden > 0 else []
    return lines


def _ages(snapshot: MemorySnapshot, style: Style) -> list[str]:
    if not any(count for _, count, _ in snapshot.ages):
        return []
    most = max(nbytes for _, _, nbytes in snapshot.ages) or 1
    lines = []
    for label, count, nbytes in snapshot.ages:
        if count:
            lines.append(
                f"  held {label.replace('>=', '≥'):<9}{style.bar(nbytes / most, max(style.width - 72, 10))}"
                f"{format_bytes(nbytes):>11}  in {count:,}"
            )
    return [*lines, ""]


def _group(group: HeldGroup, style: Style) -> list[str]:
    age = f"oldest {format_seconds(group.oldest_s)}"
    return [
        f"{format_bytes(group.nbytes):>12} in {group.count:<4,} {_owner(group)} · {age}{_requests(group)}",
        *_stack(group.stack, style, " " * 21),
    ]


def _owner(group: HeldGroup) -> str:
    return " · ".join([group.what or "unnamed", *(part for part in (group.model, group.worker, group.stage) if part)])


def _requests(group: HeldGroup) -> str:
    if not group.requests:
        return ""
    return f" · {', '.join(group.requests)}{', …' if group.count > len(group.requests) else ''}"


def _stack(stack: Sequence[str], style: Style, indent: str) -> list[str]:
    """The line that asked, and on a second line who called it, as far as there is room."""
    if not stack:
        return [f"{indent}(no call stack)"]
    room = style.width - len(indent)
    lines = [indent + _shortened(stack[0], room)]
    callers = ""
    for frame in stack[1:]:
        named = f" ← {_brief(frame)}"
        if len(callers) + len(named) > room:
            break
        callers += named
    return [*lines, indent + callers[1:]] if callers else lines


def _shortened(frame: str, room: int) -> str:
    """Without the first folders of its path where it is too long: the end says more."""
    while len(frame) > room and "/" in frame[2:]:
        frame = "…/" + frame[2:].partition("/")[2]
    return frame


def _brief(frame: str) -> str:
    """Without all folders, and without saying that a function is local."""
    where, between, function = frame.rpartition(" in ")
    return where.rpartition("/")[2] + between + function.replace(".<locals>", "")


def _totals(change: Totals) -> list[str]:
    rows = [
        ("requested", change.requested_bytes, "what holders asked for"),
        ("live", change.live_bytes, "blocks that somebody holds"),
        ("reserved", change.reserved_bytes, "taken from the system"),
        ("mapped", change.mapped_bytes, "files of others"),
        ("RSS", change.rss_bytes, "all pages in memory"),
    ]
    lines = [f"  {'':<10}{'change':>12}{'per 1,000 requests':>22}"]
    for name, nbytes, meaning in rows:
        lines.append(f"  {name:<10}{_signed(nbytes):>12}{_rate(change.per_1000(nbytes)):>22}  {meaning}")
    if change.num_slab_blocks:
        lines.append(f"  {'slabs':<10}{change.num_slab_blocks:>+12,}{'':>22}  KV blocks in use")
    return lines


def _groups_that_changed(changes: Sequence[Growth], style: Style) -> list[str]:
    if not changes:
        return ["No group of held memory changed."]
    grown = [change for change in changes if (change.nbytes, change.count) > (0, 0)]
    shrunk = [change for change in reversed(changes) if change not in grown]
    lines = []
    for title, group in (("Grew", grown), ("Shrank", shrunk)):
        if group:
            lines += [title, *_changes(group, style)]
    return lines


def _changes(changes: Sequence[Growth], style: Style) -> list[str]:
    lines = [f"{'bytes':>12}{'count':>7}{'per 1,000 requests':>20}{'now':>12}  owner"]
    for change in changes[:MAX_GROUPS]:
        group = change.group
        now = format_bytes(group.nbytes) if group.count else "gone"
        figures = f"{_signed(change.nbytes):>12}{change.count:>+7,}{_rate(change.bytes_per_1000):>20}{now:>12}"
        lines.append(f"{figures}  {_owner(group)}{_requests(group)}")
        lines += _stack(group.stack, style, " " * 21)
    if len(changes) > MAX_GROUPS:
        lines.append(f"  … and {len(changes) - MAX_GROUPS:,} groups that changed less")
    return lines


def _signed(nbytes: float) -> str:
    return f"{'+' if nbytes > 0 else ''}{format_bytes(nbytes)}"


def _rate(per_1000: float | None) -> str:
    return "–" if per_1000 is None else _signed(per_1000)
