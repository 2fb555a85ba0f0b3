"""Images: files into what a model looks at, and files that are none."""

import contextlib
import io
import json
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aie_engine import EnvironmentLacksError, InvalidInputError
from aie_engine.processing import (
    ImageError,
    Pipeline,
    ProcessingError,
    steps_of,
)

Image = pytest.importorskip("PIL.Image")
MOST = 10_000  # pixels


def encoded(array: np.ndarray, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, form, **options)
    return buffer.getvalue()


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


def test_a_line_of_pixels_is_not_resized_into_gigabytes(images: Callable[..., Pipeline]) -> None:
    crop = '{step = "crop", height = 4, width = 6}'
    resized = images(f'image = [{{step = "resize", shortest = 256, filter = "nearest"}}, {crop}]')
    for shape in ((1, 1000, 3), (1000, 1, 3)):  # 256 × 256,000 pixels, and the other way round
        with pytest.raises(ImageError, match=r"^input\[1\]: .* 256000") as refused:
            resized.image(encoded(np.zeros(shape, np.uint8)), max_pixels=MOST, param="input[1]")
        assert refused.value.param == "input[1]"
    assert resized.image(encoded(np.zeros((1, 500, 3), np.uint8)), max_pixels=MOST).inputs["pixels"].shape == (3, 4, 6)


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


def test_without_pillow_everything_but_files(images: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(np.zeros((4, 6, 3), np.uint8))
    monkeypatch.setitem(sys.modules, "PIL", None)
    pipeline = images(STEPS)
    with pytest.raises(EnvironmentLacksError, match=r"pip install 'aie\[images\]'"):
        pipeline.image(data, max_pixels=MOST)
    assert len(pipeline.arrays({"pixels": np.zeros((1, 3, 4, 6)).tolist()})) == 1


def test_sixteen_bits_and_palettes(images: Callable[..., Pipeline]) -> None:
    pipeline = images('image = [{step = "scale"}]')
    deep = np.full((4, 6), 0xFF00, np.uint16)
    np.testing.assert_allclose(pipeline.image(encoded(deep), max_pixels=MOST).inputs["pixels"], 1)
    palette = Image.fromarray(np.full((4, 6, 3), 255, np.uint8)).convert("P")
    buffer = io.BytesIO()
    palette.save(buffer, "GIF")
    np.testing.assert_allclose(pipeline.image(buffer.getvalue(), max_pixels=MOST).inputs["pixels"], 1, atol=0.02)
