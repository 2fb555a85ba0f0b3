"""The codec: bytes known from the format's documentation, limits, and google.protobuf where it is installed."""

import importlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_server.grpc import protocol
from aie_server.grpc.schema import Field, Message, Values, decode, encode
from aie_server.grpc.wire import WireError, count_varints, read_varints, write_varint

INNER = Message("Inner", Field(1, "at", "int64"), Field(2, "name", "string"))
ALL = Message(
    "All",
    Field(1, "number", "int32"),
    Field(2, "text", "string"),
    Field(3, "inner", INNER),
    Field(4, "many", "int32", repeated=True),
    Field(5, "floats", "float", repeated=True),
    Field(6, "real", "double"),
    Field(7, "parts", "bytes", repeated=True),
    Field(8, "flag", "bool"),
    Field(9, "inners", INNER, repeated=True),
    Field(10, "small", "uint32", repeated=True),
    Field(11, "large", "uint64", repeated=True),
    Field(12, "single", "float"),
    Field(13, "doubles", "double", repeated=True),
    Field(14, "longs", "int64", repeated=True),
)
REQUEST, RESPONSE = protocol.METHODS["ModelInfer"]


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        (b"", {}),
        (b"\x08\x96\x01", {"number": 150}),
        (b"\x12\x07testing", {"text": "testing"}),
        (b"\x1a\x03\x08\x96\x01", {"inner": {"at": 150}}),
        (b"\x22\x06\x03\x8e\x02\x9e\xa7\x05", {"many": [3, 270, 86942]}),
        (b"\x08" + b"\xff" * 9 + b"\x01", {"number": -1}),
        (b"\x2a\x04" + struct.pack("<f", 1.5), {"floats": struct.pack("<f", 1.5)}),
        (b"\x31" + struct.pack("<d", -2.5), {"real": -2.5}),
        (b"\x3a\x00\x3a\x01x", {"parts": [b"", b"x"]}),
        (b"\x40\x01", {"flag": True}),
        (b"\x4a\x02\x08\x01\x4a\x00", {"inners": [{"at": 1}, {}]}),
        (b"\x65" + struct.pack("<f", 0.5), {"single": 0.5}),
    ],
)
def test_known_bytes(raw: bytes, values: Values) -> None:
    assert decode(ALL, raw) == values
    assert encode(ALL, values) == raw


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        (b"\x08\x01\x08\x02", {"number": 2}),  # the last one counts
        (b"\x1a\x02\x08\x01\x1a\x03\x12\x01x", {"inner": {"at": 1, "name": "x"}}),  # pieces of a message are merged
        (b"\x20\x01\x22\x02\x02\x03\x20\x04", {"many": [1, 2, 3, 4]}),  # packed and by itself, mixed
        (b"\x2d" + b"abcd" + b"\x2a\x04" + b"efgh", {"floats": b"abcdefgh"}),
        (b"\xf8\x07\x01\xfa\x07\x01x\xf9\x07" + b"8" * 8 + b"\xfd\x07" + b"4" * 4, {}),  # unknown fields of each type
        (b"\x88\x00\x05", {"number": 5}),  # a varint longer than it must be
        (b"\x08\xff\xff\xff\xff\x1f", {"number": -1}),  # what a shorter type cannot hold falls off
        (b"\x52\x05\xff\xff\xff\xff\x1f", {"small": [0xFFFF_FFFF]}),
    ],
)
def test_what_others_may_write(raw: bytes, values: Values) -> None:
    assert decode(ALL, raw) == values


@pytest.mark.parametrize(
    "raw",
    [
        b"\x08",  # no value
        b"\x08\x80",  # half a number
        b"\x08" + b"\xff" * 10 + b"\x01",  # more than 64 bits
        b"\x12\x05abc",  # shorter than it says
        b"\x31abc",
        b"\x00\x01",  # no field has the number 0
        b"\x0b\x0c",  # a group
        b"\x0f",  # no such type
        b"\x12\x01\xff",  # no UTF-8
        b"\x0a\x01x",  # a number as bytes
        b"\x10\x01",  # a text as a number
        b"\x2a\x03abc",  # no whole number of floats
        b"\x22\x01\x80",
        b"\x12" + b"\xff" * 9 + b"\x01",
    ],
)
def test_what_is_no_message(raw: bytes) -> None:
    with pytest.raises(WireError):
        decode(ALL, raw)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    for takes, _ in protocol.METHODS.values():
        try:
            values = decode(takes, raw)
        except WireError:
            continue
        assert decode(takes, encode(takes, values)) is not None


