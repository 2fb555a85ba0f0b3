"""Messages of a conversation with tools: calls that the assistant made, and what came of them.

Templates that know tools get both as they are. For one that does not, they are written as the text that the model is
told to use: what the functions are and how to call them goes into the system prompt, calls into the assistant's
message, and results, which such templates have no role for, into a message of the user's.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from aie_engine import InvalidInputError
from aie_server.api.fields import Fields

__all__ = ["parse_tool_calls", "parse_tool_result", "without_tools"]

Message = dict[str, Any]

_PROMPT: Final = """\
You may call functions. These are described between <tools> and </tools>, one JSON object each:
<tools>
{tools}
</tools>
To call some of them, answer with a list of calls in this form and nothing else:
<tool_call>[{{"name": "the function's name", "arguments": {{"an argument's name": "its value"}}}}]</tool_call>
Where no function is of use, answer in words."""


def parse_tool_calls(fields: Fields) -> list[Message]:
    """`tool_calls` of an assistant's message. Arguments come as text and go to the template as what they say, because
    templates write them as JSON again; a text that is no JSON object stays a text. Raises `InvalidInputError`."""
    value = fields.get("tool_calls")
    if value is None:
        return []
    if not isinstance(value, list):
        raise fields.error("tool_calls", "a list")
    return [_tool_call(call, f"{fields.name('tool_calls')}[{index}]") for index, call in enumerate(value)]


def parse_tool_result(fields: Fields) -> Message:
    """What a message of the role tool has besides its content. Raises `InvalidInputError`."""
    call_id = fields.text("tool_call_id")
    if not call_id:
        raise fields.error("tool_call_id", "the id of the call that this is the result of")
    name = fields.text("name")
    return {"tool_call_id": call_id} if name is None else {"tool_call_id": call_id, "name": name}


def without_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, object]]) -> list[Message]:
    """The same conversation for a template that knows no tools."""
    plain: list[Message] = []
    if tools:
        prompt = _PROMPT.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if messages[0]["role"] == "system":
            prompt = f"{messages[0]['content']}\n\n{prompt}"
            messages = messages[1:]
        plain.append({"role": "system", "content": prompt})
    previous = None
    for message in messages:
        if message["role"] == "tool":
            result = f"<tool_response>{message['content']}</tool_response>"
            if previous == "tool":  # results of calls made at once are one turn
                plain[-1]["content"] += f"\n{result}"
            else:
                plain.append({"role": "user", "content": result})
        elif message.get("tool_calls"):
            calls = [call["function"] for call in message["tool_calls"]]
            text = f"<tool_call>{json.dumps(calls, ensure_ascii=False)}</tool_call>"
            content = f"{message['content']}\n{text}" if message["content"] else text
            plain.append({"role": message["role"], "content": content})
        else:
            plain.append(message)
        previous = message["role"]
    return plain


def _tool_call(call: object, path: str) -> Message:
    if not isinstance(call, dict):
        raise InvalidInputError(f"{path} must be an object.", param=path)
    fields = Fields(call, path)
    call_id = fields.text("id")
    function = fields.object("function")
    if fields.get("type") not in (None, "function") or function is None:
        raise fields.error("function", "an object with name and arguments; other calls are not supported")
    name = function.text("name")
    if not name:
        raise function.error("name", "the name of the function that was called")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str | dict):
        raise function.error("arguments", "a JSON object as text")
    given: object = _arguments(arguments) if isinstance(arguments, str) else arguments or {}
    return {"id": call_id or "", "type": "function", "function": {"name": name, "arguments": given}}


def _arguments(text: str) -> object:
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return text
    return value if isinstance(value, dict) else text
