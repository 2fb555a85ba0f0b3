"""Every family of encoders and image models against the reference libraries: equal weights, equal outputs.

The golden files come from `make_golden_encoders.py`; each model is loaded from a folder, as a user would load it.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from aie_engine import embed_texts, predict_ids, predict_texts
from aie_engine.executors import StatelessExecutor
from aie_loader import (
    MissingTensorError,
    Predictor,
    UnsupportedModelError,
    fuse,
    is_predictor,
    load_predictor,
)
from aie_loader.architectures.encoders import ENCODERS
from aie_loader.formats.gguf_writer import write_gguf
from aie_loader.formats.safetensors_writer import write_safetensors
from aie_loader.packing import pack_texts
from aie_tensor import InvalidInputError, Matrix

sys.path.insert(0, str(Path(__file__).parent))
from made_up import made_up

GOLDEN = Path(__file__).parent.parent / "golden" / "parity" / "encoders"
TEXT = sorted(path.stem for path in GOLDEN.glob("*bert*.json"))
IMAGES = sorted(path.stem for path in GOLDEN.glob("*resn*.json"))
GRAPHS = {
    "mlp": [
        {"name": "h1", "op": "linear", "inputs": ["x", "fc1.weight", "fc1.bias"]},
        {"name": "a1", "op": "relu", "inputs": ["h1"]},
        {"name": "h2", "op": "linear", "inputs": ["a1", "fc2.weight", "fc2.bias"]},
        {"name": "a2", "op": "relu", "inputs": ["h2"]},
        {"name": "out", "op": "linear", "inputs": ["a2", "fc3.weight", "fc3.bias"]},
    ],
    "lenet": [
        {"name": "c1", "op": "conv2d", "inputs": ["x", "conv1.weight", "conv1.bias"], "padding": [2, 2]},
        {"name": "r1", "op": "relu", "inputs": ["c1"]},
        {"name": "p1", "op": "max_pool2d", "inputs": ["r1"], "kernel": [2, 2]},
        {"name": "c2", "op": "conv2d", "inputs": ["p1", "conv2.weight", "conv2.bias"]},
        {"name": "r2", "op": "relu", "inputs": ["c2"]},
        {"name": "p2", "op": "max_pool2d", "inputs": ["r2"], "kernel": [2, 2]},
        {"name": "flat", "op": "flatten", "inputs": ["p2"]},
        {"name": "h1", "op": "linear", "inputs": ["flat", "fc1.weight", "fc1.bias"]},
        {"name": "a1", "op": "relu", "inputs": ["h1"]},
        {"name": "h2", "op": "linear", "inputs": ["a1", "fc2.weight", "fc2.bias"]},
        {"name": "a2", "op": "relu", "inputs": ["h2"]},
        {"name": "out", "op": "linear", "inputs": ["a2", "fc3.weight", "fc3.bias"]},
    ],
}
Folder = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A model folder like the one that the reference library saves, and its golden record."""

    def write(name: str, *, rename: Callable[[str], str] = str, **config: object) -> tuple[Path, dict[str, Any]]:
        record = json.loads((GOLDEN / f"{name}.json").read_text())
        tensors = {n: Matrix.from_array(made_up(n, tuple(shape))) for n, shape in record["tensors"].items()}
        write_safetensors(tmp_path / "model.safetensors", {rename(n): matrix for n, matrix in tensors.items()})
        if "config" in record:
            (tmp_path / "config.json").write_text(json.dumps({**record["config"], **config}))
        if "texts" in record:
            words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
            words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
            words.post_processor = tokenizers.processors.TemplateProcessing(
                single="w2 $A w3", special_tokens=[("w2", 2), ("w3", 3)]
            )
            words.save(str(tmp_path / "tokenizer.json"))
        return tmp_path, record

    return write


def agree(ours: Any, reference: Any, bound: float = 1e-4) -> None:
    expected = np.array(reference, dtype=np.float32)
    np.testing.assert_allclose(ours, expected, rtol=bound, atol=bound * np.abs(expected).max())


def agree_per_text(predictor: Predictor, record: dict[str, Any]) -> None:
    ours = predict_ids(predictor, record["texts"], token_types=record.get("token_types"))
    for mine, expected in zip(ours, record["output"], strict=True):
        agree(mine, expected)


@pytest.mark.parametrize("name", TEXT)
def test_text_models_equal_the_reference(folder: Folder, name: str) -> None:
    path, record = folder(name)
    predictor = load_predictor(path)
    agree_per_text(predictor, record)
    alone = [
        predict_ids(predictor, [text], token_types=types and [types])[0]
        for text, types in zip(record["texts"], record.get("token_types", [None] * 3), strict=True)
    ]
    for mine, expected in zip(alone, record["output"], strict=True):
        agree(mine, expected)
    runner = StatelessExecutor(fuse(predictor.graph))
    fused = predict_ids(predictor, record["texts"], token_types=record.get("token_types"), runner=runner)
    for mine, expected in zip(fused, record["output"], strict=True):
        agree(mine, expected)


