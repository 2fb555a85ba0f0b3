"""A path of references in words: `module app.CACHE['r-17'] → Tensor`.

Every object between the two ends is named by its type, except those that are only the means by which another one holds
something: lists, dictionaries, cells, tracebacks. Of those the text shows index, key or variable.
"""

from collections import deque
from collections.abc import Callable, Sequence
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
    TracebackType,
)
from typing import Any

from aie_tensor.memdebug.references import is_a, locals_of, module_name_of, place_of

__all__ = ["describe_path", "is_means", "name_of"]

ARROW = " → "
MAX_CHARACTERS = 40  # of a key
_MEANS = (list, tuple, dict, set, frozenset, deque, CellType, TracebackType)


def is_means(thing: object) -> bool:
    """True for what is not named itself."""
    return issubclass(type(thing), _MEANS)


def name_of(thing: object) -> str:
    """What kind of thing it is; nothing of its content is printed, since that may run its code."""
    if is_a(thing, FrameType):
        return place_of(thing)
    if is_a(thing, FunctionType):
        return f"function {thing.__qualname__}"
    if is_a(thing, MethodType):
        return f"method {getattr(thing.__func__, '__qualname__', 'of unknown name')}"
    return type(thing).__qualname__


def describe_path(path: Sequence[object], root: str = "") -> str:
    """`path[0]` refers to `path[1]` and so on; `root` says how `path[0]` itself is reached."""
    first = path[0]
    if not root:
        text = name_of(first)
    elif len(path) > 1 and (is_means(first) or is_a(first, type) or is_a(first, ModuleType)):
        text = root
    else:
        text = root + ARROW + name_of(first)
    for number in range(len(path) - 1):
        text += _step(path, number)
        held = path[number + 1]
        if not is_means(held) or number + 2 == len(path):
            text += ARROW + name_of(held)
    return text


def _step(path: Sequence[object], number: int) -> str:
    """How `path[number]` refers to the next."""
    holder, held = path[number], path[number + 1]
    before = path[number - 1] if number else None
    for kinds, step in _STEPS:
        if issubclass(type(holder), kinds):
            return step(holder, held, before)
    return _attribute(holder, held, before)


# Each of the following says how `holder` refers to `held`; `before` is what refers to `holder`.


def _entry(holder: dict[Any, object], held: object, before: object) -> str:
    """A key, or an attribute where the dictionary holds those of `before`."""
    names = _is_names(before, holder)
    for key, value in list(dict.items(holder)):
        if value is held:
            return f".{key}" if names else f"[{_short(key)}]"
    return " key"


def _item(holder: list[object] | tuple[object, ...] | deque[object], held: object, before: object) -> str:
    """An index, a field's name, or a variable where the tuple is the closure of a function."""
    index = _index(holder, held)
    if is_a(before, FunctionType) and holder is before.__closure__:
        return f" closure variable {before.__code__.co_freevars[index]!r}"
    fields = getattr(type(holder), "_fields", None)
    return f".{fields[index]}" if type(fields) is tuple else f"[{index}]"


def _member(holder: object, held: object, before: object) -> str:
    return " member"


def _nothing(holder: object, held: object, before: object) -> str:
    return ""


def _of_function(function: FunctionType, held: object, before: object) -> str:
    if held is function.__closure__:
        return ""  # the tuple of cells: the next step names the variable
    if held is function.__defaults__ or held is function.__kwdefaults__:
        return " default"
    return _attribute(function, held, before)


def _of_error(error: BaseException, held: object, before: object) -> str:
    if is_a(held, TracebackType):
        return " traceback"
    for name in ("args", "__context__", "__cause__"):
        if getattr(BaseException, name).__get__(error) is held:
            return f".{name}"
    return _attribute(error, held, before)


def _local(frame: FrameType, held: object, before: object) -> str:
    """The variable of a frame that holds `held`, directly or in a cell."""
    content = held
    if is_a(held, CellType):
        try:
            content = held.cell_contents
        except ValueError:  # an empty cell
            return ""
    for name, value in locals_of(frame).items():
        if value is held or value is content:
            return f", local {name!r}"
    return ""


def _of_suspended(suspended: object, held: object, before: object) -> str:
    """A local of a generator or coroutine."""
    for attribute in ("gi_frame", "cr_frame", "ag_frame"):
        frame = getattr(suspended, attribute, None)
        if is_a(frame, FrameType):
            return _local(frame, held, before)
    return ""


def _attribute(holder: object, held: object, before: object) -> str:
    """The attribute that is `held`; nothing for a reference that has no name."""
    attributes = _attributes(holder)
    if attributes is held:
        return ""  # the dictionary of attributes: the next step names the key
    for name, value in list((attributes or {}).items()):
        if value is held:
            return f".{name}"
    for kind in type(holder).__mro__:
        for name, member in list(vars(kind).items()):
            if is_a(member, MemberDescriptorType) and _slot(member, holder) is held:
                return f".{name}"
    return ""


_STEPS: tuple[tuple[type | tuple[type, ...], Callable[[Any, object, object], str]], ...] = (
    (dict, _entry),
    ((list, tuple, deque), _item),
    ((set, frozenset), _member),
    ((CellType, TracebackType), _nothing),
    (FunctionType, _of_function),
    (BaseException, _of_error),
    (FrameType, _local),
    ((GeneratorType, CoroutineType, AsyncGeneratorType), _of_suspended),
)


def _is_names(owner: object, names: dict[Any, object]) -> bool:
    """True when a dictionary holds the attributes of `owner`, or the globals of a module."""
    if module_name_of(names) is not None or is_a(owner, type):
        return True
    return owner is not None and _attributes(owner) is names


def _attributes(thing: object) -> dict[str, object] | None:
    """The dictionary of its attributes, if it has one."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except Exception:  # there is none, or the class has its own idea of it, which failed
        return None
    return found if type(found) is dict else None


def _slot(member: MemberDescriptorType, holder: object) -> object:
    try:
        return member.__get__(holder, type(holder))
    except (AttributeError, TypeError):  # never set
        return None


def _index(holder: list[object] | tuple[object, ...] | deque[object], held: object) -> int:
    kind: Any = next(base for base in (list, tuple, deque) if issubclass(type(holder), base))
    return next((index for index, value in enumerate(kind.__iter__(holder)) if value is held), -1)


def _short(key: object) -> str:
    """A key in few characters. Only plain types are printed: another's `repr` may run anything."""
    if type(key) is tuple:
        return ", ".join(_short(part) for part in key[:4])
    if type(key) not in (str, bytes, int, float, bool, NoneType):
        return name_of(key)
    text = repr(key)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
