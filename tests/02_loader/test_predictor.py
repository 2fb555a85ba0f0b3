"""Predictors: what is recognised, and what is refused in which words. What they compute is tested in `parity`."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from aie_loader import (
    GraphShapeError,
    MalformedHeaderError,
    MissingFileError,
    MissingTensorError,
    TensorShapeError,
    TokenizerError,
    UnknownArchitectureError,
    UnsupportedModelError,
    is_predictor,
    load_predictor,
    pack_texts,
    without_padding,
)
from aie_loader.formats.safetensors_writer import write_safetensors
from aie_tensor import AieError, InvalidInputError, Matrix

C, F, V = 8, 12, 20
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": C,
    "intermediate_size": F,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": V,
    "max_position_embeddings": 6,
}
LAYER = "encoder.layer.0."
Shapes = dict[str, tuple[int, ...]]


def bert_shapes() -> Shapes:
    def linear(name: str, outputs: int, inputs: int) -> Shapes:
        return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    def norm(name: str) -> Shapes:
        return {f"{name}.weight": (C,), f"{name}.bias": (C,)}

    return {
        "embeddings.word_embeddings.weight": (V, C),
        "embeddings.position_embeddings.weight": (6, C),
        "embeddings.token_type_embeddings.weight": (2, C),
        **norm("embeddings.LayerNorm"),
        **linear(f"{LAYER}attention.self.query", C, C),
        **linear(f"{LAYER}attention.self.key", C, C),
        **linear(f"{LAYER}attention.self.value", C, C),
        **linear(f"{LAYER}attention.output.dense", C, C),
        **norm(f"{LAYER}attention.output.LayerNorm"),
        **linear(f"{LAYER}intermediate.dense", F, C),
        **linear(f"{LAYER}output.dense", C, F),
        **norm(f"{LAYER}output.LayerNorm"),
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A folder with a tiny BERT in it, but for what a test changes. None removes a key, a tensor or a file."""

    def write(
        config: dict[str, Any] | None = None,
        tensors: dict[str, tuple[int, ...] | None] | None = None,
        words: int | None = V,
        **files: object,
    ) -> Path:
        settings = {key: value for key, value in {**CONFIG, **(config or {})}.items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(settings))
        shapes = {name: shape for name, shape in {**bert_shapes(), **(tensors or {})}.items() if shape is not None}
        arrays = {name: Matrix.from_array(np.ones(shape, np.float32)) for name, shape in shapes.items()}
        write_safetensors(tmp_path / "model.safetensors", arrays)
        if words is not None:
            vocabulary = tokenizers.models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0")
            tokenizer = tokenizers.Tokenizer(vocabulary)
            tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
            tokenizer.save(str(tmp_path / "tokenizer.json"))
        for name, value in files.items():
            path = tmp_path / (name.replace("__", "/") + ".json")
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(value))
        return tmp_path

    return write


def test_a_folder_is_a_predictor(write: Callable[..., Path]) -> None:
    path = write()
    predictor = load_predictor(path)
    assert is_predictor(path)
    assert is_predictor(path / "model.safetensors")
    assert (predictor.architecture, predictor.output, predictor.labels, predictor.max_length) == (
        "bert",
        "token_states",
        (),
        6,
    )
    assert predictor.graph.inputs == ("token_ids", "positions", "token_types")
    assert predictor.graph.shapes[predictor.graph.outputs[0]] == ("T", C)
    assert predictor.encode(["w3 " * 9]).ids == [[3] * 6]
    with pytest.raises(InvalidInputError, match="no tokens"):
        predictor.encode(["w1", ""])
    predictor.close()
    assert not predictor.graph.weights
    assert load_predictor(path / "model.safetensors").output == "token_states"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "distilbert"}, True),
        ({"model_type": "resnet"}, True),
        ({"model_type": None, "architectures": ["RobertaForTokenClassification"]}, True),
        ({"model_type": None, "architectures": ["ResNetModel"]}, True),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, False),
        ({"model_type": ["bert"]}, False),
        ({"model_type": None, "architectures": None}, False),
    ],
)
def test_what_counts_as_a_predictor(write: Callable[..., Path], config: dict[str, Any], expected: bool) -> None:
    assert is_predictor(write(config)) is expected


