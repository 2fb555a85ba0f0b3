"""How much KV cache, how long a sequence, how many threads."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from aie_engine import EngineConfig, InvalidInputError
from aie_engine.sizing import _container_quota, available_cores, choose_sizes


@dataclass
class Shape:
    """SmolLM2-135M in what matters here: 46080 bytes of keys and values per token."""

    num_layers: int = 30
    num_kv_heads: int = 3
    head_dim: int = 64
    max_position_embeddings: int = 8192


CONFIG = EngineConfig(Path("model"))
MODEL: Any = Shape()


def test_the_default_memory_holds_sixteen_thousand_tokens() -> None:
    sizes = choose_sizes(CONFIG, MODEL)
    assert sizes.block_bytes == 16 * 46080
    assert sizes.max_seq_len == 8192
    assert sizes.num_blocks * 16 >= 16384
    assert sizes.num_blocks * sizes.block_bytes <= 768 << 20


def test_no_more_blocks_than_the_batch_can_use() -> None:
    sizes = choose_sizes(replace(CONFIG, max_batch_size=4, max_seq_len=100), MODEL)
    assert sizes.num_blocks == 4 * 7


def test_the_longest_sequence_fits_the_memory_alone() -> None:
    sizes = choose_sizes(replace(CONFIG, kv_memory_bytes=100 * 16 * 46080 + 5), MODEL)
    assert (sizes.num_blocks, sizes.max_seq_len) == (100, 1600)


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"max_seq_len": 8193}, "max_seq_len"),
        ({"max_seq_len": 4096, "kv_memory_bytes": 100 << 20}, "max_seq_len"),
        ({"kv_memory_bytes": 1000}, "kv_memory_bytes"),
    ],
)
def test_what_does_not_go_together(wish: dict[str, int], param: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        choose_sizes(replace(CONFIG, **wish), MODEL)  # type: ignore[arg-type]
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("200000 100000", 2), ("150000 100000", 2), ("", None), ("x y", None)]
)
def test_a_containers_quota(tmp_path: Path, text: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert _container_quota(tmp_path / "cpu.max") == cores
    assert _container_quota(tmp_path / "missing") is None


def test_there_is_at_least_one_core() -> None:
    assert available_cores() >= 1
