"""A pickle is a program for a stack machine. This is that machine without the instructions that can do harm.

Python's own machine looks up any function by its name and calls it, which is why unpickling a stranger's file is
running a stranger's program. Ours builds texts, numbers, lists, tuples and dictionaries, and knows names only from the
list that its caller gives; it cannot import. Every other name is refused, and the error says which one was asked for.

It also stays small: an instruction takes at least one byte, the memo is a dictionary (Python's is an array as long as
the largest index that the file mentions), integers have at most 255 bytes, and keys are texts or integers, so that
nothing recurses however deep the file nests. Time and memory are linear in the bytes of the program.

Instructions: CPython's `Lib/pickletools.py`, protocols 2 to 5, of which PyTorch writes 2.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pickletools import opcodes

from aie_loader.errors import MalformedHeaderError, TruncatedFileError, UnsafePickleError

__all__ = ["Named", "PickleMachine"]

_MARK = object()
_MAX_PROTOCOL = 5
_MAX_INSTRUCTIONS = 4_000_000
_CONSTANTS: dict[bytes, object] = {b"N": None, b"\x88": True, b"\x89": False}
_INTEGERS = {b"K": "<B", b"M": "<H", b"J": "<i", b"G": ">d"}
_TEXTS = {b"\x8c": "<B", b"X": "<L", b"\x8d": "<Q"}
_STORES = {b"q": "<B", b"r": "<L"}
_FETCHES = {b"h": "<B", b"j": "<L"}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}


@dataclass(frozen=True, slots=True)
class Named:
    """What a name on the allow-list stands for: a value, or a rule that makes one from a tuple of arguments."""

    name: str
    value: object = None
    build: Callable[[tuple[object, ...]], object] | None = None


@dataclass(slots=True)
class PickleMachine:
    """Runs pickles that lie one after another in `raw`. `where` names the file in errors."""

    raw: bytes
    where: str
    names: Mapping[tuple[str, str], Named]  # (module, name) → what it stands for
    persistent: Callable[[object], object]  # what an identifier of something outside the pickle stands for
    position: int = 0
    _stack: list[object] = field(default_factory=list)
    _memo: dict[int, object] = field(default_factory=dict)

    def run(self) -> object:
        """The object that the pickle at `position` describes; leaves `position` behind it.

        UnsafePickleError for a name that is not allowed, MalformedHeaderError for instructions that make no sense,
        TruncatedFileError where the program ends without saying so.
        """
        self._stack, self._memo = [], {}
        for _ in range(_MAX_INSTRUCTIONS):
            code = self._take(1)
            if code == b".":
                result = self._pop()
                if self._stack:
                    raise self._malformed("things are left on the stack at its end")
                return result
            self._step(code)
        raise self._malformed(f"it has more than {_MAX_INSTRUCTIONS:,} instructions; a tensor takes about forty")

    def _step(self, code: bytes) -> None:  # noqa: PLR0912 - one branch per instruction, as the format has them
        push = self._stack.append
        if code in _CONSTANTS:
            push(_CONSTANTS[code])
        elif code in _INTEGERS:
            push(self._number(_INTEGERS[code]))
        elif code == b"\x8a":  # LONG1: little-endian, two's complement
            push(int.from_bytes(self._take(self._size("<B")), "little", signed=True))
        elif code in _TEXTS:
            push(self._text(self._take(self._size(_TEXTS[code]))))
        elif code in _STORES:
            self._memo[self._size(_STORES[code])] = self._top()
        elif code == b"\x94":  # MEMOIZE
            self._memo[len(self._memo)] = self._top()
        elif code in _FETCHES:
            self._fetch(self._size(_FETCHES[code]))
        elif code == b"(":
            push(_MARK)
        elif code in b"}])":
            push({} if code == b"}" else [] if code == b"]" else ())
        elif code in _TUPLES:
            push(tuple(self._pop_many(_TUPLES[code])))
        elif code == b"t":
            push(tuple(self._pop_to_mark()))
        elif code in b"ae":  # APPEND, APPENDS
            self._append([self._pop()] if code == b"a" else self._pop_to_mark())
        elif code in b"su":  # SETITEM, SETITEMS
            self._set_items(self._pop_many(2) if code == b"s" else self._pop_to_mark())
        elif code == b"c":  # GLOBAL: module and name, each ended by a newline
            push(self._find(self._line(), self._line()))
        elif code == b"\x93":  # STACK_GLOBAL
            module, name = self._pop_many(2)
            push(self._find(module, name))
        elif code == b"R":
            self._call()
        elif code == b"b":
            self._set_state()
        elif code == b"Q":  # BINPERSID
            push(self.persistent(self._pop()))
        elif code == b"\x80":
            self._check_protocol()
        elif code == b"\x95":  # FRAME: a hint to read ahead
            self._size("<Q")
        else:
            self._refuse(code)

    def _take(self, num_bytes: int) -> bytes:
        start, end = self.position, self.position + num_bytes
        if end > len(self.raw):
            raise TruncatedFileError(f"{self.where} is truncated: its pickle ends in the middle of an instruction")
        self.position = end
        return self.raw[start:end]

    def _number(self, layout: str) -> object:
        value: object = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return value

    def _size(self, layout: str) -> int:
        value = self._number(layout)
        assert isinstance(value, int), layout
        return value

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._malformed("a text is not valid UTF-8") from error

    def _line(self) -> str:
        end = self.raw.find(b"\n", self.position)
        if end < 0:
            raise TruncatedFileError(f"{self.where} is truncated: its pickle ends in the middle of a name")
        text = self._text(self.raw[self.position : end])
        self.position = end + 1
        return text

    def _top(self) -> object:
        if not self._stack or self._stack[-1] is _MARK:
            raise self._malformed("an instruction finds nothing on the stack")
        return self._stack[-1]

    def _pop(self) -> object:
        top = self._top()
        self._stack.pop()
        return top

    def _pop_many(self, count: int) -> list[object]:
        return [self._pop() for _ in range(count)][::-1]

    def _pop_to_mark(self) -> list[object]:
        items: list[object] = []
        while self._stack:
            item = self._stack.pop()
            if item is _MARK:
                return items[::-1]
            items.append(item)
        raise self._malformed("an instruction looks for a mark that is not there")

    def _fetch(self, index: int) -> None:
        if index not in self._memo:
            raise self._malformed(f"it asks for number {index} of its memo, which it never stored")
        self._stack.append(self._memo[index])

    def _append(self, items: list[object]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise self._malformed(f"it appends to a {type(target).__name__}")
        target.extend(items)

    def _set_items(self, items: list[object]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            raise self._malformed(f"it sets entries of a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int):
                raise self._malformed(f"a dictionary has a {type(key).__name__} as a key")
            target[key] = value

    def _find(self, module: object, name: object) -> Named:
        if not isinstance(module, str) or not isinstance(name, str):
            raise self._malformed("a name is not a text")
        found = self.names.get((module, name))
        if found is None:
            raise UnsafePickleError(
                f"{self.where} asks for {f'{module}.{name}'[:120]!r}, which is not one of the {len(self.names)} names "
                "that tensors are made of; nothing was run. Save only tensors: torch.save(model.state_dict(), …)"
            )
        return found

    def _call(self) -> None:
        callee, arguments = self._pop_many(2)
        if not isinstance(callee, Named) or callee.build is None or not isinstance(arguments, tuple):
            raise self._malformed(f"it calls a {type(callee).__name__}, which is not a function")
        self._stack.append(callee.build(arguments))

    def _set_state(self) -> None:
        """BUILD sets attributes of an object. Those that PyTorch gives to a dictionary are not part of the weights."""
        _, target = self._pop(), self._top()
        if not isinstance(target, dict):
            raise self._malformed(f"it sets the state of a {type(target).__name__}")

    def _check_protocol(self) -> None:
        protocol = self._size("<B")
        if protocol > _MAX_PROTOCOL:
            raise self._malformed(f"it has protocol {protocol}; up to {_MAX_PROTOCOL} can be read")

    def _refuse(self, code: bytes) -> None:
        known = next((opcode.name for opcode in opcodes if opcode.code == code.decode("latin-1")), None)
        what = f"the instruction {known}" if known else f"the byte {code!r}, which is no instruction"
        raise UnsafePickleError(
            f"{self.where}: its pickle has {what} at byte {self.position - 1}; tensors need none of the kind, "
            "and nothing was run"
        )

    def _malformed(self, problem: str) -> MalformedHeaderError:
        return MalformedHeaderError(f"{self.where}: its pickle makes no sense before byte {self.position}: {problem}")