def test_a_graph_file_comes_before_the_configuration(write: Callable[..., Path]) -> None:
    nodes = [{"name": "out", "op": "linear", "inputs": ["x", "fc.weight"]}]
    document = {"aie_graph": 1, "inputs": {"x": ["B", 4]}, "nodes": nodes, "outputs": ["out"]}
    labels = {"id2label": {"0": "no", "1": "yes"}, "problem_type": "multi_label_classification"}
    predictor = load_predictor(write(labels, {"fc.weight": (2, 4)}, graph=document))
    assert (predictor.architecture, predictor.output, predictor.labels) == ("graph", "logits", ("no", "yes"))
    assert predictor.problem == "multi_label"
    with pytest.raises(InvalidInputError, match="does not read text"):
        predictor.encode(["hello"])
    with pytest.raises(MalformedHeaderError, match="id2label"):
        load_predictor(write({"id2label": {"0": "alone"}}, {"fc.weight": (2, 4)}, graph=document))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"hidden_size": 9}, "hidden_size is 9; it must be a multiple of the 2 attention heads"),
        ({"num_hidden_layers": 5000}, "num_hidden_layers"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label"),
        ({"id2label": {}}, "id2label"),
        ({"num_labels": 0}, "num_labels"),
        ({"problem_type": "guessing"}, "problem_type"),
        ({"architectures": [7]}, "architectures"),
        ({"model_type": "roberta", "pad_token_id": 6}, "max_position_embeddings is 6; it must be more than 7"),
    ],
)
def test_a_configuration_that_contradicts_itself(
    write: Callable[..., Path], config: dict[str, Any], match: str
) -> None:
    with pytest.raises(MalformedHeaderError, match=match):
        load_predictor(write(config))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"hidden_act": "mish"}, "activation 'mish'"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "is_decoder"),
        ({"architectures": ["BertForQuestionAnswering"]}, "known are BertModel, .*BertForTokenClassification"),
        ({"quantization_config": {}}, "quantized"),
        ({"model_type": "llama"}, "generates text"),
    ],
)
def test_what_is_not_supported(write: Callable[..., Path], config: dict[str, Any], match: str) -> None:
    with pytest.raises(UnsupportedModelError, match=match):
        load_predictor(write(config))


@pytest.mark.parametrize("config", [{"model_type": "wav2vec2"}, {"model_type": None, "architectures": ["Nameless"]}])
def test_an_unknown_architecture_names_the_known_ones(write: Callable[..., Path], config: dict[str, Any]) -> None:
    with pytest.raises(UnknownArchitectureError, match=r"bert, roberta, xlm-roberta, distilbert, resnet"):
        load_predictor(write(config))


def test_tensors_that_are_missing_misshapen_or_left_over(write: Callable[..., Path]) -> None:
    query = f"{LAYER}attention.self.query.weight"
    with pytest.raises(
        MissingTensorError, match=r"no tensor 'encoder\.layer\.0\.attention\.self\.query\.weight'; the n"
    ):
        load_predictor(write(tensors={query: None, query.replace("query", "querry"): (C, C)}))
    with pytest.raises(TensorShapeError, match=r"query\.weight' has the shape \[8, 9\]"):
        load_predictor(write(tensors={query: (C, C + 1)}))
    with pytest.raises(UnsupportedModelError, match=r"no place for: 'adapter\.weight'"):
        load_predictor(write(tensors={"adapter.weight": (3, 3)}))
    # A head that the class does not name is no accident to pass over in silence, unless the caller chose another.
    extra = {"classifier.weight": (2, C), "classifier.bias": (2,)}
    with pytest.raises(UnsupportedModelError, match="classifier"):
        load_predictor(write(tensors=extra))
    assert load_predictor(write(tensors=extra), head="mean").output == "embedding"
    with pytest.raises(MissingTensorError, match=r"pooler\.dense\.weight"):
        load_predictor(write({"architectures": ["BertForSequenceClassification"]}, extra))