def test_limits() -> None:
    numbers = encode(REQUEST, {"inputs": [{"contents": {"int_contents": [5] * (1 << 16)}}]})
    assert count_varints(memoryview(b"\x80\x01\x05\x80\x80\x01")) == 3
    with pytest.raises(WireError, match="send them raw"):  # over all lists, however many
        decode(REQUEST, numbers * ((1 << 4) + 1))
    with pytest.raises(WireError, match="131072 fields"):
        decode(REQUEST, encode(REQUEST, {"inputs": [{}]}) * ((1 << 17) + 1))


@given(st.integers(0, (1 << 64) - 1))
def test_varints(value: int) -> None:
    assert read_varints(memoryview(write_varint(value))) == [value]


def test_a_choice_is_the_last_one_and_may_be_a_default() -> None:
    parameter = {"key": "a", "value": {"bool_param": False}}
    raw = encode(REQUEST, {"parameters": [parameter]})
    assert raw == b"\x22\x07\x0a\x01a\x12\x02\x08\x00"
    assert decode(REQUEST, raw) == {"parameters": [parameter]}
    both = b"\x22\x0a\x0a\x01a\x12\x05\x08\x01\x1a\x01x"
    assert decode(REQUEST, both)["parameters"][0]["value"] == {"string_param": "x"}


# Against Google's own library

_KINDS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13
}  # fmt: skip


def google_class(message: Message) -> Any:
    """The same table as a class of google.protobuf."""
    pytest.importorskip("google.protobuf", reason="google.protobuf is not installed; it is no dependency")
    descriptor_pb2, pool, factory = (
        importlib.import_module(f"google.protobuf.{name}")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    file = descriptor_pb2.FileDescriptorProto(name="ours.proto", package="ours", syntax="proto3")
    names: dict[int, str] = {}

    def add(one: Message) -> str:
        if id(one) in names:
            return names[id(one)]
        names[id(one)] = name = f"M{len(names)}"
        made = descriptor_pb2.DescriptorProto(name=name)
        if one.choice:
            made.oneof_decl.add(name="choice")
        for field in one.fields.values():
            entry = made.field.add(name=field.name, number=field.number, label=3 if field.repeated else 1)
            if isinstance(field.kind, Message):
                entry.type, entry.type_name = 11, f".ours.{add(field.kind)}"
            else:
                entry.type = _KINDS[field.kind]
            if one.choice:
                entry.oneof_index = 0
        file.message_type.append(made)
        return name

    name = add(message)
    made = pool.DescriptorPool()
    made.Add(file)
    return factory.GetMessageClass(made.FindMessageTypeByName(f"ours.{name}"))


_i32, _i64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
_inner = st.fixed_dictionaries({}, optional={"at": _i64.filter(bool), "name": st.text(min_size=1)})
_floats = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5)
_values = st.fixed_dictionaries(
    {},
    optional={
        "number": _i32.filter(bool),
        "text": st.text(min_size=1),
        "inner": _inner,
        "many": st.lists(_i32, min_size=1),
        "floats": _floats,
        "doubles": _floats,
        "real": st.floats(allow_nan=False).filter(bool),
        "parts": st.lists(st.binary(), min_size=1),
        "flag": st.just(True),
        "inners": st.lists(_inner, min_size=1, max_size=3),
        "small": st.lists(st.integers(0, (1 << 32) - 1), min_size=1),
        "large": st.lists(st.integers(0, (1 << 64) - 1), min_size=1),
        "longs": st.lists(_i64, min_size=1),
    },
)


def _ours(values: Values) -> Values:
    codes = {"floats": "f", "doubles": "d"}
    return {
        name: struct.pack(f"<{len(value)}{codes[name]}", *value) if name in codes else value
        for name, value in values.items()
    }


def test_as_googles_library_has_it() -> None:
    google = google_class(ALL)

    @given(_values)
    def check(values: Values) -> None:
        theirs = google(**values).SerializeToString(deterministic=True)
        assert encode(ALL, _ours(values)) == theirs
        assert decode(ALL, theirs) == _ours(values)

    check()
