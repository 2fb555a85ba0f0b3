"""Exports: valid in the documented terms of those who read them, whatever the trace lacks."""

import io
import itertools
import json
import pickle
import pickletools
import random
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aie_tensor.memdebug import (
    HeldGroup,
    LoggedEvent,
    MemorySnapshot,
    collapsed_stacks,
    logged,
    memory_viz,
    perfetto,
    take_snapshot,
)
from aie_tensor.memdebug.exports.frames import parse_frame
from aie_tensor.memory.events import EventKind
from aie_tensor.memory.ledger import Ledger
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.pool import MemoryPool
from aie_tensor.memory.ring import EventRing
from aie_tensor.memory.simulated import SimulatedStream
from aie_tensor.memory.state import BlockState, PoolState, PoolStats, SegmentState
from aie_tensor.memory.trimming import TrimPolicy
from aie_tensor.stacks import Frame

KV = Owner("kv", "r-1")
STACK = ("engine.py:12 in Engine.step", "main.py:3 in run")


def event(kind: EventKind, address: int = 0, nbytes: int = 0, at_s: float = 1.0, **changed: Any) -> LoggedEvent:
    made = LoggedEvent(
        kind, at_s, address, nbytes, nbytes and 1024, "", KV, STACK if kind is EventKind.ALLOCATE else ()
    )
    return made._replace(**changed)


def snapshot(*segments: SegmentState, groups: tuple[HeldGroup, ...] = (), device: str = "cpu") -> MemorySnapshot:
    pool = PoolState("host", device, 1 << 30, PoolStats(*[0] * 12), (), segments, ())
    return MemorySnapshot(1, 1.7e9, "engine-0", 1, 0, 1, (pool,), groups, (), 0)


def segment(*states: str, address: int = 1 << 20) -> SegmentState:
    blocks = [
        BlockState(n * 1024, 1024, 1000 if s == "live" else 0, s, "kv of request r-1" if s == "live" else "", "")  # type: ignore[arg-type]
        for n, s in enumerate(states)
    ]
    return SegmentState(address, 1024 * len(states), 1024, tuple(blocks))


def group(stack: tuple[str, ...] = STACK, what: str = "kv", nbytes: int = 1000) -> HeldGroup:
    return HeldGroup(what, "gpt2", "", "", stack, 1, nbytes, 1024, 1.0, ())


# ---- The memory viewer of PyTorch

STATES = {"active_allocated", "active_pending_free", "inactive"}
ACTIONS = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"}
# What the viewer's own reader of pickles understands; anything else and it says UNKNOWN OPCODE.
VIEWER_OPCODES = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE", "DICT",
    "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK",
    "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE",
    "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip


class NoClasses(pickle.Unpickler):
    """A reader that knows no class and no function."""

    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError(f"the pickle names {module}.{name}")


def viewed(data: bytes) -> dict[str, Any]:
    """The document, checked against the structure that `torch.cuda.memory._snapshot` documents, and played backwards
    as the viewer does."""
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= VIEWER_OPCODES
    document = NoClasses(io.BytesIO(data)).load()
    assert isinstance(document, dict)
    check_keys(document, segments=list, device_traces=list, allocator_settings=dict, external_annotations=list)
    for seg in document["segments"]:
        check_segment(seg)
    for trace in document["device_traces"]:
        for entry in trace:
            check_keys(entry, action=str, addr=int, size=int, stream=int, time_us=int, frames=list)
            assert entry["action"] in ACTIONS
            check_frames(entry["frames"])
    assert {seg["device"] for seg in document["segments"]} <= set(range(len(document["device_traces"])))
    for device in range(len(document["device_traces"])):
        play_backwards(document, device)
    return document


def check_keys(document: dict[str, Any], **types: type) -> None:
    assert {name: type(value) for name, value in document.items()} == types


def check_frames(frames: list[dict[str, Any]]) -> None:
    for frame in frames:
        check_keys(frame, filename=str, line=int, name=str)


