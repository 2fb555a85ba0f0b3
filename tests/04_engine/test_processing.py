"""What stands before and after a predictor: steps, files, images, tensors."""

import contextlib
import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from aie_engine import InvalidInputError
from aie_engine.processing import (
    ImageError,
    Pipeline,
    ProcessingError,
    Reader,
    Steps,
    datatype_of,
    load_pipeline,
    read_steps,
    stacked,
    steps_of,
    tensor_from_bytes,
    tensor_from_json,
    tensor_to_bytes,
    vector_base64,
)

Image = pytest.importorskip("PIL.Image")
WORDS = ["[UNK]", "a", "b", "c", "d"]
MOST = 10_000  # pixels


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


def encoded(array: np.ndarray, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, form, **options)
    return buffer.getvalue()


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
        pipeline.image(b"", max_pixels=MOST)


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


def test_boxes(rows: Callable[..., Pipeline]) -> None:
    step = '{step = "boxes", boxes = "b", scores = "s", form = "cxcywh", threshold = 0.3}'
    reader = Reader(rows(f'labels = ["cat", "dog", "cow"]\noutput = [{step}]'))
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


# Images

STEPS = """image = [
    {step = "resize", height = 4, width = 6}, {step = "scale"}, {step = "normalise", mean = [0.5], std = [0.5]}
]"""


def test_an_image_becomes_what_the_model_looks_at(images: Callable[..., Pipeline]) -> None:
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    item = images(STEPS).image(encoded(pixels), max_pixels=MOST)
    expected = (pixels.astype(np.float32) / 255 - 0.5) / 0.5
    np.testing.assert_allclose(item.inputs["pixels"], expected.transpose(2, 0, 1), atol=1e-6)
    turned = images('image = [{step = "order", channels = "bgr"}]').image(encoded(pixels), max_pixels=MOST)
    np.testing.assert_array_equal(turned.inputs["pixels"][0], pixels[:, :, 2])
    grey = images('mode = "L"\n' + STEPS, 1).image(encoded(pixels), max_pixels=MOST)
    assert grey.inputs["pixels"].shape == (1, 4, 6)


