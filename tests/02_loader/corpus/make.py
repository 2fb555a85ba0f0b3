"""Makes the corpus: tiny files that have crashed a reader of models somewhere, or that a search of ours has found.

`python make.py` writes them beside itself, with `expected.json`: for each file the error that it must end in (`null`:
it must load) and words of its message. A file that ever breaks one of our parsers gets an entry here and stays.
"""

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
HUGE = (1 << 64) - 1
MALFORMED, TRUNCATED, UNSAFE = "MalformedHeaderError", "TruncatedFileError", "UnsafePickleError"
UNSUPPORTED = "UnsupportedTensorTypeError"

Entry = tuple[bytes, str | None, str]


def safetensors(header: str, data: bytes = b"", size: int | None = None) -> bytes:
    raw = header.encode("utf-8", "surrogatepass")
    return (len(raw) if size is None else size).to_bytes(8, "little") + raw + data


def row(name: str = "x", dtype: str = '"U8"', shape: str = "[4]", offsets: str = "[0,4]", more: str = "") -> str:
    return f'"{name}":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}{more}}}'


def safetensors_files() -> dict[str, Entry]:
    data = b"1234"
    return {
        "seven_bytes": (b"\1\0\0\0\0\0\0", TRUNCATED, "at least 8 bytes"),
        "header_of_0": (safetensors("", size=0), MALFORMED, "claims a header of 0 bytes"),
        "header_of_2_to_64": (safetensors("{}", size=HUGE), MALFORMED, "claims a header of 18,446"),
        "header_beyond_file": (safetensors("{}", size=99), TRUNCATED, "the header has 99 bytes"),
        "empty_metadata": (safetensors('{"__metadata__":{},' + row() + "}", data), None, ""),  # crashed a loader
        "null_metadata": (safetensors('{"__metadata__":null}'), MALFORMED, "null-metadata"),
        "metadata_twice": (safetensors('{"__metadata__":{},"__metadata__":{}}'), MALFORMED, "occurs twice"),
        "tensor_twice": (safetensors("{" + row() + "," + row(dtype='"I8"') + "}", data), MALFORMED, "duplicate-keys"),
        "unknown_field": (safetensors("{" + row(more=',"y":1') + "}", data), MALFORMED, "unknown-fields"),
        "minus_zero": (safetensors("{" + row(offsets="[-0,4]") + "}", data), MALFORMED, "data_offsets"),  # found here
        "true_as_size": (safetensors("{" + row(shape="[true,4]") + "}", data), MALFORMED, "shape is not a list"),
        "float_size": (safetensors("{" + row(shape="[4.0]") + "}", data), MALFORMED, "shape is not a list"),
        "size_overflows": (safetensors("{" + row(shape="[4294967296,4294967296]") + "}", data), MALFORMED, "2^63"),
        "reversed": (safetensors("{" + row(offsets="[4,0]") + "}", data), MALFORMED, "begin <= end"),
        "overlap": (
            safetensors("{" + row() + "," + row("y", offsets="[2,6]") + "}", data + b"56"), MALFORMED, "overlaps"),
        "hole": (safetensors("{" + row() + "," + row("y", offsets="[5,9]") + "}", bytes(9)), MALFORMED, "hole"),
        "polyglot": (safetensors("{" + row() + "}", data + b"PK\5\6" + bytes(18)), MALFORMED, "belong to no tensor"),
        "space_first": (safetensors(" {" + row() + "}", data), MALFORMED, "header-space"),
        "byte_order_mark": (safetensors("\ufeff{" + row() + "}", data), MALFORMED, "does not start with"),
        "surrogate": (safetensors('{"\\ud800":1}'), MALFORMED, "not valid UTF-8"),
        "not_a_number": (safetensors('{"x":NaN}'), MALFORMED, "NaN is not a JSON value"),
        "unended_string": (safetensors('{"' + '\\"' * 4000), MALFORMED, "not valid JSON"),  # quadratic time, found here
        "deep": (safetensors('{"x":' + "[" * 3000 + "]" * 3000 + "}"), MALFORMED, "nests deeper"),
        "path_as_name": (safetensors("{" + row("../../etc/passwd") + "}", data), None, ""),
        "half_bytes": (safetensors("{" + row(dtype='"F4"', shape="[8,1]") + "}", data), MALFORMED, "end on a byte"),
    }  # fmt: skip


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def gguf(
    keys: bytes = b"", rows: bytes = b"", data: bytes = b"", counts: tuple[int, int] = (0, 0), version: int = 3
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + keys + rows
    return head + bytes(-len(head) % 32) + data


def gguf_row(dims: tuple[int, ...], kind: int = 0, offset: int = 0, name: bytes = b"x") -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf_files() -> dict[str, Entry]:
    array = struct.pack("<I", 9)
    return {
        "magic_only": (b"GGUF", TRUNCATED, "the version"),
        "version_1": (gguf(version=1), MALFORMED, "version 1"),
        "big_endian": (gguf(version=3 << 24), MALFORMED, "big-endian"),
        "keys_2_to_64": (gguf(counts=(0, HUGE)), TRUNCATED, "number of metadata keys"),  # allocated first elsewhere
        "tensors_2_to_64": (gguf(counts=(HUGE, 0)), TRUNCATED, "number of tensors"),
        "key_of_2_to_64": (gguf(struct.pack("<Q", HUGE) + bytes(40), counts=(0, 1)), TRUNCATED, "metadata key 0"),
        "array_2_to_63": (  # makes the reference reader count to 2^63
            gguf(text(b"a") + array + struct.pack("<IQ", 0, 1 << 63), counts=(0, 1)), TRUNCATED, "the length of"),
        "arrays_in_arrays": (
            gguf(text(b"a") + array + (array + struct.pack("<Q", 1)) * 500 + bytes(24), counts=(0, 1)),
            MALFORMED, "nests arrays deeper"),
        "bool_of_7": (gguf(text(b"a") + struct.pack("<IB", 7, 7), counts=(0, 1)), MALFORMED, "neither 0 nor 1"),
        "alignment_0": (
            gguf(text(b"general.alignment") + struct.pack("<II", 4, 0), counts=(0, 1)), MALFORMED, "alignment is 0"),
        "alignment_of_one_byte": (  # found here
            gguf(text(b"general.alignment") + struct.pack("<IB", 0, 8), counts=(0, 1)), MALFORMED, "not a UINT32"),
        "exabytes": (  # a product beyond 64 bits looked like a few megabytes elsewhere
            gguf(rows=gguf_row((1 << 32, 1 << 32)), data=bytes(64), counts=(1, 0)), TRUNCATED, "ends at byte"),
        "size_2_to_63": (gguf(rows=gguf_row((1 << 63, 2)), counts=(1, 0)), MALFORMED, "each must be"),
        "no_rows": (gguf(rows=gguf_row((32, 0), 8), counts=(1, 0)), MALFORMED, "each must be"),
        "part_of_a_block": (gguf(rows=gguf_row((255,), 12), data=bytes(160), counts=(1, 0)), MALFORMED, "Q4_K blocks"),
        "type_99": (gguf(rows=gguf_row((4,), 99), data=bytes(32), counts=(1, 0)), UNSUPPORTED, "number 99"),
        "offset_2_to_64": (
            gguf(rows=gguf_row((4,), 0, HUGE - 31), data=bytes(32), counts=(1, 0)), TRUNCATED, "ends at byte"),
        "same_bytes_twice": (
            gguf(rows=gguf_row((8,)) + gguf_row((8,), name=b"y"), data=bytes(32), counts=(2, 0)),
            MALFORMED, "shared-tensors"),
        "part_2_of_60000": (
            gguf(text(b"split.count") + struct.pack("<IH", 2, 60000), counts=(0, 1)), MALFORMED, "split.count is"),
    }  # fmt: skip


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, raw in members.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), raw, method)
    return buffer.getvalue()


