"""The families of `test_encoders.py` on the native kernels: equal to the references, alone and in any company."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_engine import embed_texts, predict_ids
from aie_engine.executors import NativeStatelessExecutor
from aie_loader import Graph, Predictor, fuse, load_predictor, resolve
from aie_tensor import AieError, NativeUnavailableError, native

sys.path.insert(0, str(Path(__file__).parent))
from made_up import made_up
from sentences import sentences
from test_encoders import GOLDEN, IMAGES, TEXT, Folder, agree, folder

__all__ = ["folder"]  # a fixture

pytestmark = pytest.mark.native


@pytest.fixture
def runner_of() -> Iterator[Callable[..., NativeStatelessExecutor]]:
    try:
        lib = native.load()
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    made: list[NativeStatelessExecutor] = []

    def make(graph: Graph, **options: Any) -> NativeStatelessExecutor:
        made.append(NativeStatelessExecutor(graph, lib, **{"num_threads": 2, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("name", TEXT)
def test_text_models_equal_the_reference(folder: Folder, runner_of: Any, name: str) -> None:
    path, record = folder(name)
    predictor = load_predictor(path)
    given = {"token_types": record.get("token_types")}
    whole = [predict_ids(predictor, record["texts"], runner=runner_of(g), **given) for g in graphs(predictor)]
    for found in whole:
        for mine, expected in zip(found, record["output"], strict=True):
            agree(mine, expected)
    alone = runner_of(predictor.graph, num_threads=1)
    for i, text in enumerate(record["texts"]):
        types = record["token_types"][i : i + 1] if record.get("token_types") else None
        (mine,) = predict_ids(predictor, [text], token_types=types, runner=alone)
        np.testing.assert_array_equal(mine, whole[0][i])


def graphs(predictor: Predictor) -> list[Graph]:
    return [predictor.graph, fuse(predictor.graph)]


@pytest.mark.parametrize("name", IMAGES)
def test_image_models_equal_the_reference(folder: Folder, runner_of: Any, name: str) -> None:
    path, record = folder(name)
    shape = tuple(record["input_shape"])
    given = made_up("input", shape) * np.float32(np.prod(shape[1:]) ** 0.5)
    predictor = load_predictor(path, input_shape=shape[1:])
    for graph in graphs(predictor):
        out = runner_of(graph).run({graph.inputs[0]: given})[graph.outputs[0]]
        agree(out, record["output"])
        alone = runner_of(graph, max_items=1, num_threads=3).run({graph.inputs[0]: given})[graph.outputs[0]]
        np.testing.assert_array_equal(alone, out)


@pytest.mark.real_model
def test_minilm_embeds_200_sentences_as_the_reference_does(runner_of: Any) -> None:
    try:
        minilm = load_predictor(resolve("minilm-l6"))
    except AieError as error:
        pytest.skip(str(error))
    golden = np.load(GOLDEN / "minilm_l6.npz")["vectors"]
    runner = runner_of(fuse(minilm.graph))
    together = embed_texts(minilm, sentences(), runner=runner)
    for i, text in list(enumerate(sentences()))[::10]:
        np.testing.assert_array_equal(embed_texts(minilm, [text], runner=runner)[0], together[i])
    assert np.sum(together * golden, axis=1).min() >= 1 - 1e-5  # both of length 1
    np.testing.assert_allclose(together, golden, atol=2e-6)
