"""The stage's demonstration, part 1: the first bytes of the file, read by hand.

Nothing of the parsers is used here, only `struct` and a loop, so that the reader sees that there is no magic in a
format. What the parsers add is suspicion.
"""

import struct
from pathlib import Path

__all__ = ["show_header"]

_GGUF_SIZES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _LIST = 8, 9


def show_header(path: Path) -> None:
    """Print the first bytes of a GGUF or safetensors file with what they mean."""
    print(f"1. The header by hand: {path.name}\n")
    with path.open("rb") as file:
        start = file.read(4096)
    if start[:4] == b"GGUF":
        _show_gguf(start)
    else:
        _show_safetensors(start)
    print()


def _show_gguf(start: bytes) -> None:
    version, num_tensors, num_keys = struct.unpack_from("<IQQ", start, 4)
    _row(start, 0, 4, "the magic letters GGUF")
    _row(start, 4, 4, f"version {version}, little-endian")
    _row(start, 8, 8, f"{num_tensors} tensors")
    _row(start, 16, 8, f"{num_keys} keys follow")
    at = 24
    for _ in range(3):
        length = struct.unpack_from("<Q", start, at)[0]
        name = start[at + 8 : at + 8 + length].decode()
        kind = struct.unpack_from("<I", start, at + 8 + length)[0]
        value, end = _gguf_value(start, at + 12 + length, kind)
        _row(start, at, 8, f"a name of {length} letters: {name}")
        _row(start, at + 8 + length, end - at - 8 - length, f"type {kind}, value {value!r}")
        at = end
    print(
        "      … and so on: every key, then a row for each tensor (name, dimensions, type, offset), then the tensors."
    )


def _gguf_value(start: bytes, at: int, kind: int) -> tuple[object, int]:
    """The value at `at`, and where it ends. Lists are not followed: the demonstration shows the first three keys."""
    if kind == _TEXT:
        length = struct.unpack_from("<Q", start, at)[0]
        return start[at + 8 : at + 8 + length].decode(), at + 8 + length
    if kind == _LIST:
        return "a list", len(start)
    layout = _GGUF_SIZES[kind]
    return struct.unpack_from(layout, start, at)[0], at + struct.calcsize(layout)


def _show_safetensors(start: bytes) -> None:
    length = struct.unpack_from("<Q", start)[0]
    _row(start, 0, 8, f"the header has {length:,} bytes")
    text = start[8 : 8 + min(length, 400)].decode(errors="replace")
    _row(start, 8, 8, "which are JSON: names, types, shapes, and where each tensor begins and ends:")
    print(f"      {text[:100]}…")
    print(f"      … the tensors begin at byte {8 + length:,}, one after another, without gaps.")


def _row(start: bytes, at: int, count: int, meaning: str) -> None:
    shown = start[at : at + min(count, 8)].hex(" ")
    print(f"      {at:>5}  {shown:<24}{'…' if count > 8 else ' '} {meaning}")
