"""One way into all formats: what a file is, is what its first bytes say, not its name.

    "GGUF"                          GGUF
    "PK\\3\\4" and a data.pkl inside  PyTorch
    "PK\\3\\4" otherwise              NumPy's .npz
    "\\x93NUMPY"                     NumPy's .npy
    the old PyTorch magic pickle    PyTorch before 1.6
    8 bytes of length, then "{"     safetensors

Some other formats are recognised only so that the error can say what a file is.
"""

import re
from collections.abc import Collection
from pathlib import Path

from aie_loader.errors import MissingFileError, ModelFileError
from aie_loader.formats.checkpoint import Checkpoint
from aie_loader.formats.gguf import open_gguf
from aie_loader.formats.gguf_split import is_later_part
from aie_loader.formats.leniency import STRICT, Leniency
from aie_loader.formats.npy import MAGIC as NPY_MAGIC
from aie_loader.formats.numpy_files import open_npy, open_npz
from aie_loader.formats.safetensors import open_safetensors
from aie_loader.formats.shards import INDEX_SUFFIX, Opener, open_index
from aie_loader.formats.source import SourceFile, path_kind
from aie_loader.formats.torch_files import open_torch
from aie_loader.formats.torch_legacy import LEGACY_MAGIC
from aie_loader.formats.zip_archive import read_zip_directory
from aie_tensor import EnvironmentLacksError

__all__ = ["open_checkpoint"]

# In this order: where a folder has the same weights in several formats, the safest and fastest one is taken.
_FOLDER_FILES: tuple[tuple[str, Opener], ...] = (
    ("model.safetensors", open_safetensors),
    ("pytorch_model.bin", open_torch),
)
_SUFFIXES: dict[str, Opener] = {
    ".safetensors": open_safetensors, ".gguf": open_gguf, ".npz": open_npz, ".npy": open_npy,
    ".pt": open_torch, ".pth": open_torch, ".bin": open_torch, ".ckpt": open_torch,
}  # fmt: skip
_HEAD_BYTES = 512
_STARTS: tuple[tuple[bytes, Opener], ...] = (
    (b"GGUF", open_gguf), (b"FUGG", open_gguf), (NPY_MAGIC, open_npy), (LEGACY_MAGIC, open_torch),
)  # fmt: skip
_FOREIGN = (
    (re.compile(rb"\x89HDF\r\n\x1a\n"), "an HDF5 file (Keras); save its weights as .npz or .safetensors"),
    (re.compile(rb"(lmgg|fmgg|tjgg|algg|ggla|ggjt|ggmf|ggml)"), "a GGML file from before GGUF; convert it to GGUF"),
    (re.compile(rb"\x08[\x01-\x0f]\x12.{0,40}?(pytorch|onnx|tf2onnx|\x1a)", re.DOTALL), "an ONNX graph"),
    (re.compile(rb".{4}TFL3", re.DOTALL), "a TensorFlow Lite model"),
    (re.compile(rb"\x1f\x8b"), "compressed by gzip; unpack it first"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "compressed by zstd; unpack it first"),
    (
        re.compile(rb".{257}ustar", re.DOTALL),
        "a tar archive; unpack it, or save it anew if PyTorch before 0.1.10 made it",
    ),
    (re.compile(rb"version https://git-lfs"), "a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
    (re.compile(rb"\s*<(!DOCTYPE|html)", re.IGNORECASE), "a web page: the download gave an error page, not the file"),
    (
        re.compile(rb"\x80[\x02-\x05]"),
        "a bare pickle, which can run code when it is read; save tensors with torch.save",
    ),
)


def open_checkpoint(path: Path | str, *, lenient: Collection[Leniency] = STRICT) -> Checkpoint:
    """Open the weights at `path`: a file of any known format, an index of shards, or a folder with one of these.

    The header is validated first, then the file is mapped; errors are leaves of ModelFileError and name the rule that
    is broken. `lenient` names differences to let through. ModelFileError where no known format begins like this.
    """
    path = Path(path)
    if path_kind(path) == "folder":
        checkpoint = _open_folder(path, lenient)
        checkpoint.path = path
        return checkpoint
    if path.name.endswith(INDEX_SUFFIX):
        return open_index(path, _open_file, lenient=lenient)
    return _open_file(path, lenient=lenient)


def _open_file(path: Path, *, lenient: Collection[Leniency] = STRICT) -> Checkpoint:
    return _recognise(path, lenient)(path, lenient=lenient)


def _recognise(path: Path, lenient: Collection[Leniency]) -> Opener:
    with SourceFile(path) as source:
        head = source.read(0, min(_HEAD_BYTES, source.size_bytes))
        if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            names = read_zip_directory(source, lenient=lenient)
            return open_torch if any(name.endswith("/data.pkl") for name in names) else open_npz
    if head[4:9] == b"\0\0\0\0{":  # a header of less than 4 GB; its low bytes may look like anything below
        return open_safetensors
    for start, opener in _STARTS:
        if head.startswith(start):
            return opener
    for pattern, what in _FOREIGN:
        if pattern.match(head):
            raise ModelFileError(f"{path} is {what}")
    # What it should be by its name, so that its parser says what is wrong with it.
    by_name = open_safetensors if head[8:].lstrip()[:1] == b"{" else _SUFFIXES.get(path.suffix.lower())
    if by_name is not None:
        return by_name
    raise ModelFileError(
        f"{path} begins like no format of model files that aie reads: safetensors, GGUF, NumPy (.npz, .npy), PyTorch"
    )


def _open_folder(folder: Path, lenient: Collection[Leniency]) -> Checkpoint:
    for name, opener in _FOLDER_FILES:
        index = folder / (name + INDEX_SUFFIX)
        if path_kind(index) == "file":
            return open_index(index, opener, lenient=lenient)
        if path_kind(folder / name) is not None:
            return opener(folder / name, lenient=lenient)
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise EnvironmentLacksError(f"{folder} cannot be listed: {error}") from error
    named = [path for path in inside if path.suffix.lower() in _SUFFIXES and not is_later_part(path)]
    others = [path for path in named if path_kind(path) == "file"]
    if len(others) == 1:
        return _open_file(others[0], lenient=lenient)
    known = ", ".join(name for name, _ in _FOLDER_FILES)
    found = f"; it has {len(others)} others, such as {others[0].name}: name one of them" if others else ""
    raise MissingFileError(f"{folder} holds neither {known} nor an index of shards{found}")
