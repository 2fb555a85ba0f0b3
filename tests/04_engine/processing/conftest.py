"""Pipelines of tiny models on disk: texts, rows, images."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from aie_engine.processing import (
    Pipeline,
    load_pipeline,
)

WORDS = ["[UNK]", "a", "b", "c", "d"]


def write_model(
    folder: Path,
    *,
    inputs: dict[str, list[object]],
    nodes: list[dict[str, object]],
    weights: dict[str, tuple[int, ...]],
    config: dict[str, object] | None = None,
    processing: str | None = None,
    words: bool = False,
    outputs: tuple[str, ...] = ("out",),
) -> Pipeline:
    random = np.random.default_rng(0)
    np.savez(folder / "weights.npz", **{k: random.standard_normal(s).astype(np.float32) for k, s in weights.items()})
    document = {"aie_graph": 1, "inputs": inputs, "nodes": nodes, "outputs": list(outputs)}
    (folder / "graph.json").write_text(json.dumps(document))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if processing is not None:
        (folder / "processing.toml").write_text(processing)
    if words:
        made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        made.save(str(folder / "tokenizer.json"))
    return load_pipeline(folder, max_tokens=4 if words else None)


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., Pipeline]:
    def make(processing: str | None = None, **config: object) -> Pipeline:
        return write_model(
            tmp_path,
            inputs={"x": ["B", 4]},
            nodes=[{"name": "out", "op": "linear", "inputs": ["x", "fc.weight"]}],
            weights={"fc.weight": (3, 4)},
            config=config or None,
            processing=processing,
        )

    return make


@pytest.fixture
def texts(tmp_path: Path) -> Callable[..., Pipeline]:
    def make(processing: str | None = None) -> Pipeline:
        nodes = [
            {"name": "word", "op": "embedding", "inputs": ["token_ids", "word.weight"]},
            {"name": "place", "op": "embedding", "inputs": ["positions", "place.weight"]},
            {"name": "out", "op": "add", "inputs": ["word", "place"]},
        ]
        return write_model(
            tmp_path,
            inputs={"token_ids": ["T"], "positions": ["T"]},
            nodes=nodes,
            weights={"word.weight": (5, 6), "place.weight": (16, 6)},
            processing=processing,
            words=True,
        )

    return make


@pytest.fixture
def images(tmp_path: Path) -> Callable[..., Pipeline]:
    def make(processing: str, channels: int = 3) -> Pipeline:
        nodes = [
            {"name": "flat", "op": "flatten", "inputs": ["pixels"]},
            {"name": "out", "op": "linear", "inputs": ["flat", "fc.weight"]},
        ]
        return write_model(
            tmp_path,
            inputs={"pixels": ["B", channels, 4, 6]},
            nodes=nodes,
            weights={"fc.weight": (2, channels * 24)},
            processing=processing,
        )

    return make


@pytest.fixture
def detector(tmp_path: Path) -> Callable[..., Pipeline]:
    """Three boxes `b`, and for each of them three scores `s`."""

    def make(step: str, more: str = "") -> Pipeline:
        return write_model(
            tmp_path,
            inputs={"x": ["B", 3, 4], "y": ["B", 3, 3]},
            nodes=[{"name": "b", "op": "relu", "inputs": ["x"]}, {"name": "s", "op": "relu", "inputs": ["y"]}],
            weights={"none": (1,)},
            processing=f"{more}\noutput = [{step}]",
            outputs=("b", "s"),
        )

    return make
