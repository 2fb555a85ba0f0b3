"""A model into a new file or folder of the user's choice: written beside it, checked, then renamed.

What is there already is replaced only on demand, and only where it is itself a model; and never the model that is
being read.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aie_loader.errors import ModelFileError
from aie_loader.export.tensors import Layout
from aie_loader.export.writing import Progress, export_gguf, export_safetensors, written_tensors
from aie_loader.model import Model, load_model
from aie_loader.precision import Precision
from aie_tensor import EnvironmentLacksError, InvalidInputError

__all__ = ["check_free", "export_model", "format_of"]


def format_of(out: Path, precision: Precision | None = None) -> Layout:
    """`gguf` for a name that ends so, else `safetensors`, which is a folder.

    InvalidInputError for the name of another kind of file, and for blocks in a folder.
    """
    if out.suffix.lower() == ".gguf":
        return "gguf"
    if out.suffix.lower() in (".safetensors", ".bin", ".pt", ".npz"):
        raise InvalidInputError(f"{out} should be a .gguf file or a folder (for safetensors).", param="out")
    if precision is not None and precision.dtype.is_quantized:
        raise InvalidInputError(
            f"{out} would be a folder with safetensors, which holds fp32, fp16 or bf16; for {precision.name} name a "
            ".gguf file.",
            param="out",
        )
    return "safetensors"


def export_model(
    model: Model,
    out: Path | str,
    precision: Precision | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write `model` to `out`: a `.gguf` file, or a folder with safetensors. None: each tensor in its own type.

    What was written is loaded, and every tensor compared, before it appears under its name. InvalidInputError where
    something is in the way (`force` replaces a model), UnsupportedModelError and TokenizerError for what the format has
    no way to say, EnvironmentLacksError when the disk is full.
    """
    out = Path(out).expanduser()
    kind = format_of(out, precision)
    check_free(out, model, force=force)
    write = export_gguf if kind == "gguf" else export_safetensors
    with _replacing(out) as temporary:
        write(model, temporary, precision, progress=progress)
        _verify(model, temporary, precision, kind)
    return out


def check_free(out: Path, model: Model, *, force: bool) -> None:
    """InvalidInputError where `out` is or holds the model itself, or exists and may not be replaced."""
    source = model.path.resolve()
    if out.resolve() in (source, source.parent if model.format == "safetensors" and source.is_file() else source):
        raise InvalidInputError(f"{out} is the model that is read; choose another name.", param="out")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not force:
        raise InvalidInputError(f"{out} exists; choose another name, or --force to replace it.", param="out")
    if source.is_relative_to(out.resolve()):
        raise InvalidInputError(f"{out} holds the model that is read; choose another name.", param="out")
    if not (_is_model_folder(out) if format_of(out) == "safetensors" else _is_gguf(out)):
        raise InvalidInputError(f"{out} exists and is no such model, so --force does not replace it.", param="out")


def _is_model_folder(path: Path) -> bool:
    """Whether a folder holds a model and, as far as can be seen, nothing that would be missed."""
    if not path.is_dir() or not (path / "config.json").is_file():
        return False
    folders = {entry.name for entry in path.iterdir() if entry.is_dir()}
    weights = (entry for entry in path.iterdir() if entry.suffix in (".safetensors", ".bin"))
    return any(weights) and folders <= {"additional_chat_templates"}


def _is_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) in (b"GGUF", b"")  # of an empty file nothing is lost


def _verify(model: Model, written: Path, precision: Precision | None, kind: Layout) -> None:
    """Loads, and holds what was meant to be written. ModelFileError otherwise: then the disk, or we, have failed."""
    again = load_model(written)
    try:
        for name, tensor in written_tensors(model, kind, precision).items():
            if bytes(again.checkpoint[name].data) != bytes(tensor.matrix().data):
                raise ModelFileError(f"{written}: tensor {name!r} does not hold what was written")
    finally:
        again.close()


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """A name beside `out` whose file or folder takes its place when the block ends well, and is removed otherwise."""
    new, old = (out.with_name(f".{out.stem}.{secrets.token_hex(4)}{end}") for end in (f".tmp{out.suffix}", ".old"))
    try:
        yield new
        if out.is_dir():
            os.replace(out, old)
        os.replace(new, out)
    except EnvironmentLacksError as error:  # it names a file that is gone by now
        raise EnvironmentLacksError(str(error).replace(str(new), str(out))) from error
    except OSError as error:
        raise EnvironmentLacksError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        if old.exists() and not out.exists():
            os.replace(old, out)  # the rename failed half way
        for left in (new, old):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                with suppress(OSError):  # it may never have been there, nor its folder
                    left.unlink()