def test_what_only_training_needed_is_left_out(write: Callable[..., Path]) -> None:
    extra = {"cls.predictions.bias": (V,), "embeddings.position_ids": (1, 6), "pooler.dense.weight": (C, C)}
    assert "pooler.weight" not in load_predictor(write(tensors=extra)).graph.weights


def test_heads_that_do_not_exist(write: Callable[..., Path]) -> None:
    with pytest.raises(InvalidInputError, match="known: states, mean"):
        load_predictor(write(), head="median")
    with pytest.raises(InvalidInputError, match="no choice of heads"):
        load_predictor(write({"model_type": "resnet"}), head="mean")


def pooling(**modes: object) -> dict[str, object]:
    steps = [{"type": "sentence_transformers.models.Transformer", "path": ""},
             {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]  # fmt: skip
    return {"modules": steps, "1_Pooling__config": modes}


def test_pooling_files(write: Callable[..., Path]) -> None:
    found = load_predictor(write(**pooling(pooling_mode="lasttoken")))
    assert [node.attrs["kind"] for node in found.graph.nodes if node.op == "pool_tokens"] == ["last"]
    found = load_predictor(write(**pooling(pooling_mode=["max", "cls"])))
    assert found.graph.shapes[found.graph.outputs[0]] == ("S", 2 * C)
    found = load_predictor(write(**pooling(pooling_mode_mean_tokens=False)))  # as the library takes it
    assert [node.attrs["kind"] for node in found.graph.nodes if node.op == "pool_tokens"] == ["mean"]
    with pytest.raises(UnsupportedModelError, match="'weightedmean'"):
        load_predictor(write(**pooling(pooling_mode="weightedmean")))
    with pytest.raises(UnsupportedModelError, match="pooling_mode_weightedmean_tokens"):
        load_predictor(write(**pooling(pooling_mode_weightedmean_tokens=True)))
    files = pooling(pooling_mode="mean")
    steps: Any = files["modules"]
    with pytest.raises(UnsupportedModelError, match="'Dense' is not supported"):
        load_predictor(write(**{**files, "modules": [*steps, {"type": "sentence_transformers.models.Dense"}]}))
    with pytest.raises(MalformedHeaderError, match="a folder inside the model's"):
        load_predictor(write(**{**files, "modules": [steps[0], {**steps[1], "path": "../elsewhere"}]}))
    with pytest.raises(MalformedHeaderError, match="list of objects"):
        load_predictor(write(**{**files, "modules": {}}))


def test_tokenizers_that_do_not_fit(write: Callable[..., Path]) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_predictor(write(words=None))
    with pytest.raises(TokenizerError, match=f"{V + 1} tokens, but the model only {V}"):
        load_predictor(write(words=V + 1))


def test_weights_that_nothing_describes(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    np.savez(path, **{"a.weight": np.ones((3, 4), np.float32), "b.weight": np.ones((2, 3), np.float32)})
    assert is_predictor(path)
    with pytest.raises(MissingFileError, match=r"neither a config\.json nor a graph\.json"):
        load_predictor(path)
    predictor = load_predictor(path, input_shape=(4,))
    assert (predictor.architecture, predictor.output, predictor.format) == ("sequential", "logits", "numpy")
    with pytest.raises(GraphShapeError):
        load_predictor(path, input_shape=(5,))


def test_image_settings(write: Callable[..., Path]) -> None:
    stage = "encoder.stages.0.layers.0."
    convolutions = {
        "embedder.embedder": (4, 1, 7, 7),
        f"{stage}layer.0": (4, 4, 3, 3),
        f"{stage}layer.1": (4, 4, 3, 3),
    }
    tensors: dict[str, tuple[int, ...] | None] = dict.fromkeys(bert_shapes())
    for name, shape in convolutions.items():
        tensors[f"{name}.convolution.weight"] = shape
        tensors |= {f"{name}.normalization.{kind}": (4,) for kind in ("weight", "bias", "running_mean", "running_var")}
    config = {"model_type": "resnet", "num_channels": 1, "embedding_size": 4, "hidden_sizes": [4], "depths": [1],
              "layer_type": "basic"}  # fmt: skip
    settings = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 36}, "image_mean": [0.1307]}
    image = load_predictor(write(config, tensors, None, preprocessor_config=settings)).image
    assert image is not None
    assert (image.channels, image.height, image.width, image.mean, image.std) == (1, 32, 36, (0.1307,), (0.5,))
    with pytest.raises(InvalidInputError, match="input_shape"):
        load_predictor(write(config, tensors, None), input_shape=(3, 32, 32))
    with pytest.raises(MissingTensorError, match="encoder"):
        load_predictor(write({**config, "depths": [2]}, tensors, None))
    with pytest.raises(MalformedHeaderError, match="depths"):
        load_predictor(write({**config, "depths": [1, 1]}, tensors, None))


