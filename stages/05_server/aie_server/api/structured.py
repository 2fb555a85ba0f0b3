"""A form that the answer must have, as OpenAI's API asks for it and as vLLM's does, in its newer and its older fields.

What is checked here costs nothing: types, sizes, that one form is asked for and not two. Whether a schema can be
compiled is found by the engine's process (`aie_engine/constraints`), whose answer, a 400 that names the same field,
comes before anything is streamed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from aie_engine import ConstraintSpec, InvalidInputError, check_constraint
from aie_server.api.fields import Fields
from aie_server.config import ServerConfig
from aie_server.errors import UnsupportedFieldError

__all__ = ["Form", "json_text", "parse_form"]

_RESPONSE_FORMATS: Final = ("text", "json_object", "json_schema")
_SPACING: Final = ("disable_any_whitespace", "whitespace_pattern")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Form:
    """What is asked for. `schema` is set where the answer is JSON: tools may be offered beside that."""

    spec: ConstraintSpec
    schema: Mapping[str, object] | None = None


def parse_form(fields: Fields, config: ServerConfig) -> Form | None:
    """`response_format`, `structured_outputs` or `guided_*`; None where the answer may be anything. Raises
    `InvalidInputError` naming the field, and the errors of `check_constraint`."""
    found = [form for form in (_response_format(fields), _structured_outputs(fields, config)) if form is not None]
    found += _guided(fields, config)
    if len(found) > 1:
        names = " and ".join(form.spec.param for form in found)
        raise InvalidInputError(f"{names} ask for different forms of one answer; leave one.", param=found[1].spec.param)
    if not found:
        return None
    check_constraint(found[0].spec, max_chars=config.max_constraint_chars)
    return found[0]


def json_text(value: object) -> str:
    """As JSON, in the order of the request: it is the order in which the model will be asked for a schema's members."""
    return _encode(value).decode()


def _response_format(fields: Fields) -> Form | None:
    wanted = fields.object("response_format")
    if wanted is None:
        return None
    kind = wanted.text("type")
    if kind not in _RESPONSE_FORMATS:
        raise wanted.error("type", f"one of {', '.join(_RESPONSE_FORMATS)}")
    if kind == "text":
        return None
    if kind == "json_object":
        return _json_object("response_format")
    inner = wanted.object("json_schema")
    if inner is None:
        raise wanted.error("json_schema", "an object with a name and a schema")
    inner.text("name")
    schema = inner.get("schema")
    if not isinstance(schema, dict):
        raise inner.error("schema", "a JSON schema, which is an object")
    # OpenAI's strict=false lets the model depart from the schema. Ours cannot; but words of a schema that have no
    # meaning to us are then passed over instead of refused.
    is_lenient = inner.get("strict") is not None and not inner.flag("strict", True)
    return _json_schema(schema, inner.name("schema"), {"lenient": True} if is_lenient else {})


def _structured_outputs(fields: Fields, config: ServerConfig) -> Form | None:
    wanted = fields.object("structured_outputs")
    if wanted is None:
        return None
    options = _spacing(wanted)
    known = {
        "json": lambda: _json(wanted, "json", options),
        "regex": lambda: _text(wanted, "regex", "regex"),
        "choice": lambda: _choice(wanted, "choice", config),
        "grammar": lambda: _text(wanted, "grammar", "grammar"),
        "json_object": lambda: _json_object(wanted.name("json_object"), options),
    }
    asked = [name for name in wanted.names() if wanted.has(name) and wanted.get(name) is not False]
    for name in asked:
        if name not in known and name not in _SPACING:
            raise UnsupportedFieldError(f"{wanted.name(name)} is not supported; leave it out.", param=wanted.name(name))
    asked = [name for name in asked if name in known]
    if len(asked) > 1:
        raise InvalidInputError(
            f"structured_outputs asks for {' and '.join(asked)}; leave one.", param="structured_outputs"
        )
    if "json_object" in asked:
        wanted.flag("json_object", False)
    return known[asked[0]]() if asked else None


def _guided(fields: Fields, config: ServerConfig) -> list[Form]:
    """vLLM's older fields, one for each form."""
    pattern = fields.text("guided_whitespace_pattern")
    options: dict[str, object] = {} if pattern is None else {"whitespace_pattern": pattern}
    readers: Mapping[str, Callable[[], Form]] = {
        "guided_json": lambda: _json(fields, "guided_json", options),
        "guided_regex": lambda: _text(fields, "guided_regex", "regex"),
        "guided_choice": lambda: _choice(fields, "guided_choice", config),
        "guided_grammar": lambda: _text(fields, "guided_grammar", "grammar"),
    }
    return [read() for field, read in readers.items() if fields.has(field)]


def _spacing(wanted: Fields) -> dict[str, object]:
    options: dict[str, object] = {}
    if wanted.flag("disable_any_whitespace", False):
        options["whitespace_flexible"] = False
    pattern = wanted.text("whitespace_pattern")
    if pattern is not None:
        options["whitespace_pattern"] = pattern
    return options


def _json(fields: Fields, field: str, options: Mapping[str, object]) -> Form:
    """A schema as an object, or as its text."""
    schema = fields.get(field)
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError):
            raise fields.error(field, "a JSON schema; its text is not JSON") from None
    if not isinstance(schema, dict):
        raise fields.error(field, "a JSON schema, which is an object")
    return _json_schema(schema, fields.name(field), options)


def _json_schema(schema: Mapping[str, object], param: str, options: Mapping[str, object]) -> Form:
    if options:
        own = schema.get("x-guidance")  # where the library looks for such options
        schema = {**schema, "x-guidance": {**options, **(own if isinstance(own, dict) else {})}}
    return Form(ConstraintSpec("json_schema", json_text(schema), param), schema)


def _json_object(param: str, options: Mapping[str, object] | None = None) -> Form:
    if options:
        return _json_schema({"type": "object"}, param, options)
    return Form(ConstraintSpec("json_object", param=param), {"type": "object"})


def _text(fields: Fields, field: str, kind: str) -> Form:
    text = fields.text(field) or ""
    return Form(ConstraintSpec("regex" if kind == "regex" else "grammar", text, fields.name(field)))


def _choice(fields: Fields, field: str, config: ServerConfig) -> Form:
    choices = fields.get(field)
    if not isinstance(choices, list):
        raise fields.error(field, "a list of texts")
    if len(choices) > config.max_guided_choices:
        raise fields.error(field, f"a list of at most {config.max_guided_choices} texts, not {len(choices)}")
    return Form(ConstraintSpec("choice", json_text(choices), fields.name(field)))