def check_segment(seg: dict[str, Any]) -> None:
    check_keys(
        seg, device=int, address=int, total_size=int, allocated_size=int, active_size=int, requested_size=int,
        stream=int, segment_type=str, segment_pool_id=tuple, is_expandable=bool, frames=list, blocks=list,
    )  # fmt: skip
    assert seg["segment_type"] in {"small", "large"}
    address = seg["address"]
    size = dict.fromkeys(STATES, 0)
    for block in seg["blocks"]:
        check_keys(block, address=int, size=int, requested_size=int, state=str, frames=list)
        check_frames(block["frames"])
        assert block["address"] == address  # the viewer computes it so
        assert block["requested_size"] <= block["size"]
        address += block["size"]
        size[block["state"]] += block["size"]
    assert size.keys() == STATES
    assert sum(size.values()) == seg["total_size"]
    assert seg["allocated_size"] == size["active_allocated"]
    assert seg["active_size"] == size["active_allocated"] + size["active_pending_free"]


def play_backwards(document: dict[str, Any], device: int) -> None:
    """The viewer's reconstruction: it fails where an event contradicts what came later."""
    segments = {seg["address"]: seg["total_size"] for seg in document["segments"] if seg["device"] == device}
    blocks = {
        block["address"]: block["state"] == "active_pending_free"
        for seg in document["segments"]
        if seg["device"] == device
        for block in seg["blocks"]
        if block["state"] != "inactive"
    }
    for entry in reversed(document["device_traces"][device]):
        address = entry["addr"]
        match entry["action"]:
            case "free_completed":
                assert address not in blocks
                blocks[address] = True
            case "free_requested":
                assert blocks[address] is True
                blocks[address] = False
            case "alloc":
                assert blocks.pop(address) is False
            case "segment_free":
                assert address not in segments
                segments[address] = entry["size"]
            case "segment_alloc":
                assert segments.pop(address) == entry["size"]
        assert all(any(s <= block < s + size for s, size in segments.items()) for block in blocks)


def test_states_and_sizes() -> None:
    document = viewed(memory_viz(snapshot(segment("live", "free", "pending"))))
    (seg,) = document["segments"]
    assert [block["state"] for block in seg["blocks"]] == ["active_allocated", "inactive", "active_pending_free"]
    assert [block["requested_size"] for block in seg["blocks"]] == [1000, 0, 1024]
    assert (seg["total_size"], seg["allocated_size"], seg["active_size"]) == (3072, 1024, 2048)
    assert seg["blocks"][0]["frames"] == [{"filename": "owner", "line": 0, "name": "kv of request r-1"}]


def test_blocks_have_the_stack_that_is_known() -> None:
    named = [
        {"filename": "owner", "line": 0, "name": "kv of request r-1"},
        {"filename": "engine.py", "line": 12, "name": "Engine.step"},
        {"filename": "main.py", "line": 3, "name": "run"},
    ]
    by_group = viewed(memory_viz(snapshot(segment("live"), groups=(group(),))))
    assert by_group["segments"][0]["blocks"][0]["frames"] == named
    by_event = viewed(memory_viz(snapshot(segment("live")), [event(EventKind.ALLOCATE, 1 << 20, 1000)]))
    assert by_event["segments"][0]["blocks"][0]["frames"] == named
    two_lines = viewed(memory_viz(snapshot(segment("live"), groups=(group(), group(STACK[1:])))))
    assert len(two_lines["segments"][0]["blocks"][0]["frames"]) == 1