def test_what_the_outputs_of_text_models_mean(folder: Folder) -> None:
    found = {name: load_predictor(folder(name)[0]) for name in TEXT}
    assert {name: predictor.output for name, predictor in found.items()} == {
        "bert": "token_states",
        "bert_masked": "token_states",
        "bert_sequence": "logits",
        "bert_token": "token_logits",
        "distilbert": "token_states",
        "distilbert_sequence": "logits",
        "distilbert_token": "token_logits",
        "roberta": "token_states",
        "roberta_sequence": "logits",
        "roberta_token": "token_logits",
        "xlm_roberta": "logits",
    }
    assert found["bert_sequence"].labels == ("bad", "middling", "good")
    assert found["bert_sequence"].problem == "single_label"
    assert found["xlm_roberta"].problem == "regression"
    assert found["bert_token"].labels == tuple(f"LABEL_{i}" for i in range(5))
    assert (found["bert"].max_length, found["roberta"].max_length) == (32, 30)  # RoBERTa's positions begin at 2


def test_the_golden_files_cover_every_family() -> None:
    assert {json.loads((GOLDEN / f"{name}.json").read_text())["config"]["model_type"] for name in TEXT} == set(ENCODERS)


def test_pairs_of_texts_and_what_is_too_long(folder: Folder) -> None:
    predictor = load_predictor(folder("bert_sequence")[0])
    encoded = predictor.encode([("w5 w6", "w7"), "w8"])
    packed = pack_texts(predictor.graph, encoded.ids, encoded.type_ids)
    expected = StatelessExecutor(predictor.graph).run(packed.inputs, packed.seq_starts)["logits"]
    np.testing.assert_array_equal(predict_texts(predictor, [("w5 w6", "w7"), "w8"]), expected)
    with pytest.raises(InvalidInputError, match=r"33 tokens; .* reads at most 32"):
        predict_ids(predictor, [[5], [5] * 33])
    with pytest.raises(InvalidInputError, match="gives logits"):
        embed_texts(predictor, ["w5"])
    with pytest.raises(InvalidInputError, match="no texts"):
        embed_texts(load_predictor(predictor.path, head="mean"), [])


@pytest.mark.parametrize("kind", ["mean", "cls", "max"])
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_pooling_heads(folder: Folder, name: str, kind: str) -> None:
    path, record = folder(name)
    predictor = load_predictor(path, head=kind)
    assert predictor.output == "embedding"
    pool = {"mean": lambda rows: rows.mean(0), "cls": lambda rows: rows[0], "max": lambda rows: rows.max(0)}[kind]
    expected = [pool(np.array(rows, dtype=np.float32)) for rows in record["output"]]
    agree(predict_ids(predictor, record["texts"], token_types=record.get("token_types")), expected)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_the_pooler(folder: Folder, name: str) -> None:
    path, record = folder(name)
    predictor = load_predictor(path, head="pooler")
    agree(predict_ids(predictor, record["texts"], token_types=record.get("token_types")), record["pooler"])


def test_pooling_as_modules_json_says(folder: Folder) -> None:
    path, record = folder("distilbert")
    steps = [
        {"idx": i, "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(["Transformer", "Pooling", "Normalize"])
    ]
    (path / "modules.json").write_text(json.dumps(steps))
    (path / "1_Pooling").mkdir()
    modes = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "pooling_mode_max_tokens": False}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 14}')
    predictor = load_predictor(path)
    states = [np.array(rows, dtype=np.float32) for rows in record["output"]]
    expected = np.stack([np.concatenate([rows[0], rows.mean(0)]) for rows in states])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    agree(predict_ids(predictor, record["texts"]), expected)
    assert predictor.max_length == 14
    # A longer text loses its end but not the token that closes it.
    assert predictor.encode(["w5 w6"]).ids == [[2, 5, 6, 3]]
    assert predictor.encode([" ".join(f"w{i}" for i in range(10, 30))]).ids == [[2, *range(10, 22), 3]]


def test_names_of_the_first_releases_and_without_the_familys_prefix(folder: Folder) -> None:
    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    agree_per_text(*_loaded(folder("bert_masked", rename=old)))
    agree_per_text(*_loaded(folder("bert", rename=lambda name: f"bert.{name}")))


