"""PyTorch's file format before version 1.6 (2020): five pickles one after another, then the storages.

    magic number | protocol 1001 | sizes of the writer's integers | the object | keys of its storages
    per key, in that order: u64 number of elements, then the elements

The element types of the storages stand in the object's description, so that each storage's length is checked twice:
against the description, and against what is left of the file.
"""

from collections.abc import Mapping

from aie_loader.errors import MalformedHeaderError, TruncatedFileError
from aie_loader.formats.pickle_machine import PickleMachine
from aie_loader.formats.source import SourceFile
from aie_loader.formats.torch_names import Storage, read_storage_id, torch_names

__all__ = ["LEGACY_MAGIC", "read_legacy"]

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
LEGACY_MAGIC = b"\x80\x02\x8a\x0a" + _MAGIC_NUMBER.to_bytes(10, "little") + b"."  # its first pickle, byte for byte
_PROTOCOL = 1001
_MAX_PICKLE_BYTES = 64 << 20


def read_legacy(source: SourceFile) -> tuple[object, Mapping[str, tuple[int, int]], int]:
    """The described object, key → (offset, bytes) of each storage, and the length of the description."""
    where = str(source.path)
    storages: dict[str, Storage] = {}

    def persistent(identifier: object) -> object:
        storage = read_storage_id(identifier, where)
        if storages.setdefault(storage.key, storage) != storage:
            raise MalformedHeaderError(f"{where}: storage {storage.key[:40]!r} is described in two ways")
        return storage

    raw = source.read(0, min(source.size_bytes, _MAX_PICKLE_BYTES))
    machine = PickleMachine(raw, where, torch_names(where), persistent)
    magic, protocol, system = machine.run(), machine.run(), machine.run()
    if magic != _MAGIC_NUMBER or protocol != _PROTOCOL or not isinstance(system, dict):
        raise MalformedHeaderError(
            f"{where}: the three pickles before the object are not those of protocol {_PROTOCOL}"
        )
    if system.get("little_endian") is not True:
        raise MalformedHeaderError(f"{where} was saved in another byte order than little-endian")
    root, keys = machine.run(), machine.run()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or set(keys) != storages.keys():
        raise MalformedHeaderError(f"{where}: its list of storages is not that of the storages it describes")
    return root, _places(source, keys, storages, machine.position), machine.position


def _places(
    source: SourceFile, keys: list[str], storages: Mapping[str, Storage], position: int
) -> dict[str, tuple[int, int]]:
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        storage = storages[key]
        end = position + 8 + storage.num_bytes
        if end > source.size_bytes:
            raise TruncatedFileError(
                f"{source.path} is truncated: storage {key[:40]!r} ends at byte {end:,}, the file has "
                f"{source.size_bytes:,}"
            )
        said = int.from_bytes(source.read(position, 8), "little")
        if said != storage.num_elements or key in places:
            raise MalformedHeaderError(
                f"{source.path}: storage {key[:40]!r} says that it has {said:,} elements, its description "
                f"{storage.num_elements:,}; or it is listed twice"
            )
        places[key] = (position + 8, storage.num_bytes)
        position = end
    if position != source.size_bytes:
        raise MalformedHeaderError(f"{source.path}: {source.size_bytes - position:,} bytes follow the last storage")
    return places