def test_a_trace_in_the_viewers_words() -> None:
    at = 1 << 20
    events = [
        event(EventKind.SEGMENT_RESERVE, at, 3072, block_bytes=3072),
        event(EventKind.ALLOCATE, at, 1000, at_s=1.5),
        event(EventKind.FREE, at, 1000, at_s=2.0),
        event(EventKind.ALLOCATE, at, 1000, at_s=2.5, stream="copy"),
        event(EventKind.FREE, at, 1000, at_s=3.0, stream="copy"),
        event(EventKind.REQUEST),
        event(EventKind.REUSABLE, at, 1000, at_s=4.0, stream="copy"),
        event(EventKind.ALLOCATE, at + 2048, 1000),
        event(EventKind.FREE, at + 2048, 1000),
    ]
    (trace,) = viewed(memory_viz(snapshot(segment("free", "free", "pending")), events))["device_traces"]
    assert [(entry["action"], entry["addr"] - at, entry["stream"]) for entry in trace] == [
        ("segment_alloc", 0, 0),
        ("alloc", 0, 0),
        ("free_requested", 0, 0),
        ("free_completed", 0, 0),
        ("alloc", 0, 1),
        ("free_requested", 0, 1),
        ("free_completed", 0, 1),
        ("alloc", 2048, 0),
        ("free_requested", 2048, 0),  # still pending
    ]
    assert trace[0]["size"] == 3072
    assert trace[1]["size"] == 1000
    assert [entry["time_us"] for entry in trace[1:3]] == [1_500_000, 2_000_000]


def test_a_segment_that_is_gone_comes_back_in_the_past() -> None:
    other = 1 << 30
    events = [
        event(EventKind.ALLOCATE, other, 1000),
        event(EventKind.FREE, other, 1000),
        event(EventKind.SEGMENT_RETURN, other, 2048, block_bytes=2048),
    ]
    (trace,) = viewed(memory_viz(snapshot(segment("free")), events))["device_traces"]
    assert [entry["action"] for entry in trace] == ["alloc", "free_requested", "free_completed", "segment_free"]


@pytest.mark.parametrize(
    "events",
    [
        [event(EventKind.FREE, 1 << 20, 1000)],  # the block is live
        [event(EventKind.ALLOCATE, (1 << 20) + 1024, 1000)],  # the block is free
        [event(EventKind.ALLOCATE, 1 << 40, 1000)],  # in no segment
        [event(EventKind.ALLOCATE, 1 << 62, 1000)],  # a slab's
        [event(EventKind.SEGMENT_RESERVE, 1 << 20, 3072, block_bytes=3072)],  # its block is older than the trace
        [event(EventKind.SEGMENT_RESERVE, 1 << 21, 3072, block_bytes=3072)],  # not there
        [event(EventKind.SEGMENT_RETURN, (1 << 20) + 1024, 3072, block_bytes=3072)],  # overlaps
        [event(EventKind.SEGMENT_RETURN, (1 << 20) - 1024, 3072, block_bytes=3072)],
        [event(EventKind.REUSABLE, 1 << 20, 1000)],
    ],
)
def test_events_that_do_not_lead_to_the_snapshot_are_left_out(events: list[LoggedEvent]) -> None:
    (trace,) = viewed(memory_viz(snapshot(segment("live", "free", "free")), events))["device_traces"]
    assert trace == []


def test_a_block_outside_of_its_segment_is_no_reason_to_fail() -> None:
    """A file may say so; the pool never does."""
    astray = replace(segment("live"), blocks=(BlockState(-64, 1024, 1000, "live", "", ""),))
    assert memory_viz(snapshot(astray), [event(EventKind.ALLOCATE, (1 << 20) - 64, 1000)])


def test_each_device_has_its_trace() -> None:
    both = snapshot(segment("live"))
    cuda = replace(both.pools[0], device="cuda:0", segments=(segment("free", address=1 << 40),))
    events = [
        event(EventKind.ALLOCATE, 1 << 40, 9),
        event(EventKind.FREE, 1 << 40, 9),
        event(EventKind.ALLOCATE, 1 << 20, 9),
    ]
    document = viewed(memory_viz(replace(both, pools=(*both.pools, cuda)), events))
    assert [seg["device"] for seg in document["segments"]] == [0, 1]
    assert [len(trace) for trace in document["device_traces"]] == [1, 3]
    assert viewed(memory_viz(replace(both, pools=())))["device_traces"] == [[]]


