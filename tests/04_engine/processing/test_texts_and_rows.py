"""Texts, rows and outputs, and the file that declares their steps."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aie_engine import InvalidInputError
from aie_engine.processing import (
    Pipeline,
    ProcessingError,
    Reader,
    Steps,
    read_steps,
    stacked,
    tensor_from_bytes,
    tensor_from_json,
    vector_base64,
)

# Texts


def test_texts_are_cleaned_cut_and_counted(texts: Callable[..., Pipeline]) -> None:
    pipeline = texts(
        'text = [{step = "lower"}, {step = "unicode", form = "NFKC"}, {step = "collapse"}, {step = "strip"}]'
    )
    items, num_truncated = pipeline.texts(["  A\t\n ｂ ", "a b c d a b"])
    assert [item.inputs["token_ids"].tolist() for item in items] == [[1, 2], [1, 2, 3, 4]]
    assert ([item.length for item in items], num_truncated) == ([2, 4], 1)
    assert texts('text = [{step = "cut", chars = 1}]').texts(["a b"])[0][0].length == 1
    with pytest.raises(InvalidInputError, match="input 1 is a text without tokens"):
        pipeline.texts(["a", "  "])


def test_tokens_are_not_cut(texts: Callable[..., Pipeline]) -> None:
    pipeline = texts()
    assert [item.length for item in pipeline.tokens([[1], [1, 2]])] == [1, 2]
    for bad in ([[1] * 5], [[]], [[1 << 40]]):
        with pytest.raises(InvalidInputError):
            pipeline.tokens(bad)
    with pytest.raises(InvalidInputError, match="does not take image files"):
        pipeline.image(b"", max_pixels=100)


def test_texts_as_tensors(texts: Callable[..., Pipeline]) -> None:
    pipeline = texts()
    assert [facts.name for facts in pipeline.inputs] == ["text"]
    text = tensor_from_json("text", "BYTES", [2, 1], ["a b", "c"])
    assert [item.length for item in pipeline.tensors([text])] == [2, 1]
    ids = tensor_from_json("token_ids", "INT64", [2, 3], [[1, 2, 3], [4, 0, 0]])
    mask = tensor_from_json("attention_mask", "INT64", [2, 3], [1, 1, 1, 1, 0, 0])
    assert [item.inputs["token_ids"].tolist() for item in pipeline.tensors([ids, mask])] == [[1, 2, 3], [4]]
    for bad in (
        [tensor_from_json("text", "BYTES", [0], [])],
        [tensor_from_bytes("text", "BYTES", [1], b"\1\0\0\0\xff")],
        [text, ids],
        [text, text],
        [tensor_from_json("token_ids", "FP32", [1, 1], [1.0])],
        [ids, tensor_from_json("attention_mask", "INT64", [2], [1, 1])],
        [mask],
    ):
        with pytest.raises(InvalidInputError):
            pipeline.tensors(bad)


def test_pooling_where_the_graph_does_not(texts: Callable[..., Pipeline]) -> None:
    states = {"out": np.asarray([[3, 0, 0], [1, 4, 0]], np.float32)}
    mean = Reader(texts())
    assert mean.gives_vectors
    np.testing.assert_allclose(mean.vectors([states]), [[2**-0.5, 2**-0.5, 0]], rtol=1e-6)
    np.testing.assert_allclose(mean.vectors([states], 1), [[1]])
    with pytest.raises(InvalidInputError, match="at most 3"):
        mean.vectors([states], 4)
    first = Reader(texts('output = [{step = "pool", how = "cls"}]'))
    np.testing.assert_array_equal(first.vectors([states]), [[3, 0, 0]])
    both = [{"out": np.asarray([[1, 0]], np.float32)}, {"out": np.asarray([[1, 1]], np.float32)}]
    assert mean.cosines(both) == pytest.approx([2**-0.5])
    assert stacked([states, {"out": np.ones((1, 3), np.float32)}])["out"].tolist()[1] == [[1, 1, 1], [0, 0, 0]]
    assert vector_base64(np.asarray([1.5], np.float32)) == "AADAPw=="


# Rows


def test_rows_by_their_steps(rows: Callable[..., Pipeline]) -> None:
    pipeline = rows(
        'row = [{step = "fill", with = [7]}, {step = "standardise", mean = [1, 1, 1, 1], std = [2, 2, 2, 2]},'
        '{step = "min_max", low = [0], high = [2], beyond = "cut"}]'
    )
    items = pipeline.arrays({"x": [[1, 3, None, 100], [1, 2, 3, 4]]})
    assert [item.inputs["x"].tolist() for item in items] == [[0, 0.5, 1, 1], [0, 0.25, 0.5, 0.75]]
    assert items[0].inputs["x"].dtype == np.float32 and items[0].length == 1
    assert len(pipeline.arrays({"x": [1, 2, 3, 4]})) == 1


@pytest.mark.parametrize(
    "value",
    [
        [], [[]], [1, 2, 3], [[1, 2, 3, None]], [["1", "2", "3", "4"]], [[1, 2, 3, 4], [1]], [[True] * 4], "1234",
        [[1, 2, 3, 1e300]], [[1, 2, 3, 10**40]], [[[1, 2, 3, 4]]], {"a": 1}, 5, None,
    ],
)  # fmt: skip
def test_bad_rows(rows: Callable[..., Pipeline], value: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        rows().arrays({"x": value})
    assert caught.value.param == "x"


def test_inputs_by_their_names(rows: Callable[..., Pipeline]) -> None:
    pipeline = rows()
    assert [(facts.name, facts.datatype, facts.shape) for facts in pipeline.inputs] == [("x", "FP32", (-1, 4))]
    assert [facts.shape for facts in pipeline.outputs] == [(-1, 3)]
    with pytest.raises(InvalidInputError, match="takes x; y came"):
        pipeline.arrays({"y": [1, 2, 3, 4]})
    with pytest.raises(InvalidInputError, match="must be FP32, not FP64"):
        pipeline.tensors([tensor_from_json("x", "FP64", [1, 4], [1, 2, 3, 4])])
    nan = struct.pack("<4f", 1, 2, 3, float("nan"))
    with pytest.raises(InvalidInputError, match="NaN"):
        pipeline.tensors([tensor_from_bytes("x", "FP32", [1, 4], nan)])


# Outputs


def test_labels(rows: Callable[..., Pipeline]) -> None:
    names = {"id2label": {"0": "ant", "1": "bee", "2": "wasp"}}
    logits = [{"out": np.log(np.asarray([1, 2, 1], np.float32))}, {"out": np.asarray([9, 0, 0], np.float32)}]
    found = Reader(rows(**names)).labels(logits)
    assert [label.label for label in found[0]] == ["bee", "ant", "wasp"]  # of equal scores the first
    assert [label.score for label in found[0]] == pytest.approx([0.5, 0.25, 0.25])
    assert [len(labels) for labels in Reader(rows(**names)).labels(logits, 2)] == [2, 2]
    several = Reader(rows(**names, problem_type="multi_label_classification"))
    assert several.labels(logits)[1][1].score == pytest.approx(0.5)
    numbers = Reader(rows(**names, problem_type="regression")).labels([{"out": np.asarray([-1, 2, -3], np.float32)}])
    assert [(label.index, label.score) for label in numbers[0]] == [(1, 2), (0, -1), (2, -3)]
    chosen = Reader(rows('output = [{step = "sigmoid", threshold = 0.6}]', **names))
    assert [[label.index for label in labels] for labels in chosen.labels(logits)] == [[1], [0]]
    best = Reader(rows('output = [{step = "softmax"}, {step = "argmax"}]', **names))
    assert [labels[0].label for labels in best.labels(logits)] == ["bee", "ant"]
    assert best.plain(logits)[1]["labels"] == best.labels(logits)[1]


def test_numbers_that_nobody_explains(tmp_path: Path, rows: Callable[..., Pipeline]) -> None:
    reader = Reader(rows())
    outputs = [{"out": np.asarray([1, 2, 3], np.float32)}]
    with pytest.raises(InvalidInputError, match="declare softmax or sigmoid"):
        reader.labels(outputs)
    assert reader.plain(outputs) == [{"outputs": {"out": [1, 2, 3]}}]
    labelled = Reader(rows('labels = ["x", "y", "z"]\noutput = [{step = "softmax"}]'))
    assert labelled.labels(outputs)[0][0].label == "z"
    with pytest.raises(InvalidInputError, match="2 labels for 3 outputs"):
        rows('labels = ["x", "y"]')


def test_scores_stay_finite_and_alone_is_as_in_company(rows: Callable[..., Pipeline]) -> None:
    reader = Reader(rows('output = [{step = "softmax"}]'))
    random = np.random.default_rng(1)
    many = [{"out": random.standard_normal(3).astype(np.float32) * 500} for _ in range(17)]
    together = reader.labels(many)
    assert together == [reader.labels([one])[0] for one in many]
    assert all(0 <= label.score <= 1 for labels in together for label in labels)


@pytest.mark.parametrize(
    ("step", "match"),
    [
        ('{step = "boxes", boxes = "b", scores = "t"}', "scores names 't'; the model gives b, s"),
        ('{step = "boxes", boxes = "a", scores = "s"}', "boxes names 'a'"),
        ('{step = "boxes", boxes = "s", scores = "s"}', r"boxes must be \[N, 4\] for an input; s is \[3, 3\]"),
        ('{step = "pool"}', "pool wants a vector per token"),
        ('{step = "box"}', "'box'"),
    ],
)
def test_output_steps_for_another_model(detector: Callable[..., Pipeline], step: str, match: str) -> None:
    with pytest.raises(ProcessingError, match=match):
        detector(step)


def test_boxes(detector: Callable[..., Pipeline]) -> None:
    step = '{step = "boxes", boxes = "b", scores = "s", form = "cxcywh", threshold = 0.3}'
    pipeline = detector(step)
    pipeline.labels = ("cat", "dog", "cow")
    reader = Reader(pipeline)
    boxes = np.asarray([[5, 5, 2, 2], [5.1, 5, 2, 2], [20, 20, 4, 4]], np.float32)
    scores = np.asarray([[0.9, 0.1], [0.8, 0.1], [0, 0.5]], np.float32)
    for form in (scores, scores.T):
        (found,) = reader.plain([{"b": boxes, "s": form}])
        assert [(box["label"], box["box"]) for box in found["boxes"]] == [  # type: ignore[attr-defined]
            ("cat", (4.0, 4.0, 6.0, 6.0)),
            ("dog", (18.0, 18.0, 22.0, 22.0)),
        ]
    for wrong in ({"b": boxes}, {"b": boxes, "s": scores[:2, :1]}, {"b": boxes[:, :3], "s": scores}):
        with pytest.raises(InvalidInputError, match="boxes"):
            reader.plain([wrong])


# Files


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("text = [{step = 'shout'}]", "shout"),
        ("texts = []", "texts"),
        ("text = [{step = 'lower', loud = true}]", "loud"),
        ("text = [{step = 'cut', chars = 0}]", "chars"),
        ("image = [{step = 'resize'}]", "either shortest"),
        ("image = [{step = 'scale'}, {step = 'resize', shortest = 4}]", "resize must come before"),
        ("image = [{step = 'normalise', mean = [0.5], std = [0.0]}]", "above 0"),
        ("row = [{step = 'min_max', low = [1], high = [1]}]", "below its high"),
        ("row = [{step = 'min_max', low = [1], high = [inf]}]", "finite"),
        ("row = [{step = 'standardise', mean = [nan], std = [1]}]", "finite"),
        ("row = [{step = 'standardise', mean = [0], std = [nan]}]", "finite"),
        ("row = [{step = 'fill', with = [nan]}]", "finite"),
        ("image = [{step = 'scale', by = inf}]", "finite"),
        ("image = [{step = 'normalise', mean = [0], std = [nan]}]", "finite"),
        ("output = [{step = 'sigmoid', threshold = 2}]", "threshold"),
        ("output = [{step = 'top_k'}]", "`k`"),
        ("output = 3", "output"),
        ("[batching]\nmax_batch = 3", "max_batch"),
        ("output = [", "cannot be read"),
        ('mode = "CMYK"', "CMYK"),
        ("text = [{step = 'lower'}]", "takes rows; the steps for text in processing.toml would never run"),
        ("image = [{step = 'scale'}]", "takes rows; the steps for image"),
    ],
)
def test_a_wrong_file_is_told_by_key(rows: Callable[..., Pipeline], text: str, match: str) -> None:
    with pytest.raises(ProcessingError, match=match) as caught:
        rows(text)
    assert "processing.toml" in str(caught.value)


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    readme = Path(__file__).parents[3] / "stages" / "05_server" / "README.md"
    (tmp_path / "processing.toml").write_text(readme.read_text("utf-8").split("```toml\n")[1].split("```")[0])
    steps = read_steps(tmp_path, Steps())
    assert steps.batching.given() == {"max_batch_size": 16, "max_wait_ms": 2.0}
    assert [len(part) for part in (steps.text, steps.image, steps.row, steps.output, steps.labels)] == [5, 5, 3, 2, 4]


@pytest.mark.parametrize("step", ["fill', with = [1, 2]", "min_max', low = [0, 0, 0], high = [1, 1, 1]"])
def test_steps_for_other_rows_than_the_model_takes(rows: Callable[..., Pipeline], step: str) -> None:
    with pytest.raises(ProcessingError, match=r"in row, .*has [23] values for rows of 4 columns; x has 4 columns"):
        rows(f"row = [{{step = '{step}}}]")
