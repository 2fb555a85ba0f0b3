"""How a pool is cut, drawn: a line per size class with a map of its blocks, a line per slab, exact blocks by owner.

A cell stands for one block where there is room, else for a run of neighbours, and then its shade says how many of them
are in use. Blocks keep their order of addresses, so that holes show as holes.
"""

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from aie_tensor.memdebug.text import Style, format_bytes, format_percent
from aie_tensor.memory.state import BlockState, ClassState, PoolState, SegmentState, SlabState

__all__ = ["block_map", "cells"]

_MAX_CLASSES = 12
_MAX_HOLDERS = 4
_LEGEND = "█ in use  ▓ most  ░ some  ∙ free  ▒ pending"


def block_map(pool: PoolState, style: Style) -> list[str]:
    """The lines of one pool; none for a pool that holds nothing."""
    lines = [*_class_lines(pool, style), *_exact_lines(pool, style), *_slab_lines(pool.slabs, style)]
    return [f"  blocks by address: {_LEGEND}", *lines] if lines else []


def cells(states: Sequence[str], num_cells: int) -> str:
    """The map of blocks with these states ("live", "free", "pending"), at most `num_cells` characters."""
    if not states:
        return ""
    num_cells = min(num_cells, len(states))
    bounds = [len(states) * cell // num_cells for cell in range(num_cells + 1)]
    runs = [states[low:high] for low, high in itertools.pairwise(bounds)]
    return "".join(_shade(run.count("live"), run.count("pending"), len(run)) for run in runs)


def _shade(num_live: int, num_pending: int, num_blocks: int) -> str:
    if num_live:
        return "█" if num_live >= num_blocks else "▓" if 2 * num_live > num_blocks else "░"
    return "▒" if num_pending else "∙"


def _class_lines(pool: PoolState, style: Style) -> list[str]:
    blocks: dict[int, list[BlockState]] = {}
    for segment in sorted(pool.segments, key=lambda segment: segment.address):
        if segment.size_class is not None:
            blocks.setdefault(segment.size_class, []).extend(segment.blocks)
    used = [each for each in pool.classes if each.nbytes in blocks or each.num_allocations]
    if not used:
        return []
    narrow = style.width < 79  # no room for all columns: class times blocks is what is reserved
    width = style.width - (55 if narrow else 71)
    shown = sorted(used, key=lambda each: -each.nbytes * len(blocks.get(each.nbytes, ())))[:_MAX_CLASSES]
    reserved = "" if narrow else f"{'reserved':>12}"
    heads = f"{'live':>6}{'free':>7}{'pend.':>7}{reserved}{'requests':>11}{'hit rate':>9}"
    lines = [f"  {'class':>9}  {'map':{width}}  {heads}"]
    for each in sorted(shown, key=lambda each: each.nbytes):
        lines.append(_class_line(each, blocks.get(each.nbytes, []), width, narrow))
    if hidden := len(used) - len(shown):
        lines.append(f"             … and {hidden} classes with fewer bytes")
    return lines


def _class_line(each: ClassState, blocks: Sequence[BlockState], width: int, narrow: bool) -> str:
    drawn = cells([block.state for block in blocks], width)
    reserved = "" if narrow else f"{format_bytes(sum(block.nbytes for block in blocks)):>12}"
    counts = f"{each.num_live:>6,}{each.num_free:>7,}{each.num_pending:>7,}"
    served = f"{each.num_allocations:>11,}{format_percent(each.num_reuses, each.num_allocations):>9}"
    return f"  {format_bytes(each.nbytes):>9}  {drawn:{width}}  {counts}{reserved}{served}"


def _exact_lines(pool: PoolState, style: Style) -> list[str]:
    exact = [segment for segment in pool.segments if segment.size_class is None]
    if not exact:
        return []
    total = format_bytes(sum(segment.nbytes for segment in exact))
    lines = [f"  {'exact':>9}  {len(exact):,} blocks of their own, {total}"]
    return [*lines, f"  {'':>9}  {_by_owner(exact, style.width - 30)}"]


def _by_owner(segments: Iterable[SegmentState], room: int) -> str:
    held: Counter[str] = Counter()
    for segment in segments:
        for block in segment.blocks:
            held[block.owner or f"({block.state})"] += block.nbytes
    parts = [f"{owner} {format_bytes(nbytes)}" for owner, nbytes in held.most_common()]
    return _some(parts, room)


def _slab_lines(slabs: Sequence[SlabState], style: Style) -> list[str]:
    lines = []
    for slab in slabs:
        width = max(style.width - 71, 8)
        share = format_percent(len(slab.used), slab.num_blocks)
        lines.append(
            f"  {'slab':>9}  {_slab_cells(slab, width):{width}}  {len(slab.used):,} of {slab.num_blocks:,} blocks of "
            f"{format_bytes(slab.block_bytes)} in use ({share})"
        )
        held = Counter(holder for _, holder in slab.used).most_common()
        who = _some([f"{count:,} {holder}" for holder, count in held], style.width - 30)
        lines.append(f"  {'':>9}  {slab.owner or 'unnamed'}: {who or 'nobody holds a block'}")
    return lines


def _slab_cells(slab: SlabState, num_cells: int) -> str:
    """As `cells`, from the blocks in use alone: of a large cache most are not."""
    num_cells = max(min(num_cells, slab.num_blocks), 0)
    used = sorted(block for block, _ in slab.used)
    bounds = [slab.num_blocks * cell // num_cells for cell in range(num_cells + 1)] if num_cells else []
    return "".join(
        _shade(bisect_left(used, high) - bisect_left(used, low), 0, high - low)
        for low, high in itertools.pairwise(bounds)
    )


def _some(parts: Sequence[str], room: int) -> str:
    """As many of `parts` as fit, and how many more there are."""
    shown = 0
    length = 0
    for part in parts[:_MAX_HOLDERS]:
        length += len(part) + 3
        if shown and length > room:
            break
        shown += 1
    more = f" and {len(parts) - shown:,} more" if len(parts) > shown else ""
    return " · ".join(parts[:shown]) + more