@pytest.mark.parametrize("sample_every", [1, 3])
@pytest.mark.parametrize("begin", [0, 57])
def test_the_trace_of_a_real_pool(sample_every: int, begin: int) -> None:
    """Whole, sampled, and without its beginning."""
    ledger = Ledger(True, sample_every=sample_every)
    events: list[LoggedEvent] = []
    ledger.sinks.append(lambda each: events.append(logged(each)))
    pool = MemoryPool(ledger=ledger, segment_bytes=1 << 16)
    draw = random.Random(0)
    held = []
    slab = pool.slab(8, 1024, owner="kv")
    for step in range(300):
        held.append(pool.allocate(draw.randint(1, 20_000), owner=Owner("scratch", f"r-{step}")))
        if len(held) > 10:
            held.pop(draw.randrange(len(held))).release()
        if step % 50 == 7:
            slab.occupy("kv", [step // 50])
        if step % 100 == 99:
            pool.trim()
    document = viewed(memory_viz(take_snapshot([pool], ledger, process="test"), events[begin:]))
    actions = [entry["action"] for entry in document["device_traces"][0]]
    assert actions.count("alloc") > 50
    if sample_every == 1 and not begin:
        assert actions.count("alloc") == 300
        assert actions.count("free_requested") == actions.count("free_completed") == 290
        live = [
            block for seg in document["segments"] for block in seg["blocks"] if block["state"] == "active_allocated"
        ]
        assert len(live) == 10
        assert all(len(block["frames"]) > 1 for block in live)


def test_the_trace_of_a_pool_with_streams() -> None:
    """Blocks that another stream still uses are pending: requested at one time, completed at a later one."""
    ledger = Ledger(True)
    events: list[LoggedEvent] = []
    ledger.sinks.append(lambda each: events.append(logged(each)))
    pool = MemoryPool(ledger=ledger, segment_bytes=1 << 16)
    compute, copy = SimulatedStream("compute"), SimulatedStream("copy")
    draw = random.Random(0)
    for step in range(200):
        with pool.allocate(draw.randint(1, 5000), owner="scratch", stream=compute) as block:
            copy.write(block, 1)
            block.used_on(copy)
        if step % 3 == 0:
            copy.advance(draw.randint(0, 4))
    data = memory_viz(take_snapshot([pool], ledger, process="test"), events)
    document = viewed(data)
    trace = document["device_traces"][0]
    num_waited = sum(
        before["action"] == "free_requested" and (after["action"], after["addr"]) != ("free_completed", before["addr"])
        for before, after in itertools.pairwise(trace)
    )
    assert num_waited > 100
    assert {block["state"] for seg in document["segments"] for block in seg["blocks"]} == STATES - {"active_allocated"}
    assert min(entry["size"] for entry in trace) > 0
    assert {entry["stream"] for entry in trace} == {0, 1}
    copy.advance()


@pytest.mark.parametrize("seed", range(5))
def test_a_trace_with_holes(seed: int) -> None:
    """A third of the events lost, whichever."""
    ledger = Ledger(True)
    events: list[LoggedEvent] = []
    ledger.sinks.append(lambda each: events.append(logged(each)))
    pool = MemoryPool(ledger=ledger, segment_bytes=1 << 16, trim=TrimPolicy(max_cached_bytes=1 << 16))
    draw = random.Random(seed)
    held = []
    for _ in range(200):
        held.append(pool.allocate(draw.randint(1, 20_000), owner="scratch"))
        if draw.random() < 0.6:
            held.pop(draw.randrange(len(held))).release()
    events = [each for each in events if draw.random() < 0.67]
    viewed(memory_viz(take_snapshot([pool], ledger, process="test"), events))


def test_the_ring_is_read_as_the_log_is(tmp_path: Path) -> None:
    ledger = Ledger(True)
    with closing(EventRing.create(tmp_path / "ring")) as ring:
        ledger.sinks.append(ring.append)
        pool = MemoryPool(ledger=ledger)
        block = pool.allocate(1000, owner="kv")
        events = EventRing.read(tmp_path / "ring").events
    document = viewed(memory_viz(take_snapshot([pool], ledger, process="test"), events))
    assert [entry["action"] for entry in document["device_traces"][0]] == ["segment_alloc", "alloc"]
    assert len(perfetto(events)["traceEvents"]) > 3  # type: ignore[arg-type]
    block.release()


# ---- Flame graphs


def test_collapsed_stacks_are_outermost_first() -> None:
    text = collapsed_stacks(snapshot(groups=(group(), group(nbytes=24), group((), "weights", 9), group(nbytes=0))))
    assert text == "[weights gpt2] 9\nrun (main.py:3);Engine.step (engine.py:12);[kv gpt2] 1024\n"


def test_nothing_in_a_frame_breaks_the_format() -> None:
    nasty = group(("/a;b\nc/x;y.py:3 in f;g\x1b", "no frame at all; 17"), "k;v\n")
    (line,) = collapsed_stacks(snapshot(groups=(nasty,))).splitlines()
    assert re.fullmatch(r"[^;\n]+(;[^;\n]+)* \d+", line)
    assert line.count(";") == 2
    assert line.isprintable()


def test_no_groups_give_no_lines() -> None:
    assert collapsed_stacks(snapshot()) == ""


@pytest.mark.parametrize(
    "frame", [Frame("/a b/c in d:7 in e.py", 12, "f.<locals>.g"), Frame("<string>", 1, "<module>")]
)
def test_frames_are_taken_apart_as_they_were_put_together(frame: Frame) -> None:
    assert parse_frame(str(frame)) == frame


# ---- Perfetto


def test_counters_and_requests_over_time() -> None:
    events = [
        event(EventKind.SEGMENT_RESERVE, 4096, 8192, 10.0, block_bytes=8192),
        event(EventKind.ALLOCATE, 4096, 1000, 10.5),
        event(EventKind.ALLOCATE, 1 << 62, 512, 10.5, block_bytes=512),
        event(EventKind.FREE, 4096, 1000, 11.0),
        event(EventKind.FREE, 1 << 62, 512, 11.0),
        event(EventKind.REQUEST, at_s=11.5),
        event(EventKind.SEGMENT_RETURN, 4096, 8192, 12.0),
        event(EventKind.FREE, 64, 1000, 12.0),  # held before the log began
        event(EventKind.SEGMENT_RETURN, 64, 1000, 12.0),
    ]
    trace: Any = json.loads(json.dumps(perfetto(events, process="engine-0", pid=7), allow_nan=False))
    entries = trace["traceEvents"]
    assert entries[0] == {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "engine-0"}}
    assert {entry["ph"] for entry in entries} == {"M", "C", "i"}
    tracks: dict[str, list[tuple[float, int]]] = {}
    for entry in entries:
        if entry["ph"] == "C":
            tracks.setdefault(entry["name"], []).append((entry["ts"], entry["args"]["bytes"]))
    assert tracks == {
        "reserved": [(0, 8192), (2e6, 0)],
        "live": [(0, 0), (5e5, 1024), (1e6, 0)],
        "requested": [(0, 0), (5e5, 1000), (1e6, 0)],
        "slab blocks in use": [(0, 0), (5e5, 512), (1e6, 0)],
    }
    (instant,) = [entry for entry in entries if entry["ph"] == "i"]
    assert (instant["name"], instant["ts"], instant["s"]) == ("request ended", 1.5e6, "p")


def test_an_end_that_was_lost_is_not_counted_twice() -> None:
    events = [event(EventKind.ALLOCATE, 64, 1000), event(EventKind.ALLOCATE, 64, 500), event(EventKind.FREE, 64, 500)]
    trace: Any = perfetto(events)
    assert [e["args"]["bytes"] for e in trace["traceEvents"] if e["name"] == "requested"] == [1000, 500, 0]


def test_no_events() -> None:
    assert len(perfetto([])["traceEvents"]) == 1  # type: ignore[arg-type]
