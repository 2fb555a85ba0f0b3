"""A snapshot for PyTorch's memory viewer (https://pytorch.org/memory_viz), which shows our pools as it shows its own.

The structure is the one that `torch.cuda.memory._snapshot` documents: `segments` cut into `blocks`, and per device a
trace of what happened. The viewer's names for our states and events:

    live → active_allocated     pending → active_pending_free     free → inactive
    ALLOCATE → alloc            FREE → free_requested, and free_completed once no stream uses the block any more
    SEGMENT_RESERVE → segment_alloc                               SEGMENT_RETURN → segment_free

It has no place for an owner, so that is written as the first frame of the stack, "owner:0:kv of request r-1". Device
numbers count the pools' devices in order; the host is one of them.
"""

import pickle
from collections.abc import Sequence

from aie_tensor.memdebug.exports.frames import parse_frame
from aie_tensor.memdebug.exports.rewinding import Actions, Rewound, rewound
from aie_tensor.memdebug.recorded import RecordedEvent
from aie_tensor.memdebug.snapshot import MemorySnapshot
from aie_tensor.memory.events import EventKind
from aie_tensor.memory.state import BlockState, PoolState, SegmentState

__all__ = ["memory_viz"]

_STATES = {"live": "active_allocated", "pending": "active_pending_free", "free": "inactive"}
_SMALL = 1 << 20  # the viewer calls a segment small up to 1 MiB
_PROTOCOL = 4  # the newest that the viewer's own reader of pickles knows

Frames = list[dict[str, object]]


def memory_viz(snapshot: MemorySnapshot, events: Sequence[RecordedEvent] = ()) -> bytes:
    """A pickle of dictionaries, lists, text and numbers only. `events` are those before the snapshot, oldest first;
    those that do not lead to it (the sampled ledger left something out) are left out, since the viewer plays the trace
    backwards from the snapshot and would stumble."""
    devices = list(dict.fromkeys(pool.device for pool in snapshot.pools))
    streams = _Numbers("")
    stacks = _stacks_of_blocks(snapshot, events)
    segments = [
        _segment(segment, devices.index(pool.device), streams, stacks)
        for pool in snapshot.pools
        for segment in sorted(pool.segments, key=lambda segment: segment.address)
    ]
    traces = [_trace(rewound(events, _device_end(snapshot.pools, device)), streams) for device in devices]
    settings = {"expandable_segments": False, "max_split_size": -1, "garbage_collection_threshold": 0.0}
    document = {
        "segments": segments,
        "device_traces": traces or [[]],
        "allocator_settings": settings,
        "external_annotations": [],
    }
    return pickle.dumps(document, protocol=_PROTOCOL)


class _Numbers:
    """Names to numbers in order of appearance; the first name is 0."""

    def __init__(self, first: str) -> None:
        self._known = {first: 0}

    def of(self, name: str) -> int:
        return self._known.setdefault(name, len(self._known))


def _segment(
    segment: SegmentState, device: int, streams: _Numbers, stacks: dict[int, tuple[str, ...]]
) -> dict[str, object]:
    live = [block for block in segment.blocks if block.state == "live"]
    pending = [block for block in segment.blocks if block.state == "pending"]
    allocated = sum(block.nbytes for block in live)
    names = {block.stream for block in segment.blocks}
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.nbytes,
        "allocated_size": allocated,
        "active_size": allocated + sum(block.nbytes for block in pending),
        "requested_size": sum(block.requested_bytes for block in live),
        "stream": streams.of(names.pop() if len(names) == 1 else ""),  # blocks of one segment may differ
        "segment_type": "small" if segment.nbytes <= _SMALL else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [_block(segment.address, block, stacks) for block in segment.blocks],
    }


def _block(segment_address: int, block: BlockState, stacks: dict[int, tuple[str, ...]]) -> dict[str, object]:
    address = segment_address + block.offset
    in_use = block.state != "free"
    return {
        "address": address,
        "size": block.nbytes,
        "requested_size": block.requested_bytes or (block.nbytes if in_use else 0),
        "state": _STATES[block.state],
        "frames": _frames(block.owner, stacks.get(address, ())) if in_use else [],
    }


def _trace(actions: Actions, streams: _Numbers) -> list[dict[str, object]]:
    entries = []
    sizes: dict[int, int] = {}  # address of a block → what was asked for; the end of a wait does not say
    for action, event in actions:
        segment = action.startswith("segment")
        if not segment and action != "free_completed":
            sizes[event.address] = event.nbytes
        entry: dict[str, object] = {
            "action": action,
            "addr": event.address,
            "size": event.block_bytes if segment else event.nbytes or sizes.get(event.address, event.block_bytes),
            "stream": streams.of(event.stream),
            "time_us": round(event.at_s * 1e6),
            "frames": [] if segment else _frames(str(event.owner), event.stack),
        }
        entries.append(entry)
    return entries


def _frames(owner: str, stack: Sequence[str]) -> Frames:
    named = [parse_frame(text) for text in stack]
    frames: Frames = [{"filename": "owner", "line": 0, "name": owner}] if owner else []
    return frames + [{"filename": frame.file, "line": frame.line, "name": frame.function} for frame in named]


def _stacks_of_blocks(snapshot: MemorySnapshot, events: Sequence[RecordedEvent]) -> dict[int, tuple[str, ...]]:
    """Address → stack of the allocation that is there now: from the events, else from the only group of that owner."""
    by_owner: dict[str, tuple[str, ...] | None] = {}
    for group in snapshot.groups:
        by_owner[group.what] = None if group.what in by_owner else group.stack
    stacks: dict[int, tuple[str, ...]] = {}
    for pool in snapshot.pools:
        for segment in pool.segments:
            for block in segment.blocks:
                what = block.owner.split(" of request ")[0]
                if block.state == "live" and (stack := by_owner.get(what)):
                    stacks[segment.address + block.offset] = stack
    stacks.update({event.address: event.stack for event in events if event.kind is EventKind.ALLOCATE and event.stack})
    return stacks


def _device_end(pools: Sequence[PoolState], device: str) -> Rewound:
    """How a device stands at the end of the trace."""
    segments = [segment for pool in pools if pool.device == device for segment in pool.segments]
    blocks = {
        segment.address + block.offset: block.state == "pending"
        for segment in segments
        for block in segment.blocks
        if block.state != "free"
    }
    return Rewound({segment.address: segment.nbytes for segment in segments}, blocks)