def npy(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + data


def numpy_files() -> dict[str, Entry]:
    sound = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4,)}", b"1234")
    objects = npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"cposix\nsystem\n(S'true'\ntR.")
    shared = bytearray(zipped({"a.npy": sound, "b.npy": sound}))
    second = shared.index(b"PK\1\2", shared.index(b"PK\1\2") + 1)
    shared[second + 42 : second + 46] = bytes(4)  # both rows of the directory show the first member
    shared[second + 46 : second + 51] = b"b.npy"
    comment = bytearray(zipped({"a.npy": sound}) + b"PK\5\6")
    comment[-6:-4] = struct.pack("<H", 4)
    return {
        "objects": (objects, UNSUPPORTED, "only pickle could read"),
        "objects_in_archive": (zipped({"x.npy": objects}), UNSUPPORTED, "only pickle could read"),
        "literal_bomb": (npy("{'descr': " + "(" * 4000), MALFORMED, "stands in the shape"),
        "size_overflows": (
            npy(f"{{'descr': '<f8', 'fortran_order': True, 'shape': ({1 << 61}, 8)}}"), MALFORMED, "2^63"),
        "zero_before_a_number": (  # found here
            npy("{'descr': '|u1', 'fortran_order': False, 'shape': (04,)}", b"1234"), MALFORMED, "not a tuple"),
        "header_of_4_gb": (b"\x93NUMPY\2\0\xff\xff\xff\xff{}", MALFORMED, "claims a header"),
        "bomb": (zipped({"x.npy": npy(
            "{'descr': '|u1', 'fortran_order': False, 'shape': (2000000,)}", bytes(2_000_000))}, zipfile.ZIP_DEFLATED),
            None, ""),  # 1000 : 1, but small: free
        "shared_members": (bytes(shared), MALFORMED, "another name"),
        "comment_like_an_end": (bytes(comment), TRUNCATED, "ends with its directory"),  # found here
        "script_first": (b"PK\3\4" + zipped({"x.npy": sound}), MALFORMED, "does not end where its end record"),
    }  # fmt: skip


