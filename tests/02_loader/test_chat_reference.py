"""Chat templates against what transformers renders, and the places where models keep them.

golden.json is written by chat_templates/make.py.
"""

import enum
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from aie_loader import ChatTemplate, ChatTemplateError
from aie_loader.chat.files import folder_sources
from aie_tensor import InvalidInputError

FILES = Path(__file__).parent / "chat_templates"
GOLDEN: dict[str, Any] = json.loads((FILES / "golden.json").read_text("utf-8"))
NOW = datetime.fromisoformat(GOLDEN["now"])
USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
NAMED = {"default": "d{{ tools|length if tools }}", "tool_use": "t{{ tools|length }}", "rag": "r{{ documents|length }}"}


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate((FILES / name).read_text("utf-8"), tokens=GOLDEN["tokens"], now=lambda: NOW)


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.glob("*.jinja")))
def test_as_the_reference_renders(name: str) -> None:
    template = template_of(name)
    records = [record for record in GOLDEN["records"] if record["template"] == name]
    assert sum(record["text"] is not None for record in records) >= 9
    for record in records:
        if record["text"] is None:
            with pytest.raises(ChatTemplateError):
                template.render(record["messages"], **record["options"])
        else:
            assert template.render(record["messages"], **record["options"]) == record["text"]


def test_which_template_is_taken() -> None:
    template = ChatTemplate(NAMED)
    assert template.names == ("default", "tool_use", "rag")
    assert template.source == NAMED["default"]
    document = {"text": "x"}
    assert template.render(USER) == "d"
    assert template.render(USER, tools=TOOLS) == "t1"
    assert template.render(USER, documents=[document]) == "r1"
    assert template.render(USER, tools=TOOLS, documents=[document]) == "t1"
    assert template.render(USER, tools=[], documents=[]) == "d"
    assert template.render(USER, tools=TOOLS, template="default") == "d1"
    with pytest.raises(InvalidInputError, match="no chat template 'other'; it has default, tool_use, rag") as caught:
        template.render(USER, template="other")
    assert caught.value.param == "template"
    assert ChatTemplate({"only": "o"}).render(USER) == "o"
    with pytest.raises(ChatTemplateError, match="no default chat template; name one of a, b"):
        ChatTemplate({"a": "1", "b": "2"}).render(USER)
    with pytest.raises(ChatTemplateError, match="no chat template"):
        ChatTemplate({})


def test_a_broken_template_for_tools_leaves_the_others_usable() -> None:
    template = ChatTemplate({"default": "d", "tool_use": "{% for"})
    assert template.render(USER) == "d"
    with pytest.raises(ChatTemplateError, match="template 'tool_use' does not compile"):
        template.render(USER, tools=TOOLS)


def test_every_place_in_a_folder(tmp_path: Path) -> None:
    def rendered(**options: Any) -> str:
        template = ChatTemplate.from_folder(tmp_path)
        assert template is not None
        return template.render(USER, **options)

    (tmp_path / "chat_template.json").write_text('{"chat_template": "json"}')
    assert rendered() == "json"
    config = {"chat_template": "config{{ bos_token ~ pad_token }}", "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "<pad>", "bos_token": "<other>"}')
    assert rendered() == "config<s><pad>"
    config["chat_template"] = [{"name": name, "template": text} for name, text in NAMED.items()]  # type: ignore[assignment]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert rendered(tools=TOOLS) == "t1"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert rendered() == "jinja"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("additional")
    assert rendered(tools=TOOLS) == "additional"
    assert rendered(documents=[{}]) == "r1"


def test_every_place_in_gguf() -> None:
    metadata = {
        "tokenizer.chat_template": NAMED["default"],
        "tokenizer.chat_template.tool_use": "{{ eos_token }}",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.ggml.tokens": ["<s>", "</s>"],
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.bos_token_id": 7,
    }
    template = ChatTemplate.from_gguf(metadata)
    assert template is not None
    assert template.names == ("default", "tool_use")
    assert template.render(USER, tools=TOOLS) == "</s>"


def test_broken_files(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ChatTemplateError, match="not UTF-8"):
        folder_sources(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b" " * (5 << 20))
    with pytest.raises(ChatTemplateError, match="larger than 4 MiB"):
        folder_sources(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [1, {"name": 2, "template": 3}]}')
    assert ChatTemplate.from_folder(tmp_path) is None
    (tmp_path / "additional_chat_templates").mkdir()
    for index in range(65):
        (tmp_path / "additional_chat_templates" / f"{index}.jinja").write_text("")
    with pytest.raises(ChatTemplateError, match="65 chat templates"):
        folder_sources(tmp_path)


class Colour(str, enum.Enum):  # noqa: UP042 - its str() is not its value
    RED = "red"


class Secret:
    def wipe(self) -> str:
        raise AssertionError("a template called a method of a stranger")


def test_only_plain_data_reaches_a_template() -> None:
    template = ChatTemplate("{{ messages[0].extra }} {{ x.wipe is defined }} {{ tools[0].f }}")
    secret = Secret()
    text = template.render([{**USER[0], "extra": secret}], tools=[{"f": (1, Colour.RED, secret)}], x=secret)
    assert text == "<Secret> False [1, 'red', '<Secret>']"
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidInputError, match="nested more than 64 deep"):
        template.render([{**USER[0], "extra": loop}])


@pytest.mark.parametrize("field", ["tools", "documents"])
def test_tools_and_documents_are_objects(field: str) -> None:
    with pytest.raises(InvalidInputError, match="must be an object") as caught:
        ChatTemplate("").render(USER, **{field: [{}, "text"]})
    assert caught.value.param == f"{field}[1]"


@pytest.mark.parametrize(
    "source",
    [
        "{% set n = namespace(__class__=1) %}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{% set n = namespace({'__init__': 1}) %}",
    ],
)
def test_a_namespace_holds_no_hidden_names(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="namespace cannot hold"):
        ChatTemplate(source).render(USER)
    assert ChatTemplate("{% set n = namespace(self=1) %}{% set n.a = 2 %}{{ n.self + n.a }}").render(USER) == "3"


@pytest.mark.parametrize("name", ["documents", "template", "unk_token", "pad_token"])
def test_further_names_that_cannot_be_replaced(name: str) -> None:
    template = ChatTemplate("{{ pad_token }}")
    if name in {"documents", "template"}:
        assert template.render(USER, **{name: None}) == ""
        return
    with pytest.raises(InvalidInputError, match=name):
        template.render(USER, **{name: "x"})
