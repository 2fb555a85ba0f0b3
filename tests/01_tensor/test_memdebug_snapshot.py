"""Snapshots: what they say of the held memory, saving and loading, growth between them."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from aie_tensor.errors import EnvironmentLacksError, InvalidInputError
from aie_tensor.memdebug import (
    HeldGroup,
    MemorySnapshot,
    diff,
    keeps_growing,
    load_snapshot,
    save_snapshot,
    snapshot_from_json,
    take_snapshot,
    totals,
)
from aie_tensor.memory.ledger import Ledger
from aie_tensor.memory.owner import Owner
from aie_tensor.memory.state import BlockState, ClassState, PoolState, PoolStats, SegmentState, SlabState
from aie_tensor.stacks import Frame

LINE = Frame("/srv/engine.py", 12, "Engine.step")
OTHER = Frame("/srv/cache.py", 7, "Cache.put")


@dataclass
class Entry:
    """What the ledger gives for one held thing."""

    owner: Owner
    nbytes: int
    age_s: float
    stack: tuple[Frame, ...]
    block_bytes: int = 1024


@dataclass
class FakeLedger:
    entries: list[Entry]
    enabled: bool = True
    sample_every: int = 1
    num_requests: int = 7
    num_lost: int = 0

    def outstanding(self) -> list[Entry]:
        return self.entries


class FakePool:
    device = "cpu"

    def state(self) -> PoolState:
        return pool_state()


def pool_state() -> PoolState:
    blocks = (
        BlockState(0, 1024, 1000, "live", "kv of request r-1", ""),
        BlockState(1024, 1024, 0, "free", "", ""),
        BlockState(2048, 1024, 0, "pending", "", "copy"),
    )
    return PoolState(
        name="host",
        device="cpu",
        capacity_bytes=1 << 20,
        stats=PoolStats(3072, 1024, 1000, 1024, 1024, 0, 2048, 3072, 1, 9, 6, 0),
        classes=(ClassState(1024, 1, 1, 1, 9, 6),),
        segments=(SegmentState(1 << 16, 3072, 1024, blocks),),
        slabs=(SlabState("kv", 4, 512, ((1, "kv of request r-1"),)),),
    )


def taken(*entries: Entry, num_requests: int = 7) -> MemorySnapshot:
    ledger = cast(Ledger, FakeLedger(list(entries)))
    return take_snapshot(
        [FakePool()], ledger, process="engine-0", num_requests=num_requests, rss_bytes=5000, clock=lambda: 1.7e9
    )


def kv(request: str, age_s: float = 0.5, nbytes: int = 1000) -> Entry:
    return Entry(Owner("kv", request, "gpt2", "engine-0", "aie_engine"), nbytes, age_s, (LINE,))


def test_what_is_held_is_grouped_by_line_and_kind_of_owner() -> None:
    snapshot = taken(kv("r-1"), kv("r-2", 70), kv("r-3"), kv("r-4"), Entry(Owner("logits"), 9000, 2, (OTHER, LINE)))
    logits, held = snapshot.groups
    assert (logits.what, logits.stack) == ("logits", (str(OTHER), str(LINE)))
    assert held == HeldGroup(
        "kv", "gpt2", "engine-0", "aie_engine", (str(LINE),), 4, 4000, 4096, 70, ("r-1", "r-2", "r-3")
    )
    assert snapshot.ages[:4] == (("< 1 s", 3, 3000), ("< 10 s", 1, 9000), ("< 1 min", 0, 0), ("< 10 min", 1, 1000))
    assert (snapshot.rss_bytes, snapshot.num_requests, snapshot.sample_every) == (5000, 7, 1)


def test_a_ledger_that_is_off_is_told_from_one_that_holds_nothing() -> None:
    off = take_snapshot([], cast(Ledger, FakeLedger([], enabled=False, sample_every=64)), process="script")
    assert (off.sample_every, off.groups, off.num_requests) == (0, (), 7)
    assert off.rss_bytes > 0


def test_a_file_name_that_is_no_utf8_can_be_saved(tmp_path: Path) -> None:
    snapshot = taken(Entry(Owner("x"), 1, 0, (Frame("/srv/\udcff.py", 1, "f"),)))
    save_snapshot(snapshot, tmp_path / "s.json")
    assert load_snapshot(tmp_path / "s.json") == snapshot


def test_json_and_back(tmp_path: Path) -> None:
    snapshot = replace(taken(kv("r-1")), device_bytes=(("cuda:0", 5),), num_lost=3)
    text = json.dumps(snapshot.to_json(), allow_nan=False)
    assert snapshot_from_json(json.loads(text)) == snapshot
    save_snapshot(snapshot, tmp_path / "s.json")
    assert load_snapshot(tmp_path / "s.json") == snapshot
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


def test_fields_of_later_programs_are_passed_over() -> None:
    snapshot = taken(kv("r-1"))
    assert snapshot_from_json({**snapshot.to_json(), "not yet thought of": 1}) == snapshot


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.json"
    save_snapshot(taken(kv("r-1")), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InvalidInputError, match=r"cut\.json.*cut off"):
        load_snapshot(path)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("version", 2, "version 2"),
        ("version", "1", "no JSON object with a version"),
        ("version", True, r"\$\.version"),
        ("pid", "12", r"\$\.pid"),
        ("rss_bytes", 1.5, r"\$\.rss_bytes"),
        ("pools", {}, r"\$\.pools"),
        ("groups", [{"what": "kv"}], r"\$\.groups\[0\]"),
        ("ages", [["< 1 s", 1]], r"\$\.ages\[0\]"),
        ("process", None, r"\$\.process"),
    ],
)
def test_wrong_content_is_refused_with_the_field(field: str, value: object, said: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^given .*{said}"):
        snapshot_from_json({**taken(kv("r-1")).to_json(), field: value}, name="given")


@pytest.mark.parametrize("text", ["[]", "null", "{}", "NaN", '"text"', "[" * 100_000, "\ufffd"])
def test_other_json_and_no_json_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=r"other\.json is not a memory snapshot"):
        load_snapshot(path)


def test_a_block_state_that_does_not_exist_is_refused() -> None:
    text = json.dumps(taken().to_json()).replace('"pending"', '"lost"', 1)
    with pytest.raises(InvalidInputError, match=r"\$\.pools\[0\]\.segments\[0\]\.blocks\[2\]\.state"):
        snapshot_from_json(json.loads(text))


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot read the snapshot"):
        load_snapshot(tmp_path / "none.json")
    with pytest.raises(InvalidInputError, match="cannot read the snapshot"):
        load_snapshot(tmp_path)
    with pytest.raises(EnvironmentLacksError, match="cannot write the snapshot"):
        save_snapshot(taken(), tmp_path / "no folder" / "s.json")


def test_growth_is_counted_per_thousand_requests() -> None:
    before = taken(kv("r-1"), Entry(Owner("weights"), 10**6, 5, (OTHER,)), num_requests=100)
    after = taken(kv("r-1"), kv("r-2"), kv("r-3"), Entry(Owner("weights"), 10**6, 9, (OTHER,)), num_requests=150)
    (growth,) = diff(before, after)
    assert (growth.group.what, growth.count, growth.nbytes, growth.block_bytes) == ("kv", 2, 2000, 2048)
    assert growth.bytes_per_1000 == 40_000


def test_what_is_gone_shows_as_shrinkage() -> None:
    (change,) = diff(taken(kv("r-1"), kv("r-2")), taken())
    assert (change.group.what, change.group.count, change.count, change.nbytes) == ("kv", 0, -2, -2000)
    assert change.bytes_per_1000 is None  # no request in between
    assert diff(taken(kv("r-1")), taken(kv("r-9", 33))) == []  # another request, the same line


def test_three_points_tell_a_leak_from_a_cache_that_filled() -> None:
    cache = [Entry(Owner("cache"), 100, 1, (OTHER,))]
    points = [
        taken(kv("r-1"), *cache, num_requests=100),
        taken(kv("r-1"), kv("r-2"), *(cache * 9), num_requests=200),
        taken(kv("r-1"), kv("r-2"), kv("r-3"), *(cache * 9), num_requests=300),
    ]
    (leak,) = keeps_growing(points)
    assert (leak.group.what, leak.count, leak.bytes_per_1000) == ("kv", 2, 10_000)
    assert {change.group.what for change in diff(points[0], points[2])} == {"kv", "cache"}
    assert keeps_growing([points[0], points[1], points[0]]) == []


def test_a_leak_that_starts_later_needs_its_own_three_points() -> None:
    points = [taken(), taken(), taken(kv("r-1")), taken(kv("r-1"), kv("r-2"))]
    assert keeps_growing(points) == []
    assert len(keeps_growing(points[1:])) == 1


@pytest.mark.parametrize("count", [0, 1, 2])
def test_two_points_are_no_trend(count: int) -> None:
    with pytest.raises(InvalidInputError, match="at least three"):
        keeps_growing([taken()] * count)


def test_totals_see_what_the_ledger_does_not() -> None:
    before = taken(num_requests=100)
    after = replace(before, num_requests=600, rss_bytes=6000, pools=(pool_state(), pool_state()))
    grown = totals(before, after)
    assert (grown.live_bytes, grown.reserved_bytes, grown.num_slab_blocks, grown.rss_bytes) == (1024, 3072, 1, 1000)
    assert grown.held_bytes == 0
    assert grown.per_1000(grown.live_bytes) == 2048
    assert totals(after, after).per_1000(5) is None
