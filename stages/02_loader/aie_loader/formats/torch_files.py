"""PyTorch's `torch.save` files as checkpoints, without PyTorch and without running what they say.

Since 2020 such a file is a zip archive: `NAME/data.pkl` describes an object, `NAME/data/KEY` are the bytes of its
storages, uncompressed. Before that it was five pickles and then the storages (`torch_legacy.py`). We read state
dictionaries: texts to tensors. A dictionary around one (`{"epoch": 3, "model_state_dict": …}`) is seen through.

Format: PyTorch's notes on serialization, https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from aie_loader.errors import MalformedHeaderError, UnsupportedTensorTypeError
from aie_loader.formats.checkpoint import Checkpoint
from aie_loader.formats.leniency import STRICT, Leniency
from aie_loader.formats.pickle_machine import PickleMachine
from aie_loader.formats.source import SourceFile
from aie_loader.formats.torch_legacy import LEGACY_MAGIC, read_legacy
from aie_loader.formats.torch_names import read_storage_id, torch_names
from aie_loader.formats.torch_state import collect_tensors, materialize
from aie_loader.formats.zip_archive import ZipMember, read_member, read_zip_directory

__all__ = ["open_torch"]

_PICKLE = "/data.pkl"
_MAX_PICKLE_BYTES = 64 << 20


def open_torch(path: Path, *, lenient: Collection[Leniency] = STRICT) -> Checkpoint:
    """All tensors of a state dictionary. Contiguous ones are views of the mapped file, others are copies.

    UnsafePickleError where the file asks for anything but tensors; the message says for what. Nothing of it is run.
    """
    with SourceFile(path) as source:
        if source.read(0, min(len(LEGACY_MAGIC), source.size_bytes)) == LEGACY_MAGIC:
            root, places, pickle_bytes = read_legacy(source)
        else:
            root, places, pickle_bytes = _read_archive(source, lenient)
        views, metadata = collect_tensors(root, pickle_bytes, str(path))
        data = source.map()
    tensors = materialize(views, places, data, str(path))
    return Checkpoint(path, "torch", metadata, tensors, (path,), data.nbytes)


def _read_archive(
    source: SourceFile, lenient: Collection[Leniency]
) -> tuple[object, Mapping[str, tuple[int, int]], int]:
    """The described object, key → (offset, bytes) of each storage, and the length of the description."""
    members = read_zip_directory(source, lenient=lenient)
    pickles = [name for name in members if name.endswith(_PICKLE) and name.count("/") == 1]
    if len(pickles) != 1:
        raise MalformedHeaderError(f"{source.path} is not a PyTorch file: it has {len(pickles)} members NAME{_PICKLE}")
    prefix = pickles[0].removesuffix("data.pkl")
    if any(name.startswith((f"{prefix}code/", f"{prefix}constants.pkl")) for name in members):
        raise UnsupportedTensorTypeError(
            f"{source.path} is a TorchScript program, not a state dictionary; load it with torch.jit.load and save "
            "its state_dict() instead"
        )
    _check_byte_order(source, members.get(f"{prefix}byteorder"))
    pickle = members[pickles[0]]
    if pickle.num_bytes > _MAX_PICKLE_BYTES or pickle.compressed:
        raise MalformedHeaderError(
            f"{source.path}: its pickle has {pickle.num_bytes:,} bytes or is compressed; {_MAX_PICKLE_BYTES:,} "
            "bytes are allowed, and PyTorch compresses nothing"
        )
    raw, where = read_member(source, pickle), str(source.path)
    machine = PickleMachine(raw, where, torch_names(where), lambda identifier: read_storage_id(identifier, where))
    root = machine.run()
    if machine.position != len(raw):
        raise MalformedHeaderError(f"{where}: {len(raw) - machine.position:,} bytes follow the end of its pickle")
    return root, _places(members, f"{prefix}data/", where), len(raw)


def _check_byte_order(source: SourceFile, member: ZipMember | None) -> None:
    if member is not None and (member.num_bytes > 6 or read_member(source, member) != b"little"):
        raise MalformedHeaderError(f"{source.path} was saved in another byte order than little-endian")


def _places(members: Mapping[str, ZipMember], prefix: str, where: str) -> dict[str, tuple[int, int]]:
    places: dict[str, tuple[int, int]] = {}
    for name, member in members.items():
        if name.startswith(prefix):
            if member.compressed:
                raise MalformedHeaderError(f"{where}: storage {name!r} is compressed; PyTorch compresses nothing")
            places[name.removeprefix(prefix)] = (member.data_offset, member.num_bytes)
    return places