def test_resize_crop_and_orientation(images: Callable[..., Pipeline]) -> None:
    pixels = np.zeros((8, 24, 3), np.uint8)
    pixels[:, 8:16] = 200
    crop = '{step = "crop", height = 4, width = 6}'
    item = images(f'image = [{{step = "resize", shortest = 4, filter = "nearest"}}, {crop}]')
    middle = item.image(encoded(pixels), max_pixels=MOST).inputs["pixels"]
    assert middle[0, 0].tolist() == [0, 200, 200, 200, 200, 0]
    bordered = images(f"image = [{crop}]").image(encoded(np.full((2, 2, 3), 9, np.uint8)), max_pixels=MOST)
    assert bordered.inputs["pixels"][0].sum() == 4 * 9
    tall = Image.fromarray(np.arange(72, dtype=np.uint8).reshape(6, 4, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    buffer = io.BytesIO()
    tall.save(buffer, "PNG", exif=exif)
    upright = images('image = [{step = "scale", by = 1.0}]').image(buffer.getvalue(), max_pixels=MOST)
    np.testing.assert_array_equal(upright.inputs["pixels"][0], np.rot90(np.asarray(tall)[:, :, 0], -1))


def test_steps_that_do_not_lead_to_the_model(images: Callable[..., Pipeline]) -> None:
    for text in ('image = [{step = "crop", height = 4, width = 4}]', 'mode = "L"\nimage = [{step = "scale"}]'):
        with pytest.raises(ProcessingError, match=r"pixels is \[3, 4, 6\]"):
            images(text)
    with pytest.raises(InvalidInputError, match="shape"):
        images('image = [{step = "scale"}]').image(encoded(np.zeros((5, 5, 3), np.uint8)), max_pixels=MOST)


@pytest.fixture
def alone(tmp_path: Path) -> Callable[..., Any]:
    """A model of images as far as `steps_of` looks at it."""

    def make(file: object = None, side: int = 28, width: int = 28) -> Any:
        if file is not None:
            text = file if isinstance(file, str) else json.dumps(file)
            (tmp_path / "preprocessor_config.json").write_text(text)
        wanted = SimpleNamespace(channels=1, height=side, width=width, mean=(0.1,), std=(0.3,))
        return SimpleNamespace(
            image=wanted, problem="single_label", output="image_logits", labels=("a", "b"), path=tmp_path
        )

    return make


def test_what_follows_from_a_model_alone(alone: Callable[..., Any]) -> None:
    steps = steps_of(alone())
    assert (steps.mode, steps.labels) == ("L", ("a", "b"))
    pixels = np.full((64, 40, 1), 255, np.uint8)
    for step in steps.image:
        pixels = step(pixels)
    assert pixels.shape == (28, 28, 1)
    np.testing.assert_allclose(pixels, 3, rtol=1e-6)
    assert [type(step).__name__ for step in steps.output] == ["Softmax", "TopK"]


@pytest.mark.parametrize(
    ("file", "side", "width", "expected"),
    [
        (None, 224, 224, (None, None, 256, "bilinear")),
        (None, 224, 320, (224, 320, None, "bilinear")),
        ({"crop_pct": 0.875, "resample": 3, "size": 224}, 224, 224, (None, None, 256, "bicubic")),
        ({"crop_pct": 0.875, "resample": 3, "size": {"shortest_edge": 384}}, 384, 384, (384, 384, None, "bicubic")),
        ({"size": {"height": 224, "width": 224}, "resample": 2}, 224, 224, (224, 224, None, "bilinear")),
        ({"size": 224, "resample": 0}, 224, 224, (224, 224, None, "nearest")),
        (
            {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True},
            224, 224, (None, None, 256, "bilinear"),
        ),
        ({"size": {"height": 240, "width": 250}, "crop_size": 224}, 224, 224, (240, 250, None, "bilinear")),
    ],
)  # fmt: skip
def test_resize_as_the_files_say(
    alone: Callable[..., Any], file: object, side: int, width: int, expected: tuple[object, ...]
) -> None:
    step: Any = steps_of(alone(file, side, width)).image[0]
    assert (step.height, step.width, step.shortest, step.filter) == expected


def test_files_that_leave_steps_out_or_are_wrong(alone: Callable[..., Any]) -> None:
    left = steps_of(alone({"do_resize": False, "do_rescale": False, "do_normalize": False})).image
    assert [type(step).__name__ for step in left] == ["Crop"]
    scaled: Any = steps_of(alone({"rescale_factor": 0.5, "do_normalize": False})).image[-1]
    assert scaled.by == 0.5
    for wrong in ('{"resample": 9}', '{"crop_pct": 0}', '{"size": "big"}', "{"):
        with pytest.raises(ProcessingError, match="preprocessor_config"):
            steps_of(alone(wrong))


def png_head(width: int, height: int) -> bytes:
    """A few bytes that claim to be a large image."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    data = zlib.compress(b"\0" * 100)
    return (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(head)) + chunk + struct.pack(">I", zlib.crc32(chunk))
        + struct.pack(">I", len(data)) + b"IDAT" + data + struct.pack(">I", zlib.crc32(b"IDAT" + data))
    )  # fmt: skip


def test_what_is_no_image_or_a_bomb(images: Callable[..., Pipeline]) -> None:
    pipeline = images(STEPS)
    whole = encoded(np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8).astype(np.uint8))
    for data in (b"", b"hello", b"GIF89a", whole[: len(whole) // 2], b"%!PS-Adobe-3.0 EPSF-3.0\n", whole[:20]):
        with pytest.raises(ImageError, match="not an image"):
            pipeline.image(data, max_pixels=MOST)
    for size in ((101, 100), (20_000, 20_000), (60_000, 60_000)):
        with pytest.raises(ImageError, match=r"10000|pixels"):
            pipeline.image(png_head(*size), max_pixels=MOST)


def test_damaged_files_raise_image_errors_only(images: Callable[..., Pipeline]) -> None:
    pipeline, random = images(STEPS), np.random.default_rng(3)
    picture = random.integers(0, 255, (12, 12, 3)).astype(np.uint8)
    for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        good = encoded(picture, form)
        pipeline.image(good, max_pixels=MOST)
        for _ in range(60):
            bad = bytearray(good)
            for place in random.integers(0, len(bad), 3):
                bad[place] = random.integers(0, 256)
            with contextlib.suppress(ImageError):
                pipeline.image(bytes(bad), max_pixels=MOST)


def test_sixteen_bits_and_palettes(images: Callable[..., Pipeline]) -> None:
    pipeline = images('image = [{step = "scale"}]')
    deep = np.full((4, 6), 0xFF00, np.uint16)
    np.testing.assert_allclose(pipeline.image(encoded(deep), max_pixels=MOST).inputs["pixels"], 1)
    palette = Image.fromarray(np.full((4, 6, 3), 255, np.uint8)).convert("P")
    buffer = io.BytesIO()
    palette.save(buffer, "GIF")
    np.testing.assert_allclose(pipeline.image(buffer.getvalue(), max_pixels=MOST).inputs["pixels"], 1, atol=0.02)


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
        ("output = [{step = 'sigmoid', threshold = 2}]", "threshold"),
        ("output = [{step = 'top_k'}]", "`k`"),
        ("output = 3", "output"),
        ("output = [", "cannot be read"),
        ('mode = "CMYK"', "CMYK"),
    ],
)
def test_a_wrong_file_is_told_by_key(rows: Callable[..., Pipeline], text: str, match: str) -> None:
    with pytest.raises(ProcessingError, match=match) as caught:
        rows(text)
    assert "processing.toml" in str(caught.value)


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    readme = Path(__file__).parents[2] / "stages" / "05_server" / "README.md"
    (tmp_path / "processing.toml").write_text(readme.read_text("utf-8").split("```toml\n")[1].split("```")[0])
    steps = read_steps(tmp_path, Steps())
    assert [len(part) for part in (steps.text, steps.image, steps.row, steps.output, steps.labels)] == [5, 5, 3, 2, 4]


# Tensors


@pytest.mark.parametrize("datatype", ["BOOL", "INT8", "UINT16", "INT32", "INT64", "UINT64", "FP16", "FP32", "FP64"])
def test_tensors_come_back_as_they_went(datatype: str) -> None:
    values: list[Any] = [True, False] if datatype == "BOOL" else [1, 2]
    if datatype != "FP16":
        tensor = tensor_from_json("x", datatype, [1, 2], values)
        assert tensor.array.tolist() == [values] and datatype_of(tensor.array) == datatype
        assert tensor_from_bytes("x", datatype, [1, 2], tensor_to_bytes(tensor.array)).array.tolist() == [values]
    else:
        assert tensor_from_bytes("x", datatype, [2], b"\0<\0@").array.tolist() == values


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("FP99", [1], [1]), ("FP32", [2], [1]), ("FP32", [1, 2], [[1], [2]]), ("FP32", [], [1]), ("FP32", [-1], [1]),
        ("FP32", [1], "1"), ("FP32", [1], ["1"]), ("FP32", [1], [True]), ("INT8", [1], [128]), ("INT32", [1], [1.5]),
        ("UINT8", [1], [-1]), ("BOOL", [1], [1]), ("BYTES", [1], [1]), ("FP16", [1], [1]), ("FP32", [2], [[1], 2]),
        ("FP32", [1] * 17, [1]), ("FP32", [1], [None]), ("FP32", [1 << 62, 4], [1]),
    ],
)  # fmt: skip
def test_bad_tensors_in_json(datatype: str, shape: list[int], data: object) -> None:
    with pytest.raises(InvalidInputError):
        tensor_from_json("x", datatype, shape, data)


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("FP32", [2], b"\0" * 4), ("FP32", [1 << 40], b""), ("BYTES", [1], b"\5\0\0\0abc"), ("BYTES", [2], b"\0\0\0\0"),
        ("BYTES", [1], b"\0\0\0\0x"), ("BYTES", [1 << 40], b""), ("BYTES", [1], b"\0\0"),
    ],
)  # fmt: skip
def test_bad_tensors_in_bytes(datatype: str, shape: list[int], data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        tensor_from_bytes("x", datatype, shape, data)
