"""What callers hand in by mistake: it is refused at once, in words, and nothing changes."""

import copy
import gc
import pickle

import numpy as np
import pytest

from aie_tensor import InvalidInputError, Ledger, MemoryPool, Owner, Tensor
from aie_tensor.memdebug import take_snapshot


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_would_own_the_block_a_second_time(copied) -> None:  # type: ignore[no-untyped-def]
    pool = MemoryPool(ledger=Ledger(enabled=True))
    block, adopted, slab = pool.allocate(100), pool.adopt(10, owner="file"), pool.slab(4, 10, owner="kv")
    tensor = Tensor.from_array(pool, np.arange(6, dtype=np.float32).reshape(2, 3))
    for thing in (block, adopted, slab, tensor, tensor[0], pool):
        with pytest.raises(InvalidInputError, match="cannot be copied or pickled"):
            copied(thing)
    gc.collect()
    stats = pool.stats()
    assert (stats.num_live, stats.num_dropped, stats.mapped_bytes) == (2, 0, 10)


@pytest.mark.parametrize("owner", [5, None, b"kv", ["kv"]])
def test_an_owner_that_no_report_could_print(owner: object) -> None:
    pool = MemoryPool(ledger=Ledger(enabled=True))
    slab = pool.slab(4, 10, owner="kv")
    for take in (
        lambda: pool.allocate(10, owner=owner),  # type: ignore[arg-type]
        lambda: pool.allocate_exact(10, owner=owner),  # type: ignore[arg-type]
        lambda: pool.adopt(10, owner=owner),  # type: ignore[arg-type]
        lambda: pool.slab(4, 10, owner=owner),  # type: ignore[arg-type]
        lambda: slab.occupy(owner, [0]),  # type: ignore[arg-type]
        lambda: Owner("kv", request_id=owner),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInputError):
            take()
    snapshot = take_snapshot([pool], pool.ledger, process="test")
    assert snapshot.groups == ()
    assert pool.stats().reserved_bytes == 0


@pytest.mark.parametrize("dtype", [object, np.dtype([("a", "i4"), ("b", "f4")]), "V4", "no such type"])
def test_elements_that_are_more_than_their_bytes_are_refused(dtype: object) -> None:
    """An object's element is a pointer, and these bytes are none."""
    with MemoryPool().allocate(100) as block, pytest.raises(InvalidInputError) as caught:
        block.array(dtype, 2)  # type: ignore[call-overload]
    assert caught.value.param == "dtype"


@pytest.mark.parametrize("shape", ["ab", None, (2.5,), (1 << 62, 0), (1 << 70, 0), (1,) * 70, (-1, -1), (-1, 0)])
def test_what_is_no_shape_is_refused_and_counts_no_view(shape: object) -> None:
    pool = MemoryPool()
    with pool.allocate(100) as block, pytest.raises(InvalidInputError):
        block.array(np.float32, shape)  # type: ignore[arg-type]
    assert pool.stats().num_live == 0


@pytest.mark.parametrize("blocks", [[1.0], ["1"], [True], [[1]], 5, None, "12", [1 << 70]])
def test_blocks_of_a_slab_are_whole_numbers(blocks: object) -> None:
    slab = MemoryPool().slab(4, 10, owner="kv")
    slab.occupy("a", [1])
    before = slab.state()
    for change in (lambda: slab.occupy("b", blocks), lambda: slab.vacate(blocks)):  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            change()
    assert slab.state() == before


@pytest.mark.parametrize("count", [0, -1, 1.0, True, "1", None])
def test_settings_of_a_ledger_are_whole_numbers(count: object) -> None:
    for setting in ("sample_every", "max_frames"):
        with pytest.raises(InvalidInputError) as caught:
            Ledger(True, **{setting: count})  # type: ignore[arg-type]
        assert caught.value.param == setting
    ledger = Ledger(True)
    if count != 0 or count is False:
        with pytest.raises(InvalidInputError):
            ledger.count_request(count)  # type: ignore[arg-type]
    assert ledger.num_requests == 0


@pytest.mark.parametrize("classes", [1.0, True, "2", None])
def test_classes_per_doubling_is_a_whole_number(classes: object) -> None:
    with pytest.raises(InvalidInputError):
        MemoryPool(classes_per_doubling=classes)  # type: ignore[arg-type]


def test_what_is_no_allocation_cannot_be_freed() -> None:
    with pytest.raises(InvalidInputError):
        MemoryPool().free("block")  # type: ignore[arg-type]
