"""Zero and poison: what bytes hold when a block changes hands."""

import numpy as np
import pytest

from aie_tensor import Ledger, MemoryPool, SimulatedStream, WriteAfterFreeError

MIB = 1 << 20


def test_zero_gives_zeros_again_and_again() -> None:
    pool = MemoryPool(fill="zero")
    for nbytes in (1000, 1000, MIB, MIB):
        with pool.allocate(nbytes) as block:
            assert not block.array(np.uint8, nbytes).any()
            block.array(np.uint8, nbytes)[...] = 7


@pytest.mark.parametrize("nbytes", [1000, MIB])
def test_poison_shows_as_nan(nbytes: int) -> None:
    pool = MemoryPool(fill="poison")
    for _ in range(2):  # fresh, and reused
        with pool.allocate(nbytes) as block:
            assert np.isnan(block.array(np.float32, nbytes // 4)).all()
            assert np.isnan(block.array(np.float16, nbytes // 2)).all()
            block.array(np.uint8, nbytes)[...] = 0
    assert pool.stats().num_reuses


def test_a_write_after_free_is_found_at_the_next_hand_out_with_both_stacks() -> None:
    pool = MemoryPool(fill="poison", ledger=Ledger(enabled=True))

    def make_scratch():  # type: ignore[no-untyped-def]
        return pool.allocate(MIB, owner="scratch")

    block = make_scratch()
    stale = np.frombuffer(block._block.segment.host_bytes(), np.uint8)  # a raw pointer: the pool cannot see it
    block.release()
    stale[10:13] = 0
    before = pool.state()
    with pytest.raises(WriteAfterFreeError, match=r"3 of 1048576 bytes .* at byte 10 .*'scratch'") as caught:
        pool.allocate(MIB)
    assert caught.value.allocated_at[0].function.endswith("make_scratch")
    assert caught.value.freed_at[0].function == "test_a_write_after_free_is_found_at_the_next_hand_out_with_both_stacks"
    assert pool.state() == before
    assert np.isnan(pool.allocate(MIB).array(np.float32, 4)).all()  # found once, then clean again


def test_blocks_of_streams_are_filled_after_their_work() -> None:
    stream = SimulatedStream("compute")
    pool = MemoryPool(fill="poison")
    block = pool.allocate(MIB, stream=stream)
    stream.write(block, 1)
    stream.check(block, 1)
    block.release()
    assert pool.stats().pending_bytes == MIB
    stream.advance()  # no hazard: the poison came later
    with pool.allocate(MIB, stream=stream) as again:
        assert np.isnan(again.array(np.float32, 4)).all()
    assert pool.stats().num_reuses == 1
