"""Messages as tables of fields, and the two functions that every one of them needs.

    POINT = Message("Point", Field(1, "name", "string"), Field(2, "at", "int64", repeated=True))
    decode(POINT, data)                         {"name": "a", "at": [3, -1]}; a field that did not come is left out
    encode(POINT, {"name": "a", "at": [3, -1]})

Fields that a table does not have are skipped, as the format asks: a newer client may send them. Repeated floats and
doubles stay the bytes that they are on the wire, since these are a tensor's bytes, too.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aie_server.grpc.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    WireError,
    count_varints,
    read_fields,
    read_varints,
    write_varint,
)

__all__ = ["Field", "Message", "Values", "decode", "encode", "map_of"]

Values = dict[str, Any]

_MAX_FIELDS: Final = 1 << 17  # of one message with all in it: what decoding may cost
_MAX_NUMBERS: Final = 1 << 20  # of its packed lists, read one by one


def _signed(bits: int) -> Callable[[int], int]:
    """Two's complement: negative numbers come as the 64 bits that they have. The upper ones of a shorter type go."""
    return lambda value: ((value & (1 << bits) - 1) ^ 1 << bits - 1) - (1 << bits - 1)


_VARINTS: Final[Mapping[str, Callable[[int], int]]] = {
    "bool": bool,
    "int32": _signed(32),
    "int64": _signed(64),
    "uint32": lambda value: value & 0xFFFF_FFFF,
    "uint64": int,
}
_FIXED: Final = {"float": (FIXED32, struct.Struct("<f")), "double": (FIXED64, struct.Struct("<d"))}


@dataclass(frozen=True, slots=True)
class Field:
    """kind: bool, int32, int64, uint32, uint64, float, double, string, bytes, or another message."""

    number: int
    name: str
    kind: "str | Message"
    repeated: bool = False

    @property
    def wire_type(self) -> int:
        """Of one value by itself."""
        if self.kind in _VARINTS:
            return VARINT
        return _FIXED[self.kind][0] if isinstance(self.kind, str) and self.kind in _FIXED else BYTES


class Message:
    """choice: at most one of its fields is set, and it counts even where its value is the default."""

    def __init__(self, name: str, *fields: Field, choice: bool = False) -> None:
        self.name = name
        self.fields = {field.number: field for field in fields}
        self.choice = choice


def map_of(number: int, name: str, value: Message) -> Field:
    """A map from strings: on the wire, a list of messages with a key and a value."""
    return Field(number, name, Message(f"{name}.Entry", Field(1, "key", "string"), Field(2, "value", value)), True)


def decode(message: Message, data: bytes | memoryview) -> Values:
    """Raises `WireError` for bytes that are not such a message."""
    return _decode(message, memoryview(data), {}, _Budget())


def encode(message: Message, values: Mapping[str, Any]) -> bytes:
    """Fields by number; a default value is left out, as proto3 has it. values: of a wrong type are a bug of ours."""
    parts: list[bytes] = []
    assert values.keys() <= {field.name for field in message.fields.values()}, (message.name, values.keys())
    for field in message.fields.values():
        value = values.get(field.name)
        if value is None or (not message.choice and not value and not isinstance(field.kind, Message)):
            continue
        if not field.repeated:
            parts.append(_tagged(field, value))
        elif isinstance(field.kind, str) and field.wire_type != BYTES:
            packed = value if field.kind in _FIXED else b"".join(write_varint(one & (1 << 64) - 1) for one in value)
            parts.append(_tag(field, BYTES) + write_varint(len(packed)) + packed)
        else:
            parts.extend(_tagged(field, one) for one in value)
    return b"".join(parts)


class _Budget:
    """How many more fields, and packed numbers, may be read."""

    __slots__ = ("fields", "numbers")

    def __init__(self) -> None:
        self.fields, self.numbers = _MAX_FIELDS, _MAX_NUMBERS

    def spend_numbers(self, count: int) -> None:
        self.numbers -= count
        if self.numbers < 0:
            raise WireError(f"The message has more than {_MAX_NUMBERS} numbers that are no floats; send them raw.")

    def spend_field(self) -> None:
        self.fields -= 1
        if self.fields < 0:
            raise WireError(f"The message has more than {_MAX_FIELDS} fields; send numbers packed or raw.")


def _decode(message: Message, data: memoryview, values: Values, budget: _Budget) -> Values:
    """Into `values`: a message that comes in two pieces is merged."""
    for number, kind, raw in read_fields(data):
        budget.spend_field()
        field = message.fields.get(number)
        if field is None:
            continue
        if message.choice:
            values.clear()  # the last one counts
        where = f"{message.name}.{field.name}"
        if field.repeated and kind == BYTES and field.wire_type != BYTES:
            assert isinstance(raw, memoryview) and isinstance(field.kind, str)
            _extend(field, values, _unpacked(field.kind, raw, where, budget))
            continue
        if kind != field.wire_type:
            raise WireError(f"{where} came with the wire type {kind}; it has {field.wire_type}.")
        if not field.repeated:
            values[field.name] = _value(field.kind, raw, where, values.get(field.name), budget)
        elif field.kind in _FIXED:
            assert isinstance(raw, memoryview)
            _extend(field, values, bytearray(raw))
        else:
            _extend(field, values, [_value(field.kind, raw, where, None, budget)])
    return values


def _extend(field: Field, values: Values, more: list[Any] | bytearray) -> None:
    if field.name in values:
        values[field.name] += more
    else:
        values[field.name] = more


def _unpacked(kind: str, raw: memoryview, where: str, budget: _Budget) -> list[int] | bytearray:
    if kind in _VARINTS:
        budget.spend_numbers(count_varints(raw))
        return [_VARINTS[kind](value) for value in read_varints(raw)]
    if len(raw) % _FIXED[kind][1].size:
        raise WireError(f"{where} has {len(raw)} bytes, which is no whole number of {kind}s.")
    return bytearray(raw)


def _value(kind: str | Message, raw: int | memoryview, where: str, before: Values | None, budget: _Budget) -> Any:
    if isinstance(raw, int):
        assert isinstance(kind, str)
        return _VARINTS[kind](raw)
    if isinstance(kind, Message):
        return _decode(kind, raw, before if before is not None else {}, budget)
    if kind == "bytes":
        return bytes(raw)
    if kind == "string":
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise WireError(f"{where} is not UTF-8.") from None
    return _FIXED[kind][1].unpack(raw)[0]


def _tag(field: Field, wire_type: int) -> bytes:
    return write_varint(field.number << 3 | wire_type)


def _tagged(field: Field, value: Any) -> bytes:
    """One value with its tag, and with its length where it has one."""
    tag = _tag(field, field.wire_type)
    if field.kind in _VARINTS:
        return tag + write_varint(int(value) & (1 << 64) - 1)
    if isinstance(field.kind, str) and field.kind in _FIXED:
        return tag + _FIXED[field.kind][1].pack(value)
    if isinstance(field.kind, Message):
        body = encode(field.kind, value)
    else:
        body = value.encode() if field.kind == "string" else bytes(value)
    return tag + write_varint(len(body)) + body
