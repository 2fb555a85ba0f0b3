"""What counts as a leak, on snapshots made by hand."""

from dataclasses import replace

import pytest

from aie.memdebug.show import growth_json, print_verdict
from aie.memdebug.verdict import Marks, judge
from aie_tensor import PoolState, PoolStats, SlabState
from aie_tensor.memdebug import HeldGroup, MemorySnapshot

WEIGHTS = HeldGroup("weights", "m", "e", "s", ("build.py:1 in load",), 1, 1000, 1024, 9.0, ())
CACHE = HeldGroup("cache", "m", "e", "s", ("cache.py:7 in put",), 1, 64, 1024, 1.0, ())
KV = HeldGroup("kv", "m", "e", "s", ("continuous.py:9 in grow",), 1, 4096, 4096, 1.0, ("r-812",))


def taken(num_requests, *groups, rss=1 << 30):
    live = sum(group.nbytes for group in groups)
    stats = PoolStats(live, live, live, 0, 0, 0, live, live, len(groups), 1, 0, 0)
    pool = PoolState("host", "cpu", 1 << 34, stats, (), (), ())
    return MemorySnapshot(1, 0.0, "engine", 1, num_requests, 1, (pool,), groups, (), rss)


def times(group, count):
    return replace(group, count=count, nbytes=group.nbytes * count)


def marks(*snapshots):
    return Marks(*snapshots)


def test_what_is_held_for_life_is_no_leak():
    verdict = judge(marks(*(taken(n, WEIGHTS) for n in (0, 10, 20, 30))), limit_bytes=None)
    assert (verdict.leaks, verdict.grown, verdict.failed) == ((), (), False)
    assert verdict.change.live_bytes == 0
    assert verdict.rss_share == 0


def test_one_block_of_one_request_is_a_leak_when_no_request_is_open():
    for leaked_by in (1, 2, 3):  # in the warm-up, in the first half, in the second
        snapshots = [taken(10 * n, WEIGHTS, *((KV,) if n >= leaked_by else ())) for n in range(4)]
        (leak,) = judge(marks(*snapshots), limit_bytes=None).leaks
        assert (leak.group.requests, leak.count, leak.nbytes) == (("r-812",), 1, 4096)
        # On a live server another client's request may be open at that moment.
        assert judge(marks(*snapshots), limit_bytes=None, is_idle=False).leaks == ()


def test_what_grows_in_each_half_is_a_leak_and_what_grew_once_is_not():
    steady = marks(*(taken(10 * n, times(CACHE, n + 1)) for n in range(4)))
    verdict = judge(steady, limit_bytes=None)
    (leak,) = verdict.leaks
    assert (leak.count, leak.nbytes, leak.bytes_per_1000) == (2, 128, 6400)
    assert verdict.failed
    once = marks(taken(0), taken(10, CACHE), taken(20, times(CACHE, 5)), taken(30, times(CACHE, 5)))
    verdict = judge(once, limit_bytes=None)
    assert (verdict.leaks, verdict.failed) == ((), False)
    (grown,) = verdict.grown
    assert grown.nbytes == 4 * 64


def test_warm_up_counts_for_nothing():
    cold = marks(taken(0), taken(10, times(CACHE, 5)), taken(20, times(CACHE, 5)), taken(30, times(CACHE, 5)))
    assert judge(cold, limit_bytes=0).failed is False


def test_limit_is_for_pools_and_for_the_process():
    once = marks(taken(0), taken(10, CACHE), taken(20, times(CACHE, 5)), taken(30, times(CACHE, 5)))
    assert judge(once, limit_bytes=256).failed is False
    (reason,) = judge(once, limit_bytes=255).over_limit
    assert "live memory" in reason and "256 B" in reason
    rising = marks(*(taken(n, rss=(1 << 30) + (n << 20)) for n in range(4)))
    assert judge(rising, limit_bytes=2 << 20).failed is False
    (reason,) = judge(rising, limit_bytes=1 << 20).over_limit
    assert "RSS" in reason
    # Noise goes up and down again.
    noisy = marks(*(taken(n, rss=(1 << 30) + (m << 20)) for n, m in enumerate((0, 0, 9, 5))))
    assert judge(noisy, limit_bytes=1 << 20).failed is False


@pytest.mark.parametrize("growing", [False, True])
def test_the_verdict_names_line_owner_and_request(capsys, growing):
    snapshots = [taken(10 * n, WEIGHTS, *((KV,) if growing and n == 3 else ())) for n in range(4)]
    verdict = judge(marks(*snapshots), limit_bytes=1 if growing else None)
    print_verdict(marks(*snapshots), verdict, num_warm_up=10)
    out = capsys.readouterr().out
    if not growing:
        assert "No leak" in out and "exactly the same" in out and "1,000 B before, 1,000 B now" in out
        assert "LEAKED" not in out
        return
    assert "No leak" not in out
    leaked = out.partition("LEAKED")[2]
    assert all(word in leaked for word in ("continuous.py:9 in grow", "r-812", "kv", "4.0 KiB", "OVER THE LIMIT"))
    assert growth_json(verdict.leaks[0])["stack"] == ["continuous.py:9 in grow"]


def sampled(snapshot, live, *, used=0):
    """`snapshot` as a ledger saw it that looks at 1 in 64; the pool counts everything."""
    slab = SlabState("kv", 8, 4096, tuple((block, "r-1") for block in range(used)))
    pool = replace(snapshot.pools[0], stats=replace(snapshot.pools[0].stats, live_bytes=live), slabs=(slab,))
    return replace(snapshot, pools=(pool,), sample_every=64)


def test_what_a_sample_missed_is_a_leak_all_the_same(capsys):
    steady = marks(*(sampled(taken(n), 1000 + 512 * n) for n in range(4)))
    verdict = judge(steady, limit_bytes=None)
    assert (verdict.leaks, verdict.unnamed_bytes, verdict.failed) == ((), 1024, True)
    print_verdict(steady, verdict, num_warm_up=1)
    out = " ".join(capsys.readouterr().out.split())
    assert "LEAKED: 1.0 KiB" in out and "1 in 64" in out and "No leak" not in out
    assert judge(steady, limit_bytes=None, is_idle=False).failed is False
    once = marks(*(sampled(taken(n), live) for n, live in enumerate((0, 512, 512, 1024))))
    assert judge(once, limit_bytes=None).failed is False
    blocks = marks(*(sampled(taken(n), 0, used=n // 3 * 2) for n in range(4)))
    assert judge(blocks, limit_bytes=None).unnamed_bytes == 8192


def test_no_leak_is_not_everything_given_back(capsys):
    once = marks(taken(0), taken(10, CACHE), taken(20, times(CACHE, 5)), taken(30, times(CACHE, 5)))
    print_verdict(once, judge(once, limit_bytes=None), num_warm_up=10)
    out = capsys.readouterr().out
    assert "No leak: what is held more" in out and "everything" not in out