JUNK = (None, [], {}, "x", -1, 0, 1 << 70, 1.5, True, [None], {"0": None}, {"0": "a", "1": 5})
RESNET = {"model_type": "resnet", "num_channels": 1, "embedding_size": 4, "hidden_sizes": [4], "depths": [1]}
CLASSIFIES = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a"}, "problem_type": "regression",
              "num_labels": 1, "pad_token_id": 0, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
              "position_embedding_type": "absolute", "is_decoder": False}  # fmt: skip


@pytest.mark.parametrize(
    "base", [{**CONFIG, **CLASSIFIES}, {**CONFIG, "model_type": "roberta"}, RESNET], ids=["bert", "roberta", "resnet"]
)
def test_any_value_of_a_configuration_is_taken_or_refused(write: Callable[..., Path], base: dict[str, Any]) -> None:
    """Whatever a file says, the worst is an error of ours."""
    path = write()
    for key in [*base, "downsample_in_first_stage", "layer_type", "quantization_config"]:
        for value in JUNK:
            (path / "config.json").write_text(json.dumps({**base, key: value}))
            with contextlib.suppress(AieError):
                load_predictor(path)
            is_predictor(path)


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", "tokenizer_config.json",
                                  "sentence_bert_config.json", "preprocessor_config.json", "graph.json"])  # fmt: skip
def test_any_file_beside_it_is_taken_or_refused(write: Callable[..., Path], name: str) -> None:
    path = write(RESNET if name.startswith("preprocessor") else None, **pooling(pooling_mode="mean"))
    keys = {
        "modules.json": ("type", "path"),
        "1_Pooling/config.json": ("pooling_mode", "pooling_mode_cls_token"),
        "tokenizer_config.json": ("model_max_length",),
        "sentence_bert_config.json": ("max_seq_length",),
        "preprocessor_config.json": ("size", "crop_size", "image_mean"),
        "graph.json": ("aie_graph",),
    }[name]
    objects = [{key: value} for key in keys for value in JUNK]
    for document in [*JUNK, *([[one] for one in objects] if name == "modules.json" else objects)]:
        (path / name).write_text(json.dumps(document))
        with contextlib.suppress(AieError):
            load_predictor(path)


def test_packing(write: Callable[..., Path]) -> None:
    graph = load_predictor(write()).graph
    packed = pack_texts(graph, without_padding([[0, 5, 6], [7, 8, 9]], [[0, 1, 1], [1, 0, 0]]))
    assert packed.inputs["token_ids"].tolist() == [5, 6, 7]
    assert packed.inputs["positions"].tolist() == [0, 1, 0]
    assert packed.inputs["token_types"].tolist() == [0, 0, 0]
    assert packed.seq_starts.tolist() == [0, 2, 3]
    assert pack_texts(graph, [[5, 6]], [[0, 1]]).inputs["token_types"].tolist() == [0, 1]
    for texts, types in (([], None), ([[1], []], None), ([[1, 2]], [[0]])):
        with pytest.raises(InvalidInputError):
            pack_texts(graph, texts, types)
    with pytest.raises(InvalidInputError, match="attention_mask"):
        without_padding([[1, 2]], [[1]])
