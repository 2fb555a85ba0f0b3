"""Pools that are seen as they are made."""

import gc

import pytest

from aie_tensor import MemoryPool, watch_pools


def test_every_pool_made_inside_is_prepared() -> None:
    seen: list[str] = []

    def prepare(pool: MemoryPool) -> None:
        seen.append(pool.name)
        pool.ledger.enabled = True

    with watch_pools(prepare) as pools:
        kept = MemoryPool(name="kept")
        MemoryPool(name="dropped")
        gc.collect()
        assert list(pools) == [kept]
        with kept.allocate(10) as block:
            assert block.allocated_at[0].file == __file__
    MemoryPool(name="after")
    assert seen == ["kept", "dropped"]


def test_watching_ends_also_when_the_program_fails() -> None:
    with pytest.raises(ZeroDivisionError), watch_pools(lambda pool: None):
        raise ZeroDivisionError
    MemoryPool()  # nobody is told