def _loaded(made: tuple[Path, dict[str, Any]]) -> tuple[Predictor, dict[str, Any]]:
    return load_predictor(made[0]), made[1]


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
GGUF = {
    "general.architecture": "bert",
    "bert.block_count": 2,
    "bert.embedding_length": 24,
    "bert.feed_forward_length": 40,
    "bert.attention.head_count": 3,
    "bert.context_length": 32,
    "bert.attention.layer_norm_epsilon": 1e-12,
    "bert.attention.causal": False,
    "bert.pooling_type": 1,
    "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.tokens": [*SPECIAL, *(f"\u2581w{index}" for index in range(59))],
    "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * 59,
    "tokenizer.ggml.unknown_token_id": 1,
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.seperator_token_id": 3,  # so the format spells it
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.mask_token_id": 4,
}


def test_a_bert_in_a_gguf_file(folder: Folder, tmp_path: Path) -> None:
    path, record = folder("bert")
    weights = load_predictor(path).graph.weights  # in the graph they are called as in GGUF
    predictor = load_predictor(write_gguf(tmp_path / "bert.gguf", GGUF, weights))
    expected = [np.array(rows, dtype=np.float32).mean(0) for rows in record["output"]]
    agree(predict_ids(predictor, record["texts"], token_types=record["token_types"]), expected)
    assert (predictor.output, predictor.max_length, predictor.format) == ("embedding", 32, "gguf")
    assert predictor.encode(["w7 w8"]).ids == [[2, 12, 13, 3]]
    assert is_predictor(predictor.path)
    late = {"filler": "x" * 5000, **GGUF}
    assert is_predictor(write_gguf(tmp_path / "late.gguf", late, weights))
    assert not is_predictor(write_gguf(tmp_path / "late.gguf", {**late, "general.architecture": "bertha"}, weights))
    assert not is_predictor(write_gguf(tmp_path / "llama.gguf", {**GGUF, "general.architecture": "bertha"}, weights))
    agree_per_text(load_predictor(predictor.path, head="states"), record)
    for keys, match in (({"bert.pooling_type": 4}, "pooling_type 4"), ({"bert.attention.causal": True}, "causal"),
                        ({"general.architecture": "llama"}, "load_model"),
                        ({"general.architecture": "clip"}, "may hold bert")):  # fmt: skip
        with pytest.raises(UnsupportedModelError, match=match):
            load_predictor(write_gguf(tmp_path / "other.gguf", {**GGUF, **keys}, weights))
    with pytest.raises(UnsupportedModelError, match="no head 'pooler'"):
        load_predictor(predictor.path, head="pooler")
    few = {name: matrix for name, matrix in weights.items() if name != "blk.1.ffn_up.weight"}
    with pytest.raises(MissingTensorError, match=r"blk\.1\.ffn_up\.weight"):
        load_predictor(write_gguf(tmp_path / "few.gguf", GGUF, few))


@pytest.mark.parametrize("name", IMAGES)
def test_image_models_equal_the_reference(folder: Folder, name: str) -> None:
    path, record = folder(name)
    shape = tuple(record["input_shape"])
    predictor = load_predictor(path, input_shape=shape[1:])
    assert predictor.output == ("embedding" if name == "resnet_strides_first" else "image_logits")
    assert predictor.image is not None
    assert (predictor.image.channels, predictor.image.height, predictor.image.width) == shape[1:]
    check_on_the_input(predictor, record)


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_graph_files_equal_the_reference(folder: Folder, name: str) -> None:
    path, record = folder(name)
    shape = ["B", *record["input_shape"][1:]]
    document = {"aie_graph": 1, "inputs": {"x": shape}, "nodes": GRAPHS[name], "outputs": ["out"]}
    (path / "graph.json").write_text(json.dumps(document))
    for given in (path, path / "graph.json", path / "model.safetensors"):
        predictor = load_predictor(given)
        assert predictor.output == ("logits" if name == "mlp" else "image_logits")
        check_on_the_input(predictor, record)


def test_a_sequential_network_from_its_weights_alone(folder: Folder) -> None:
    path, record = folder("mlp")
    check_on_the_input(load_predictor(path, input_shape=(20,)), record)


def check_on_the_input(predictor: Predictor, record: dict[str, Any]) -> None:
    """Also with the normalisations folded into the convolutions."""
    shape = tuple(record["input_shape"])
    given = made_up("input", shape) * np.float32(np.prod(shape[1:]) ** 0.5)
    folded = fuse(predictor.graph)
    assert all(node.op != "batch_norm" for node in folded.nodes)
    for graph in (predictor.graph, folded):
        out = StatelessExecutor(graph).run({graph.inputs[0]: given})[graph.outputs[0]]
        agree(out, record["output"])
