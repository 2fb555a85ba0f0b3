"""Chat templates: what they may do, what they may not, and what the caller is told."""

from datetime import datetime
from pathlib import Path

import pytest

from aie_loader import ChatTemplate, ChatTemplateError
from aie_loader.chat.sandbox import RenderLimits
from aie_loader.tiny import TINY_CHAT_TEMPLATE, write_tiny_llama
from aie_tensor import InvalidInputError

USER = [{"role": "user", "content": "hi"}]


def render(source: str, **kwargs: object) -> str:
    return ChatTemplate(source).render(USER, **kwargs)  # type: ignore[arg-type]


def test_chatml() -> None:
    template = ChatTemplate(TINY_CHAT_TEMPLATE)
    assert template.render(USER) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(USER, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_content_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "one\ntwo" in ChatTemplate(TINY_CHAT_TEMPLATE).render([{"role": "user", "content": parts}])
    assert ChatTemplate("{{ messages[0].content }}|").render([{"role": "assistant", "content": None}]) == "|"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "no role"}, "messages[0].role"),
        ({"role": 3, "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": ["text"]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages[0].content[0].text"),
    ],
)
def test_wrong_messages_name_the_field(message: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ChatTemplate(TINY_CHAT_TEMPLATE).render([message])
    assert caught.value.param == param


def test_no_messages() -> None:
    with pytest.raises(InvalidInputError, match="empty"):
        ChatTemplate(TINY_CHAT_TEMPLATE).render([])


def test_what_templates_are_given() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ eos_token }}{{ strftime_now('%d %b %Y') }}{{ tools is none }}",
        "<s>",
        "</s>",
        now=lambda: datetime(2024, 5, 6),
    )
    assert template.render(USER) == "<s></s>06 May 2024True"
    assert render("{{ {'a': 'é<'}|tojson }}") == '{"a": "é<"}'
    assert render("{% generation %}x{% endgeneration %}") == "x"
    assert render("{% for m in [1, 2, 3] %}{{ m }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}") == "12"
    assert render("{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{{ loop.length }}{% endfor %}") == "a11"
    assert render("{{ messages|map(attribute='role')|join('-') }}{{ 'aXb'.replace('X', '-') }}") == "usera-b"


def test_variables_of_the_template() -> None:
    assert render("{{ enable_thinking }}", enable_thinking=False, never_read=1) == "False"


