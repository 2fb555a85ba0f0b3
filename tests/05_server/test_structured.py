"""What asks for a form, in every spelling, and what the engine is then asked for; nothing wrong reaches the engine."""

import json
from typing import Any

import pytest

from aie_engine import ErrorInfo, TokenEvent
from aie_server import ServerConfig

pytest.importorskip("llguidance", reason="needs llguidance (pip install -e '.[structured]')")

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b"]}
TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"}},"required":["b"]}'


def asked(harness: Any, **fields: object) -> tuple[str, str, str] | None:
    answer = harness.chat(**fields)
    assert answer.status == 200, answer.body
    spec = harness.engine.requests[-1].constraint
    return None if spec is None else (spec.kind, spec.text, spec.param)


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_json": None, "structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, ("json_object", "", "response_format")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            ("json_schema", TEXT, "response_format.json_schema.schema"),
        ),
        ({"guided_json": SCHEMA}, ("json_schema", TEXT, "guided_json")),
        ({"guided_json": json.dumps(SCHEMA)}, ("json_schema", TEXT, "guided_json")),
        ({"guided_regex": "[0-9]+"}, ("regex", "[0-9]+", "guided_regex")),
        ({"guided_choice": ["a", "ü"]}, ("choice", '["a","ü"]', "guided_choice")),
        ({"guided_grammar": 'start: "a"'}, ("grammar", 'start: "a"', "guided_grammar")),
        ({"structured_outputs": {"json": TEXT}}, ("json_schema", TEXT, "structured_outputs.json")),
        ({"structured_outputs": {"regex": "a"}}, ("regex", "a", "structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a"]}}, ("choice", '["a"]', "structured_outputs.choice")),
        ({"structured_outputs": {"grammar": 'r ::= "a"'}}, ("grammar", 'r ::= "a"', "structured_outputs.grammar")),
        ({"structured_outputs": {"json_object": True}}, ("json_object", "", "structured_outputs.json_object")),
        ({"structured_outputs": {"json_object": False}}, None),
        ({"structured_outputs": {"regex": "a", "json": None}}, ("regex", "a", "structured_outputs.regex")),
    ],
)  # fmt: skip
def test_every_spelling(harness: Any, fields: dict[str, object], spec: tuple[str, str, str] | None) -> None:
    assert asked(harness, **fields) == spec
    assert harness.complete(**fields).status == 200
    found = harness.engine.requests[-1].constraint
    assert (None if found is None else (found.kind, found.text, found.param)) == spec


def test_options_of_a_schema_go_where_the_compiler_looks_for_them(harness: Any) -> None:
    def options(**fields: object) -> object:
        spec = asked(harness, **fields)
        assert spec is not None
        return json.loads(spec[1]).get("x-guidance")

    schema = {"name": "x", "schema": SCHEMA}
    strict = {"type": "json_schema", "json_schema": {**schema, "strict": True}}
    lenient = {"type": "json_schema", "json_schema": {**schema, "strict": False}}
    assert options(response_format=strict) is None
    assert options(response_format=lenient) == {"lenient": True}
    own = {**SCHEMA, "x-guidance": {"lenient": False}}
    assert options(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": own, "strict": False}}
    ) == {"lenient": False}
    assert options(structured_outputs={"json": SCHEMA, "disable_any_whitespace": True}) == {
        "whitespace_flexible": False
    }
    assert options(guided_json=SCHEMA, guided_whitespace_pattern=" ") == {"whitespace_pattern": " "}
    assert options(structured_outputs={"json_object": True, "whitespace_pattern": " "}) == {"whitespace_pattern": " "}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": True}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": 3, "schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}},
            "response_format.json_schema.strict",
        ),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "a" * 140_000}, "guided_regex"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": [str(n) for n in range(1025)]}, "guided_choice"),
        ({"guided_grammar": " "}, "guided_grammar"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": "yes"}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"whitespace_pattern": 1}}, "structured_outputs.whitespace_pattern"),
    ],
)
def test_bad_forms_name_the_field(harness: Any, fields: dict[str, object], param: str) -> None:
    for answer in (harness.chat(**fields), harness.complete(**fields)):
        assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert not harness.engine.requests


def test_the_size_is_the_servers_to_limit(harness: Any) -> None:
    harness.serve(config=ServerConfig(max_constraint_chars=10))
    assert harness.chat(guided_regex="a" * 10).status == 200
    assert harness.chat(guided_regex="a" * 11).error["param"] == "guided_regex"


def test_what_the_engine_refuses_is_a_400_that_names_the_field_also_of_a_stream(harness: Any) -> None:
    def refuse(request: Any) -> Any:
        error = ErrorInfo("invalid_constraint", "guided_regex is refused.", 400, None, "guided_regex")
        yield TokenEvent(request.request_id, finish_reason="error", error=error)

    harness.engine.script = refuse
    for stream in (False, True):
        answer = harness.chat(guided_regex="(", stream=stream)
        assert answer.status == 400
        assert answer.error == {
            "message": "guided_regex is refused.",
            "type": "invalid_request_error",
            "param": "guided_regex",
            "code": "invalid_constraint",
        }


def test_without_the_package_it_says_how_to_get_it(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.serve()
    from importlib import util

    monkeypatch.setattr(util, "find_spec", lambda name: None)
    answer = harness.chat(response_format={"type": "json_object"})
    assert (answer.status, answer.error["code"]) == (501, "structured_output_unavailable")
    assert "pip install 'aie[structured]'" in answer.error["message"]
    assert harness.chat().status == 200
