"""What the rules of all operators share: how to say what does not fit, and how to read a node's constants."""

import sys
from collections.abc import Callable, Sequence

from aie_loader.errors import GraphShapeError
from aie_loader.graph import Node, Shape

__all__ = ["Rule", "axis", "flag", "number", "one_of", "pair", "real", "reals", "same", "signed", "wrong"]

_MOST = 1 << 31
Rule = Callable[[Node, list[Shape]], Shape]


def wrong(node: Node, shapes: Sequence[Shape], needs: str) -> GraphShapeError:
    """Inputs that the operator cannot take: names what it needs and what it was given."""
    if len(shapes) == len(node.inputs):
        given = ", ".join(f"{name} {list(shape)}" for name, shape in zip(node.inputs, shapes, strict=True))
    else:
        given = ", ".join(node.inputs)
    return GraphShapeError(f"node {node.name!r}: {node.op} needs {needs}; given {given or 'nothing'}")


def number(node: Node, key: str, default: int | None = None, *, low: int = 1) -> int:
    """An integer constant of at least `low`, and of no more than 2^31, which no size of an axis exceeds."""
    value = node.attrs.get(key, default)
    if type(value) is not int or not low <= value <= _MOST:
        raise GraphShapeError(f"node {node.name!r}: {node.op} needs an integer {key} of at least {low}, not {value!r}")
    return value


def real(node: Node, key: str, default: float | None = None) -> float:
    """A positive number that a float can hold."""
    value = node.attrs.get(key, default)
    if not _is_number(value) or not value > 0:  # type: ignore[operator]
        raise GraphShapeError(f"node {node.name!r}: {node.op} needs a positive {key}, not {_short(value)}")
    return float(value)  # type: ignore[arg-type]


def signed(node: Node, key: str, default: float) -> float:
    """A finite number of either sign."""
    value = node.attrs.get(key, default)
    if not _is_number(value):
        raise GraphShapeError(f"node {node.name!r}: {node.op} needs a finite {key}, not {_short(value)}")
    return float(value)  # type: ignore[arg-type]


def reals(node: Node, key: str) -> tuple[float, ...]:
    """Several finite numbers, of either sign."""
    value = node.attrs.get(key)
    if not isinstance(value, tuple | list) or not all(map(_is_number, value)):
        raise GraphShapeError(f"node {node.name!r}: {node.op} needs finite numbers as {key}, not {_short(value)}")
    return tuple(map(float, value))


def _is_number(value: object) -> bool:
    largest = sys.float_info.max  # also below an integer of a thousand digits, and below infinity
    return type(value) in (int, float) and -largest <= value <= largest  # type: ignore[operator]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def flag(node: Node, key: str, default: bool) -> bool:
    """True or False."""
    value = node.attrs.get(key, default)
    if type(value) is not bool:
        raise GraphShapeError(f"node {node.name!r}: {key} of {node.op} must be true or false, not {value!r}")
    return value


def one_of(node: Node, key: str, choices: Sequence[str]) -> str:
    """One of a few words."""
    value = node.attrs.get(key)
    if value not in choices:
        raise GraphShapeError(
            f"node {node.name!r}: {key} of {node.op} must be one of {', '.join(choices)}, not {value!r}"
        )
    return str(value)


def pair(node: Node, key: str, default: tuple[int, int] | None = None, *, low: int = 1) -> tuple[int, int]:
    """Two integers, for height and width."""
    value = node.attrs.get(key, default)
    if not (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(type(item) is int and low <= item <= _MOST for item in value)
    ):
        raise GraphShapeError(
            f"node {node.name!r}: {node.op} needs two integers of at least {low} as {key}, not {value!r}"
        )
    return (value[0], value[1])


def axis(node: Node, shape: Shape, key: str = "axis", default: int | None = None) -> int:
    """An axis of `shape`, counted from 0; negative ones count from the end."""
    value = node.attrs.get(key, default)
    if type(value) is not int or not -len(shape) <= value < len(shape):
        raise GraphShapeError(f"node {node.name!r}: {key} of {node.op} must be an axis of {list(shape)}, not {value!r}")
    return value % len(shape)


def same(num_inputs: int) -> Rule:
    """For element-by-element operators: all inputs have one shape, and so has the result."""

    def rule(node: Node, shapes: list[Shape]) -> Shape:
        if len(shapes) != num_inputs or any(shape != shapes[0] for shape in shapes):
            raise wrong(node, shapes, f"{num_inputs} input{'s' * (num_inputs > 1)} of one shape")
        return shapes[0]

    return rule
