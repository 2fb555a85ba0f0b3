"""What is done with the state of every token, and how to find out which of it a model was made for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from aie_loader.architectures.encoders.family import EncoderFamily
from aie_loader.errors import UnsupportedModelError
from aie_tensor import InvalidInputError

__all__ = ["HEAD_NAMES", "Head", "PoolKind", "head_of_class", "named_head"]

PoolKind = Literal["mean", "cls", "max", "last"]


@dataclass(frozen=True, slots=True)
class Head:
    """The last operators of an encoder's graph.

    states      nothing: a vector per token
    pool        one vector per text: `pooling` of its tokens, several side by side; made 1 long if `normalize`
    pooler      one vector per text: the first token through BERT's dense layer and tanh
    sequence    one number per label and text
    token       one number per label and token
    """

    kind: Literal["states", "pool", "pooler", "sequence", "token"]
    pooling: tuple[PoolKind, ...] = ()
    normalize: bool = False


_NAMED: Mapping[str, Head] = {
    "states": Head("states"),
    "mean": Head("pool", ("mean",)),
    "cls": Head("pool", ("cls",)),
    "max": Head("pool", ("max",)),
    "pooler": Head("pooler"),
    "sequence": Head("sequence"),
    "token": Head("token"),
}
HEAD_NAMES = tuple(_NAMED)

_OF_CLASS: Mapping[str, Head] = {
    "Model": Head("states"),
    "ForMaskedLM": Head("states"),  # the head that guesses words is of use in training only
    "ForPreTraining": Head("states"),
    "ForSequenceClassification": Head("sequence"),
    "ForTokenClassification": Head("token"),
}


def named_head(name: str) -> Head:
    """By the name that a caller gives. InvalidInputError lists the known ones."""
    if name not in _NAMED:
        raise InvalidInputError(f"there is no head {name!r}; known: {', '.join(_NAMED)}", param="head")
    return _NAMED[name]


def head_of_class(family: EncoderFamily, class_name: str | None, where: str) -> Head:
    """By the class of the reference library that saved the model; None: it does not say, so there is no head."""
    if class_name is None:
        return _NAMED["states"]
    head = _OF_CLASS.get(class_name.removeprefix(family.class_prefix))
    if head is None:
        known = ", ".join(family.class_prefix + suffix for suffix in _OF_CLASS)
        raise UnsupportedModelError(
            f"{where}: the head of {class_name[:60]} is not supported yet; known are {known}; "
            "a head named by the caller (such as mean) leaves it out"
        )
    return head
