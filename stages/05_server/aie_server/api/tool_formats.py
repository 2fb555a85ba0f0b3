"""How families of models write calls, by what their chat templates say, and the grammars of these ways.

A grammar is in the notation of llguidance: Lark's, with `%json` for a schema. Each function has a `%json` of its own,
so that references within a schema stay what they were.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aie_server.api.structured import json_text
from aie_server.api.tool_calls import CallReader, LeadingReader, MarkedReader
from aie_server.served import ChatTemplate, Tokenizer

__all__ = ["Function", "ToolFormat", "find_format", "knows_tools"]

_SPACING: Final = r"[ \n\r\t]{1,32}"


@dataclass(frozen=True, slots=True)
class Function:
    """A tool that may be called."""

    name: str
    schema: Mapping[str, object]  # of its arguments, an object
    is_strict: bool  # calls must fit the schema even where the model may as well answer in words


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One family's."""

    name: str
    clue: str  # part of the templates that are written for it
    opening: str  # what stands before a call; empty: the answer begins with the call
    closing: str  # what stands behind it; empty: the answer ends with it
    before: str = ""  # between mark and call
    after: str = ""
    is_list: bool = False  # all calls in one list between one pair of marks, or each between its own
    key: str = "arguments"

    def reader(self, functions: Sequence[Function], *, max_calls: int | None) -> CallReader:
        names = {function.name for function in functions}
        if not self.opening:
            return LeadingReader(names, max_calls=max_calls)
        return MarkedReader(names, self.opening, self.closing, max_calls=max_calls)

    @property
    def begin(self) -> str:
        """What stands before the name of an answer's first function."""
        return f'{self.opening}{self.before}{"[" if self.is_list else ""}{{"name": "'

    def has_special_marks(self, tokenizer: Tokenizer) -> bool:
        """Marks that are control tokens, which an answer's text leaves out unless told otherwise."""
        return any(_special_id(mark, tokenizer) is not None for mark in (self.opening, self.closing))

    def forced(self, functions: Sequence[Function], tokenizer: Tokenizer, *, several: bool) -> str:
        """Grammar of an answer that is calls and nothing else."""
        return f"start: calls\n{self._calls(functions, tokenizer, several=several)}"

    def or_json(
        self, functions: Sequence[Function], tokenizer: Tokenizer, schema: Mapping[str, object], *, several: bool
    ) -> str:
        """Grammar of an answer that is calls, or JSON of this schema."""
        calls = self._calls(functions, tokenizer, several=several)
        return f"start: calls | answer\nanswer: %json {_with_options(schema)}\n{calls}"

    def among_words(self, functions: Sequence[Function], tokenizer: Tokenizer, *, several: bool) -> str:
        """Grammar of an answer of any words, in which what begins like a call is one."""
        if not self.opening:
            words = r"WORDS: /[^{\[](.|\n)*/"
            return f'start: calls | WORDS | ""\n{words}\n{self._calls(functions, tokenizer, several=several)}'
        times = "*" if several and not self.is_list and self.closing else "?"
        if _special_id(self.opening, tokenizer) is None:
            head = f"head[lazy]: WORDS {json.dumps(self.opening)}"
        else:
            head = f"head: WORDS {self._mark(self.opening, tokenizer)}"
        # where nothing closes a call, nothing can follow it
        start = f"start: marked{times} WORDS" if self.closing else "start: marked | WORDS"
        body = self._body(several=several, tokenizer=tokenizer)
        return f"{start}\n{head}\nmarked: head {body}\nWORDS: /(.|\\n)*/\n{self._functions(functions)}"

    def _calls(self, functions: Sequence[Function], tokenizer: Tokenizer, *, several: bool) -> str:
        body = self._body(several=several, tokenizer=tokenizer)
        marked = f"marked: {self._mark(self.opening, tokenizer)} {body}" if self.opening else f"marked: {body}"
        more = several and not self.is_list and bool(self.opening)
        calls = 'calls: marked ("\\n" marked)*' if more else "calls: marked"
        return f"{calls}\n{marked}\n{self._functions(functions)}"

    def _body(self, *, several: bool, tokenizer: Tokenizer) -> str:
        """What follows the opening mark."""
        call = "call"
        if self.is_list:
            more = '(", " call)*' if several else ""
            call = f'"[" call {more} "]"'
        parts = [_literal(self.before), call, _literal(self.after), self._mark(self.closing, tokenizer)]
        return " ".join(part for part in parts if part)

    def _functions(self, functions: Sequence[Function]) -> str:
        rules = [f"call: {' | '.join(f'call_{index}' for index in range(len(functions)))}"]
        for index, function in enumerate(functions):
            head = json.dumps(f'{{"name": {json_text(function.name)}, "{self.key}": ')
            rules.append(f'call_{index}: {head} arguments_{index} "}}"')
            rules.append(f"arguments_{index}: %json {_with_options(function.schema, lenient=not function.is_strict)}")
        return "\n".join(rules)

    def _mark(self, mark: str, tokenizer: Tokenizer) -> str:
        token = _special_id(mark, tokenizer)
        return _literal(mark) if token is None else f"<[{token}]>"


_HERMES: Final = ToolFormat("hermes", "<tool_call>", "<tool_call>", "</tool_call>", "\n", "\n")
_FORMATS: Final = (
    _HERMES,  # Qwen, too
    ToolFormat("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", "", is_list=True),
    ToolFormat("llama", '"parameters": ', "", "", key="parameters"),
)
# SmolLM2 learned this form from a system prompt: its template knows nothing of tools.
_PROMPTED: Final = ToolFormat("prompted", "", "<tool_call>", "</tool_call>", is_list=True)


def knows_tools(template: ChatTemplate) -> bool:
    """Whether the model's template does something with tools."""
    return "tools" in _source(template)


def find_format(template: ChatTemplate) -> ToolFormat:
    """The way that the model's template shows; Hermes' where it shows none, since most models know that."""
    if not knows_tools(template):
        return _PROMPTED
    source = _source(template)
    return next((found for found in _FORMATS if found.clue in source), _HERMES)


def _source(template: ChatTemplate) -> str:
    """Of the template that is used where there are tools."""
    sources = template.sources
    return sources.get("tool_use") or sources.get("default") or next(iter(sources.values()), "")


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""


def _special_id(mark: str, tokenizer: Tokenizer) -> int | None:
    ids = tokenizer.encode(mark) if mark else []
    is_special = len(ids) == 1 and not tokenizer.decode(ids, skip_special_tokens=True)
    return ids[0] if is_special else None


def _with_options(schema: Mapping[str, object], *, lenient: bool = False) -> str:
    """JSON of `schema`. lenient: words of it that the grammar cannot express are passed over."""
    own = schema.get("x-guidance")
    options: dict[str, object] = {"lenient": True} if lenient else {}
    options |= own if isinstance(own, dict) else {}
    if "whitespace_flexible" not in options and "whitespace_pattern" not in options:
        options["whitespace_pattern"] = _SPACING
    return json_text({**schema, "x-guidance": options})
