"""The screen: every number that it promises, drawn so that it fits, is honest and harms no terminal."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_tensor.errors import InvalidInputError
from aie_tensor.memdebug import (
    HeldGroup,
    MemorySnapshot,
    collapsed_stacks,
    keeps_growing,
    memory_viz,
    render,
    render_diff,
    render_growth,
    snapshot_from_json,
)
from aie_tensor.memdebug.blockmap import cells
from aie_tensor.memdebug.text import Style, format_bytes, format_percent, format_seconds
from aie_tensor.memory.state import BlockState, ClassState, PoolState, PoolStats, SegmentState, SlabState

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def engine_pool(**stats: int) -> PoolState:
    """Weights in exact blocks, a KV slab, activations in two classes."""
    weights = tuple(
        SegmentState((1 + n) << 32, 10 * MIB, None, (BlockState(0, 10 * MIB, 10 * MIB, "live", "weights", ""),))
        for n in range(6)
    )
    states = ["live", "free", "pending", "free"]
    small = SegmentState(
        1 << 30,
        4 * KIB,
        KIB,
        tuple(BlockState(n * KIB, KIB, 600 if s == "live" else 0, s, "", "") for n, s in enumerate(states)),  # type: ignore[arg-type]
    )
    large = SegmentState(1 << 31, 4 * MIB, 4 * MIB, (BlockState(0, 4 * MIB, 0, "free", "", ""),))
    figures = {
        "reserved_bytes": 64 * MIB + 4 * KIB,
        "live_bytes": 60 * MIB + KIB,
        "requested_bytes": 60 * MIB + 600,
        "cached_bytes": 4 * MIB + 2 * KIB,
        "pending_bytes": KIB,
        "mapped_bytes": 500 * MIB,
        "peak_live_bytes": 63 * MIB,
        "peak_reserved_bytes": 70 * MIB,
        "num_live": 7,
        "num_allocations": 4000,
        "num_reuses": 3900,
        "num_dropped": 0,
    }
    return PoolState(
        "host",
        "cpu",
        100 * MIB,
        PoolStats(**{**figures, **stats}),
        (ClassState(KIB, 1, 2, 1, 3000, 2997), ClassState(4 * MIB, 0, 1, 0, 1000, 903)),
        (*weights, small, large),
        (SlabState("kv", 64, 512 * KIB, tuple((n, f"kv of request r-{n // 3}") for n in range(20))),),
    )


def group(what: str = "kv", **changed: object) -> HeldGroup:
    made = HeldGroup(
        what, "gpt2@1", "engine-0", "aie_engine", ("engine.py:12 in step", "main.py:3 in run"), 4, 4000, 4096, 41.2,
        ("r-1", "r-2", "r-3"),
    )  # fmt: skip
    return replace(made, **changed)  # type: ignore[arg-type]


def snapshot(**changed: object) -> MemorySnapshot:
    made = MemorySnapshot(
        version=1,
        taken_at=1.7e9,
        process="engine-0",
        pid=42,
        num_requests=1204,
        sample_every=1,
        pools=(engine_pool(),),
        groups=(group("weights", requests=(), nbytes=60 * MIB), group()),
        ages=(("< 1 s", 4, 4000), ("< 10 s", 0, 0), (">= 1 h", 6, 60 * MIB)),
        rss_bytes=300 * MIB,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def line(text: str, start: str) -> str:
    """The line that starts so, without its runs of spaces."""
    (found,) = [each for each in text.splitlines() if each.strip().startswith(start)]
    return " ".join(found.split())


def test_each_bar_is_a_part_of_the_one_above() -> None:
    text = render(snapshot())
    sizes = [line(text, name) for name in ("capacity", "reserved", "live", "requested")]
    assert "100.0 MiB 100.0 % the most it may take" in sizes[0]
    assert "64.0 MiB 64.0 % taken from the system" in sizes[1]
    assert "60.0 MiB 60.0 % blocks that somebody holds" in sizes[2]
    lengths = [each.count("█") for each in sizes]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 28
    assert lengths[1] == round(28 * 0.64 - 0.5)


def test_the_causes_of_loss_are_separate_numbers() -> None:
    text = render(snapshot())
    assert line(text, "internal waste").startswith("internal waste 424 B 0.0 % of live rounding")
    assert line(text, "cached, idle").startswith("cached, idle 4.0 MiB 6.3 % of reserved")
    assert line(text, "pending").startswith("pending 1.0 KiB")
    # 4 MiB of 4 MiB + 2 KiB that are free are in one piece
    assert line(text, "external frag.").startswith("external frag. 0.0 % in 3 pieces 1 − largest free / all free")
    assert line(text, "mapped").startswith("mapped 500.0 MiB beside reserved")


def test_nothing_free_is_no_fragmentation_of_zero_percent() -> None:
    pool = replace(engine_pool(), segments=engine_pool().segments[:6])
    assert line(render(snapshot(pools=(pool,))), "external frag.").startswith("external frag. – nothing is free")


def test_an_idle_segment_is_one_piece_whatever_it_was_cut_into() -> None:
    idle = SegmentState(1 << 33, 4 * KIB, KIB, tuple(BlockState(n * KIB, KIB, 0, "free", "", "") for n in range(4)))
    pinned = engine_pool().segments[6]  # two free blocks beside a live one
    pool = replace(engine_pool(), segments=(idle, pinned))
    assert line(render(snapshot(pools=(pool,))), "external frag.").startswith("external frag. 33.3 % in 3 pieces")


def test_a_machine_far_larger_than_the_pool_does_not_hide_it() -> None:
    text = render(snapshot(pools=(replace(engine_pool(), capacity_bytes=128 * GIB),)))
    assert "bar not to scale" in line(text, "capacity")
    assert line(text, "reserved").count("█") == 28


def test_outside_is_what_rss_has_beyond_the_pools() -> None:
    text = render(snapshot())
    assert "cpu: RSS 300.0 MiB − reserved 64.0 MiB = 236.0 MiB: interpreter" in text
    assert "500.0 MiB of mapped files" in " ".join(text.split())


def test_pages_never_written_are_no_negative_amount() -> None:
    text = " ".join(render(snapshot(rss_bytes=40 * MIB)).split())
    assert "< 0: at least 24.0 MiB of what is reserved was never written" in text
    assert "= -" not in text


def test_a_device_is_reconciled_with_the_driver() -> None:
    cuda = replace(engine_pool(), name="gpu", device="cuda:0")
    text = render(snapshot(pools=(engine_pool(), cuda), device_bytes=(("cuda:0", 164 * MIB),)))
    assert "cuda:0: process 164.0 MiB − reserved 64.0 MiB = 100.0 MiB: the driver's context" in text
    assert "cuda:0: unknown" in render(snapshot(pools=(cuda,)))


def test_blocks_are_drawn_where_they_lie() -> None:
    text = render(snapshot())
    assert line(text, "1.0 KiB  █∙▒∙").split()[3:] == ["1", "2", "1", "4.0", "KiB", "3,000", "99.9", "%"]
    assert line(text, "4.0 MiB  ∙").split()[-2:] == ["90.3", "%"]
    assert line(text, "exact") == "exact 6 blocks of their own, 60.0 MiB"
    assert line(text, "weights 60") == "weights 60.0 MiB"
    assert "20 of 64 blocks of 512.0 KiB in use (31.2 %)" in text
    assert "kv: 3 kv of request r-0 · 3 kv of request r-1" in text


@pytest.mark.parametrize(
    ("states", "num_cells", "drawn"),
    [
        ("", 5, ""),
        ("LFP", 5, "█∙▒"),
        ("LLLL", 2, "██"),
        ("LLLFFFPP", 2, "▓▒"),
        ("LFFF", 1, "░"),
        ("LF", 1, "░"),
        ("FP", 1, "▒"),
        ("L" * 1000 + "F" * 1000, 10, "█████∙∙∙∙∙"),
        ("FFFFFFF", 3, "∙∙∙"),
    ],
)
def test_cells(states: str, num_cells: int, drawn: str) -> None:
    names = {"L": "live", "F": "free", "P": "pending"}
    assert cells([names[letter] for letter in states], num_cells) == drawn


def test_groups_name_line_owner_age_and_requests() -> None:
    text = render(snapshot())
    assert "3.9 KiB in 4    kv · gpt2@1 · engine-0 · aie_engine · oldest 41 s · r-1, r-2, r-3, …" in text
    assert "engine.py:12 in step\n" in text
    assert "← main.py:3 in run\n" in text
    assert "held ≥ 1 h" in text
    assert "held < 10 s" not in text  # nothing is


def test_what_the_ledger_did_not_see_is_said() -> None:
    assert "ledger is off" in render(snapshot(sample_every=0, groups=(), ages=()))
    sampled = render(snapshot(sample_every=64, num_lost=315))
    assert "1 in 64" in sampled
    assert "315 more are held that the ledger left out" in sampled
    assert "2 handles were collected" in render(snapshot(pools=(engine_pool(num_dropped=2),)))


def test_more_than_a_screen_is_counted_not_shown() -> None:
    text = render(snapshot(groups=tuple(group(f"group {n}") for n in range(20))))
    assert "… and 12 smaller groups" in text
    classes = tuple(ClassState(KIB << n, 0, 0, 0, 1, 0) for n in range(20))
    assert "… and 8 classes with fewer bytes" in render(snapshot(pools=(replace(engine_pool(), classes=classes),)))
    assert len(text.splitlines()) <= 60


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("unicode", [True, False])
def test_every_line_fits(width: int, unicode: bool) -> None:
    long = group("x" * 200, stack=(f"/{'folder/' * 30}file.py:1 in f", "g" * 300))
    before = snapshot(groups=(long,))
    for text in (
        render(before, width, unicode),
        render_diff(before, snapshot(num_requests=2000), width, unicode),
        render_growth([], width, unicode),
    ):
        assert max(map(len, text.splitlines())) <= width
        assert unicode or text.isascii()
        assert text.endswith("\n") and not text.endswith("\n\n")


def test_at_eighty_columns_nothing_of_the_glossary_is_cut() -> None:
    lines = render(snapshot(), 80, unicode=False).splitlines()[:18]
    assert not [each for each in lines if each.endswith("~")]


def test_at_sixty_columns_every_class_keeps_its_hit_rate() -> None:
    text = render(snapshot(), 60)
    assert "hit rate" in text
    assert line(text, "1.0 KiB").endswith("%") and line(text, "4.0 MiB").endswith("%")
    assert "bar not to scal" in render(snapshot(pools=(replace(engine_pool(), capacity_bytes=100 * GIB),)), 60)


def test_names_of_callers_cannot_command_a_terminal() -> None:
    text = render(snapshot(groups=(group("\x1b[2Jkv\n\r", requests=("\u202er-1", "\udcff")),)))
    assert "\x1b" not in text and "\u202e" not in text and "\r" not in text
    text.encode()


def test_an_empty_process() -> None:
    empty = PoolState("host", "cpu", 0, PoolStats(*[0] * 12), (), (), ())
    text = render(snapshot(pools=(empty,), groups=(), ages=(), num_requests=0))
    assert "blocks by address" not in text
    assert "Who holds it: nobody" in text
    assert render(snapshot(pools=()))


def test_a_diff_shows_growth_with_its_rate() -> None:
    after = snapshot(num_requests=1304, groups=(group(count=9, nbytes=4000 + 1000 * KIB),), rss_bytes=310 * MIB)
    text = render_diff(snapshot(), after)
    assert "100 requests ended" in text
    assert line(text, "RSS").startswith("RSS +10.0 MiB +100.0 MiB")
    assert (
        line(text, "+1000.0 KiB")
        == "+1000.0 KiB +5 +9.8 MiB 1003.9 KiB kv · gpt2@1 · engine-0 · aie_engine · r-1, r-2…"
    )
    assert line(text, "-60.0 MiB").startswith("-60.0 MiB -4 -600.0 MiB gone weights")
    assert text.index("Grew") < text.index("Shrank")


def test_a_diff_of_two_processes_says_so() -> None:
    assert "two processes" in render_diff(snapshot(), snapshot(pid=43))
    assert "two processes" in render_diff(snapshot(), snapshot(num_requests=3))
    other = snapshot(pid=43, num_requests=1304, groups=(group(count=9, nbytes=4000 + 1000 * KIB),), rss_bytes=310 * MIB)
    text = render_diff(snapshot(), other)
    assert line(text, "RSS").startswith("RSS +10.0 MiB –"), "growth has a rate; a difference has none"
    assert line(text, "+1000.0 KiB").startswith("+1000.0 KiB +5 – ")
    assert "No group of held memory changed." in render_diff(snapshot(), snapshot())


def test_a_diff_of_samples_says_so() -> None:
    assert "1 in 64" in render_diff(snapshot(), snapshot(sample_every=64))


def test_an_enormous_slab_is_drawn_at_once() -> None:
    slab = SlabState("kv", 10**15, 1, ((5, "a"), (10**15 - 1, "b")))
    text = render(snapshot(pools=(replace(engine_pool(), slabs=(slab,)),)))
    drawn = line(text, "slab").split()[1]
    assert drawn[0] == drawn[-1] == "░" and set(drawn[1:-1]) == {"∙"}
    assert "0 of 0 blocks" in render(snapshot(pools=(replace(engine_pool(), slabs=(SlabState("", 0, 0, ()),)),)))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_whatever_a_file_says_it_is_refused_or_drawn(data: st.DataObject) -> None:
    """One value of a good snapshot replaced by anything."""
    document = snapshot(device_bytes=(("cuda:0", 1),)).to_json()
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        children = list(node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ())
        places.extend((node, key) for key, _ in children)
        for _, child in children:
            collect(child)

    collect(document)
    node, key = data.draw(st.sampled_from(range(len(places))).map(places.__getitem__))
    node[key] = data.draw(st.sampled_from([None, -1, 0, 1, 2**63, 10**30, -1.5, 1e300, "", "\n", "free", [], {}, True]))
    try:
        loaded = snapshot_from_json(document)
    except InvalidInputError:
        return
    render(loaded, 80)
    render_diff(snapshot(), loaded, 80)
    collapsed_stacks(loaded)
    memory_viz(loaded)


def test_what_keeps_growing() -> None:
    points = [snapshot(num_requests=100 * n, groups=(group(count=n, nbytes=1000 * n),)) for n in (1, 2, 3)]
    text = render_growth(keeps_growing(points))
    assert text.startswith("Keeps growing\n")
    assert line(text, "+2.0 KiB").startswith("+2.0 KiB +2 +9.8 KiB 2.9 KiB kv")
    assert render_growth([]) == "Nothing keeps growing.\n"


def test_numbers_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 1536, -2048, 1048575, 5 * GIB, 3000 * GIB)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "-2.0 KiB", "1.0 MiB", "5.0 GiB", "2.9 TiB",
    ]  # fmt: skip
    assert (format_percent(1, 3), format_percent(1, 0)) == ("33.3 %", "–")
    assert [format_seconds(s) for s in (0, 9.96, 41.2, 720, 12600, 260000)] == [
        "0.0 s", "10 s", "41 s", "12 min", "3.5 h", "3.0 d",
    ]  # fmt: skip


def test_a_bar_shows_what_is_little_and_never_more_than_all() -> None:
    assert Style().bar(0.0001, 4) == "▏   "
    assert Style().bar(7, 4) == "████"
    assert Style().bar(0, 4) == "    "
    assert Style(unicode=False).bar(0.0001, 4) == "#..."
