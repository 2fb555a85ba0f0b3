"""Writers: what we write, the reference libraries and our own parsers read back, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file

from aie_loader import load_model
from aie_loader.formats import open_gguf, open_safetensors
from aie_loader.formats.gguf_writer import write_gguf
from aie_loader.formats.replacing import replacing
from aie_loader.formats.safetensors_writer import PendingTensor, write_safetensors
from aie_tensor import DType, EnvironmentLacksError, InvalidInputError, Matrix, quantize

VALUES = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
FLOATS = (DType.F32, DType.F16, DType.BF16)


def test_safetensors_of_every_type(tmp_path: Path) -> None:
    plain = [dtype for dtype in DType if not dtype.is_quantized]
    raw = np.arange(16 * 8, dtype=np.uint8) % 2
    tensors = {dtype.name: Matrix(dtype, (4, 4), raw[: dtype.nbytes(16)]) for dtype in plain}
    path = write_safetensors(tmp_path / "a.safetensors", tensors, {"made": "hère"})
    read = dict(safetensors.deserialize(path.read_bytes()))
    ours = open_safetensors(path)
    assert set(read) == set(ours) == set(tensors)
    assert ours.metadata == {"made": "hère"}
    for name, matrix in tensors.items():
        assert (read[name]["dtype"], read[name]["shape"]) == (name, [4, 4])
        assert bytes(read[name]["data"]) == bytes(ours[name].data) == bytes(matrix.data)


@pytest.mark.parametrize("dtype", FLOATS)
def test_safetensors_converts_what_is_made_late(dtype: DType, tmp_path: Path) -> None:
    tensors = {"x": PendingTensor((6, 64), lambda: VALUES, dtype), "y": PendingTensor((3,), lambda: VALUES[0, :3])}
    path = write_safetensors(tmp_path / "a.safetensors", tensors)
    ours = open_safetensors(path)
    assert bytes(ours["x"].data) == bytes(quantize(VALUES, dtype).data)
    if dtype is not DType.BF16:
        np.testing.assert_array_equal(load_file(path)["x"], VALUES.astype(dtype.numpy))


def test_tensors_are_aligned_where_they_are_mapped(tmp_path: Path) -> None:
    tensors = {
        "odd": Matrix.from_array(np.zeros(3, np.uint8)),
        "half": Matrix.from_array(np.zeros(5, np.float16)),
        "double": Matrix.from_array(np.zeros(1)),
        "single": Matrix.from_array(np.zeros(3, np.float32)),
    }
    ours = open_safetensors(write_safetensors(tmp_path / "ä.safetensors", tensors))
    assert list(ours) == ["double", "single", "half", "odd"]
    for matrix in ours.values():
        assert matrix.data.ctypes.data % matrix.dtype.block_bytes == 0


def test_safetensors_has_no_blocks(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="tensor 'x' is Q8_0, which safetensors cannot hold; write GGUF"):
        write_safetensors(tmp_path / "a", {"x": quantize(VALUES, DType.Q8_0)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [*FLOATS, DType.Q8_0, DType.Q4_0, DType.Q4_1])
def test_gguf_of_every_type_that_we_make(dtype: DType, tmp_path: Path) -> None:
    late = PendingTensor(VALUES.shape, lambda: VALUES, dtype)
    path = write_gguf(
        tmp_path / "a.gguf", {"general.architecture": "none"}, {"late": late, "now": quantize(VALUES, dtype)}
    )
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    ours = open_gguf(path)
    for name in ("late", "now"):
        assert theirs[name].tensor_type.name == dtype.name
        assert bytes(ours[name].data) == theirs[name].data.tobytes()
        expanded = gguf.dequantize(theirs[name].data, theirs[name].tensor_type).astype(np.float32)
        assert ours[name].dequantize().tobytes() == expanded.tobytes()


def test_gguf_blocks_are_copied_as_they_are(tmp_path: Path) -> None:
    """A block type that we cannot make can still be moved from one file to another."""
    raw = np.random.default_rng(1).integers(0, 256, 2 * 144, dtype=np.uint8)
    path = write_gguf(tmp_path / "a.gguf", {"general.alignment": 128}, {"x": Matrix(DType.Q4_K, (2, 256), raw)})
    assert bytes(open_gguf(path)["x"].data) == raw.tobytes()
    assert gguf.GGUFReader(path).tensors[0].data.tobytes() == raw.tobytes()
    assert gguf.GGUFReader(path).data_offset % 128 == 0


def test_gguf_metadata_survives_a_round_trip(tmp_path: Path) -> None:
    metadata = {"text": "é", "nested": [[1, 2], [3]], "none": [], "huge": (1 << 64) - 1, "flags": [True], "small": -1}
    first = write_gguf(tmp_path / "a.gguf", metadata, {})
    read = open_gguf(first).metadata
    assert read == metadata
    second = write_gguf(tmp_path / "b.gguf", read, {})
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (Matrix(DType.F8_E4M3, (2,), np.zeros(2, np.uint8)), "is F8_E4M3; GGUF can hold F32"),
        (Matrix.from_array(np.zeros((), np.float32)), "1 to 4 dimensions"),
        (Matrix.from_array(np.zeros((1,) * 5, np.float32)), "1 to 4 dimensions"),
        (Matrix.from_array(np.zeros((2, 0), np.float32)), "none of 0"),
    ],
)
def test_gguf_refuses_what_the_format_cannot_hold(matrix: Matrix, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=words):
        write_gguf(tmp_path / "a.gguf", {}, {"x": matrix})
    assert list(tmp_path.iterdir()) == []


Writer = Callable[[Path, dict[str, Any]], Path]


@pytest.mark.parametrize("write", [write_safetensors, lambda path, tensors: write_gguf(path, {}, tensors)])
def test_a_failure_half_way_leaves_the_old_file(write: Writer, tmp_path: Path) -> None:
    def fail() -> Any:
        raise InvalidInputError("the source is broken")

    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(InvalidInputError, match="the source is broken"):
        write(path, {"x": Matrix.from_array(VALUES), "y": PendingTensor((1,), fail)})
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EnvironmentLacksError, match="cannot be written"), replacing(tmp_path / "file" / "a"):
        pass


def test_a_model_of_blocks_that_no_kernel_reads_loads(tiny_gguf: Path, tmp_path: Path) -> None:
    checkpoint = open_gguf(tiny_gguf)
    tensors = dict(checkpoint)
    for name, matrix in checkpoint.items():
        if matrix.dtype.is_quantized:
            blocks = gguf.quantize(matrix.dequantize(), gguf.GGMLQuantizationType.Q5_1)
            tensors[name] = Matrix(DType.Q5_1, matrix.shape, blocks.reshape(-1).view(np.uint8))
    model = load_model(write_gguf(tmp_path / "q5_1.gguf", checkpoint.metadata, tensors))
    weight = model.graph.weights["blk.0.ffn_up.weight"]
    assert weight.dtype is DType.Q5_1
    np.testing.assert_allclose(weight.dequantize(), checkpoint["blk.0.ffn_up.weight"].dequantize(), atol=0.02)
