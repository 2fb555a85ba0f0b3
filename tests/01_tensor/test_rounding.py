"""Rounding waste: the shapes are those of the published checkpoints, and the arithmetic is what a pencil gives."""

import mmap

import pytest

from aie_tensor import MemoryPool
from aie_tensor.memory.rounding import (
    GPT2,
    LLAMA_3_2_1B,
    MODELS,
    QWEN2_5_0_5B,
    SMOLLM2_135M,
    Waste,
    WeightShapes,
    waste,
)

KIB, PAGE = 1024, mmap.PAGESIZE


@pytest.mark.parametrize(
    ("model", "parameters", "tensors"),
    [  # as the model cards and the checkpoints' headers have them
        (GPT2, 124_439_808, 148),
        (QWEN2_5_0_5B, 494_032_768, 290),
        (LLAMA_3_2_1B, 1_235_814_400, 146),
        (SMOLLM2_135M, 134_515_008, 272),
    ],
    ids=lambda value: value.name if isinstance(value, WeightShapes) else "",
)
def test_the_shapes_add_up_to_the_published_checkpoints(model: WeightShapes, parameters: int, tensors: int) -> None:
    assert sum(model.nbytes()) == parameters * 2
    assert len(model.nbytes()) == tensors


@pytest.mark.parametrize(
    ("classes_per_doubling", "rounded"),
    [  # 1,000 B is below the smallest class; 5 KiB lies between 4 and 8 KiB, 9 KiB between 8 and 16
        (1, (1 + 8 + 16) * KIB),
        (2, (1 + 6 + 12) * KIB),
        (4, (1 + 5 + 10) * KIB),
        (8, (1 + 5 + 9) * KIB),
        (None, sum(-(-size // PAGE) * PAGE for size in (1000, 5 * KIB, 9 * KIB))),
    ],
)
def test_a_small_case_by_hand(classes_per_doubling: int | None, rounded: int) -> None:
    sizes = [1000, 5 * KIB, 9 * KIB]
    assert waste(sizes, classes_per_doubling) == Waste(1000 + 14 * KIB, rounded)


def test_the_share_is_of_what_is_reserved() -> None:
    assert Waste(exact_bytes=3, rounded_bytes=4).share == 0.25
    assert Waste(exact_bytes=0, rounded_bytes=0).share == 0


def test_one_matrix_by_hand() -> None:
    """The gate of Qwen2.5-0.5B: 896 × 4864 × 2 bytes in a block of 16 MiB."""
    gate = 896 * 4864 * 2
    assert waste([gate], 1).rounded_bytes == 16 << 20
    assert waste([gate], 1).share == pytest.approx(1 - gate / (16 << 20))


def test_beyond_the_largest_class_only_pages_count() -> None:
    assert waste([(1 << 30) + 1], 1).rounded_bytes == (1 << 30) + PAGE


def test_powers_of_two_suit_models_made_of_them_and_no_others() -> None:
    per_cent = {model.name: [round(waste(model.nbytes(), k).share * 100, 1) for k in (1, 4, 8)] for model in MODELS}
    assert per_cent["Qwen2.5-0.5B"] == [46.8, 17.0, 8.0]
    assert per_cent["Llama-3.2-1B"][0] == 0.5
    assert all(waste(model.nbytes(), None).share < 0.002 for model in MODELS)


def test_finer_classes_never_waste_more() -> None:
    for model in MODELS:
        shares = [waste(model.nbytes(), classes).share for classes in (1, 2, 4, 8)]
        assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("classes_per_doubling", [1, 2, 4, 8])
def test_a_pool_wastes_what_the_table_says(classes_per_doubling: int) -> None:
    sizes = [5000, 300_000, 1_500_000]
    pool = MemoryPool(classes_per_doubling=classes_per_doubling)
    blocks = [pool.allocate(size) for size in sizes]
    assert sum(block.block_bytes for block in blocks) == waste(sizes, classes_per_doubling).rounded_bytes
    for block in blocks:
        block.release()
