"""The field `input` of the endpoints that read texts: a text, texts, token ids, or lists of them; within the limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from aie_engine import InvalidInputError
from aie_engine.processing import Item, Tensor
from aie_server.api.fields import Fields
from aie_server.config import ServerConfig
from aie_server.predictors import ServedPredictor

__all__ = [
    "TextInputs",
    "check_count",
    "check_shape",
    "check_tensors",
    "check_text",
    "of_level",
    "parse_inputs",
    "parse_priority",
    "parse_texts",
]


@dataclass(frozen=True, slots=True)
class TextInputs:
    """Either texts or lists of token ids."""

    texts: list[str]
    tokens: list[list[int]]

    def items(self, model: ServedPredictor) -> tuple[list[Item], int]:
        """Items, and how many of them were truncated."""
        if self.texts:
            return model.pipeline.texts(self.texts)
        return model.pipeline.tokens(self.tokens), 0


def check_count(field: str, count: int, config: ServerConfig) -> None:
    """Raises `InvalidInputError` for none, or more than one request may have."""
    if not 1 <= count <= config.max_inputs:
        raise InvalidInputError(
            f"{field} must have 1 to {config.max_inputs} entries, not {count}; send more in several requests.",
            param=field,
        )


def check_text(field: str, text: object, config: ServerConfig) -> str:
    """Raises `InvalidInputError` for what is no text, an empty one, and one that is too long to be worth cutting."""
    if not isinstance(text, str):
        raise InvalidInputError(f"{field} must be a string.", param=field)
    if not 1 <= len(text) <= config.max_input_chars:
        raise InvalidInputError(
            f"{field} must have 1 to {config.max_input_chars} characters, not {len(text)}.", param=field
        )
    return text


def check_shape(name: str, datatype: str, shape: Sequence[int], config: ServerConfig) -> None:
    """Before a tensor of the open inference protocol is read: as many items as a request may have, and a text each."""
    if shape:
        check_count(name, prod(shape) if datatype == "BYTES" else shape[0], config)


def check_tensors(tensors: Sequence[Tensor], config: ServerConfig) -> None:
    """Once they are read; there, a text may be empty."""
    for tensor in tensors:
        if tensor.datatype != "BYTES":
            continue
        for index, element in enumerate(tensor.array.ravel().tolist()):
            length = len(element)
            if length > config.max_input_chars:  # no text has more characters than bytes
                length = len(element.decode(errors="replace"))
            if length > config.max_input_chars:
                raise InvalidInputError(
                    f"{tensor.name}[{index}] must have at most {config.max_input_chars} characters, not {length}.",
                    param=tensor.name,
                )


def parse_priority(fields: Fields, config: ServerConfig) -> int:
    """The field `priority`: lower runs first, 0 where nothing is said."""
    return fields.integer("priority", low=-config.max_priority, high=config.max_priority) or 0


def of_level(level: int | None, config: ServerConfig) -> int:
    """The parameter `priority` of the open inference protocol, as Triton has it: 1 is the highest level, 0 stands for
    the usual one, which is in the middle here. Raises `InvalidInputError` for a level that there is not."""
    usual = config.max_priority + 1
    if level is None or level == 0:
        return 0
    if not 1 <= level < 2 * usual:
        raise InvalidInputError(
            f"priority must be from 1, the highest, to {2 * usual - 1}, or 0 for the usual, which is {usual}.",
            param="priority",
        )
    return level - usual


def parse_texts(fields: Fields, field: str, config: ServerConfig) -> list[str]:
    """A text or a list of texts."""
    value = fields.get(field)
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list):
        raise fields.error(field, "a string or a list of strings")
    check_count(field, len(values), config)
    return [check_text(f"{field}[{index}]", text, config) for index, text in enumerate(values)]


def parse_inputs(fields: Fields, config: ServerConfig) -> TextInputs:
    """The field `input`, in any of OpenAI's four forms."""
    value = fields.get("input")
    if isinstance(value, list) and value and not isinstance(value[0], str):
        rows = [value] if type(value[0]) is int else value
        check_count("input", len(rows), config)
        return TextInputs([], [_token_ids(row, config) for row in rows])
    if not isinstance(value, str | list):
        raise fields.error("input", "a string, a list of strings, a list of token ids, or a list of such lists")
    return TextInputs(parse_texts(fields, "input", config), [])


def _token_ids(row: object, config: ServerConfig) -> list[int]:
    if isinstance(row, list) and len(row) > config.max_input_chars:
        raise InvalidInputError(
            f"input has a list of {len(row)} tokens; it may have at most {config.max_input_chars}.", param="input"
        )
    if not isinstance(row, list) or not all(type(token) is int and 0 <= token < 1 << 31 for token in row):
        raise InvalidInputError("input must be texts only, or lists of token ids only.", param="input")
    return row