@pytest.mark.parametrize("name", ["bos_token", "eos_token", "_meter", "raise_exception", "range", "namespace"])
def test_what_the_engine_provides_cannot_be_replaced(name: str) -> None:
    with pytest.raises(InvalidInputError, match=name) as caught:
        render("{{ range }}", **{name: 1})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ raise_exception.__globals__.os }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% include 'x' %}", "no loader"),
    ],
)
def test_failures_of_the_template(source: str, says: str) -> None:
    with pytest.raises(ChatTemplateError, match=says):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for",
        "{{ 'a'|nofilter }}",
        "{% nonsense %}",
        "{{ " + "(" * 5000,
        "{% for a in b %}" * 25 + "{% endfor %}" * 25,  # more blocks than Python nests
        "{% for a in b %}" * 110 + "{% endfor %}" * 110,  # more levels than Python indents
    ],
)
def test_a_template_that_does_not_compile(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for i in range(2000000) %}{% endfor %}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ 9 ** 9999999 }}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x|replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = [n.x, n.x]|join %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = ''.join([n.x, n.x]) %}{% endfor %}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a'.ljust(10000000000) }}",
        "{{ 'a'|indent(10000000000) }}",
        "{{ [1]|tojson(indent=10000000000) }}",
        "{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set n = namespace(x='a') %}"
        "{% for i in range(60) %}{% set n.x = m(n.x) %}{% endfor %}",
        "{% macro m() %}{{ caller() * 2 }}{% endmacro %}{% set n = namespace(x='a') %}"
        "{% for i in range(60) %}{% set n.x %}{% call m() %}{{ n.x }}{% endcall %}{% endset %}{% endfor %}",
        "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}{{ n.x|string }}",
        "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = {1: n.x, 2: n.x} %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=1) %}{% for i in range(60) %}"
        "{% set n.x = {1: n.x}.values() %}{% set n.x = [n.x, n.x] %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x]|batch(2, n.x) %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x]|slice(2, n.x) %}{% endfor %}",
        "{{ [['a' * 1000] * 1000] * 1000 }}",
        "{{ ([range(100000)] * 1000)|map('list')|list }}",
        "{{ ([[1] * 100000] * 1000)|sum(start=[]) }}",
        "{{ ['a', 'b']|sum(start='') }}",
        "{{ ('a' * 1000).translate({97: 'b' * 1000000}) }}",
        "{{ 'a'.encode().ljust(10000000000) }}",
        "{{ ('a'|attr('ljust'))(10000000000) }}",
        "{{ (1).to_bytes(10000000000, 'big') }}",
        "{{ 1|round(1000000000, 'ceil') }}",
        "{{ [1]|batch(1000000000, 1)|list }}",
        "{{ [1]|slice(1000000000)|list }}",
        "{{ lipsum(n=1000000000) }}",
        "{{ [1]|pprint }}",
        "{{ ([1] * 1000)|tojson(separators=('x' * 100000, ':')) }}",
        "{% set n = namespace(x=[1] * 100000) %}{% for i in range(99) %}{% set n.x = [n.x] %}{% endfor %}"
        "{{ n.x|tojson(indent=16) }}",
        "{{ ('a ' * 500000)|urlize }}",
        "{{ ('a ' * 500000)|title }}",
        "{{ ('a' * 1000000)|sort }}",
        "{{ ('a' * 1000000)|map('upper')|list }}",
        "{{ range(300000)|select('odd')|max }}",
        "{% set x = ('f' * 1000000)|int(0, 32) %}{% set y = ('f' * 500000)|int(0, 32) %}{{ x // y > 0 }}",
        "{{ (1).from_bytes([255] * 100000, 'big') // (1).from_bytes([255] * 50000, 'big') > 0 }}",
        "{{ strftime_now('%c' * 500000) }}",
        "{% set a = 'a' * 1000000 %}{% set n = namespace(x=[]) %}"
        "{% for i in range(1000) %}{% set n.x = [n.x, a|upper] %}{% endfor %}",
        "{% set a = 'a' * 1000000 %}{% for i in range(1000) %}{% set b = a[1:] %}{% endfor %}",
        "{% set a = 'a' * 1000000 %}{% for i in range(1000) %}{% set b = a.lower() %}{% endfor %}",
        "{% set a = 'a' * 1000000 %}{% for i in range(1000) %}{% set b = a ~ i %}{% endfor %}",
        "{% set a = 'a' * 1000000 %}{% for i in range(1000) %}{% set b = a + 'b' %}{% endfor %}",
    ],
)
@pytest.mark.timeout(20)
def test_no_template_runs_or_grows_without_bound(source: str) -> None:
    limits = RenderLimits(max_chars=1 << 20, max_steps=200_000, max_built=64 << 20)
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, limits=limits).render(USER)


def test_lists_that_real_templates_make() -> None:
    assert render("{% set a, b = (1, [2, {'c': 3}]) %}{{ a in [1, 2] }}{{ b[1].c }}{{ b + [4] }}") == (
        "True3[2, {'c': 3}, 4]"
    )
    assert render("{{ [1, 2, 3]|sum }}{{ [{'n': 2}]|sum(attribute='n') }}{{ 2.567|round(1) }}") == "622.6"
    assert render("{% for row in [1, 2, 3]|batch(2, 0) %}{{ row }}{% endfor %}") == "[1, 2][3, 0]"
    assert render("{% for k, v in messages|groupby('role') %}{{ k }}{{ v|length }}{% endfor %}") == "user1"
    assert render("{{ namespace(a=1) }}{{ (['x' * 70000]|tojson)|length }}") == "<namespace>70004"


def test_time_limit() -> None:
    source = "{% for i in range(99999) %}{% endfor %}"
    with pytest.raises(ChatTemplateError, match="longer than"):
        ChatTemplate(source, limits=RenderLimits(max_seconds=-1)).render(USER)


def test_from_folder_prefers_the_file_of_its_own(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    template = ChatTemplate.from_folder(folder)
    assert template is not None
    assert template.source == TINY_CHAT_TEMPLATE
    (folder / "chat_template.jinja").write_text("{{ eos_token }}", encoding="utf-8")
    template = ChatTemplate.from_folder(folder)
    assert template is not None
    assert template.render(USER) == "<|im_end|>"


def test_named_templates_and_none(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]}')
    template = ChatTemplate.from_folder(tmp_path)
    assert template is not None
    assert template.render(USER) == "d"
    config.write_text("{}")
    assert ChatTemplate.from_folder(tmp_path) is None
    assert ChatTemplate.from_gguf({}) is None


def test_from_gguf_knows_the_tokens() -> None:
    template = ChatTemplate.from_gguf(
        {
            "tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}",
            "tokenizer.ggml.tokens": ["<s>", "</s>"],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1,
        }
    )
    assert template is not None
    assert template.render(USER) == "<s>|</s>"