def torch_files() -> dict[str, Entry]:
    def file(program: bytes) -> bytes:
        return zipped({"m/data.pkl": b"\x80\x02" + program, "m/byteorder": b"little", "m/data/0": bytes(24)})

    return {
        "system": (file(b"cposix\nsystem\nX\4\0\0\0true\x85R."), UNSAFE, "asks for 'posix.system'"),
        "by_stack": (file(b"\x8c\5posix\x8c\6system\x93)R."), UNSAFE, "asks for 'posix.system'"),
        "dotted": (file(b"\x8c\5torch\x8c\x10Size.__class__.x\x93."), UNSAFE, "'torch.Size.__class__.x'"),
        "instance": (file(b"(iposix\nsystem\n."), UNSAFE, "instruction INST"),
        "new_object": (file(b"ctorch\nSize\n)\x81."), UNSAFE, "instruction NEWOBJ"),
        "memo_2_to_31": (file(b"Nr\xff\xff\xff\x7f0."), UNSAFE, "instruction POP"),  # 16 GB in Python's machine
        "size_of_a_long_list": (  # quadratic memory, found here
            file(b"](" + b"K\1" * 3000 + b"eq\0" + b"ctorch\nSize\nq\1" + b"h\1h\0\x85R0" * 10),
            MALFORMED,
            "at most 32",
        ),
        "text_of_4_gb": (file(b"X\xff\xff\xff\xff"), TRUNCATED, "in the middle of an instruction"),
        "integer_of_2_gb": (file(b"\x8b\xff\xff\xff\x7f"), UNSAFE, "instruction LONG4"),
        "legacy_pickle": (pickle.dumps({"x": 1}, 2), "ModelFileError", "a bare pickle"),
    }


def main() -> None:
    expected: dict[str, dict[str, str | None]] = {}
    groups = {"safetensors": safetensors_files(), "gguf": gguf_files(), "npz": numpy_files(), "pt": torch_files()}
    for suffix, files in groups.items():
        for name, (raw, error, words) in files.items():
            (HERE / f"{name}.{suffix}").write_bytes(raw)
            expected[f"{name}.{suffix}"] = {"error": error, "words": words}
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
