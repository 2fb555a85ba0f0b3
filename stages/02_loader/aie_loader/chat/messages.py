"""What a chat template gets to see of a request: plain data, in the form that templates are written for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aie_tensor import InvalidInputError

__all__ = ["plain_documents", "plain_messages", "plain_value"]

_MAX_DEPTH = 64
_UNDERNEATH: Mapping[type, Callable[[Any], object]] = {str: str.__str__, int: int.__int__, float: float.__float__}
# One thing, three names: what a model thought before it answered. Templates read the first, gpt-oss the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def plain_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Copies of the messages with every content a text, without the keys whose value is None.

    Clients send `"tool_calls": null` for "none", but many templates ask only whether the key is there. Raises
    `InvalidInputError` naming the field.
    """
    if not messages:
        raise InvalidInputError("messages must not be empty", param="messages")
    plain = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidInputError(f"{where} must have a role", param=f"{where}.role")
        given = {key: plain_value(value, f"{where}.{key}") for key, value in message.items() if value is not None}
        reasoning = next((given[name] for name in _REASONING if name in given), None)
        if reasoning is not None:
            given = {"thinking": reasoning, **given, "reasoning_content": reasoning}
        plain.append({**given, "content": _plain_content(message.get("content"), f"{where}.content")})
    return plain


def plain_documents(documents: Sequence[Mapping[str, object]], what: str) -> list[dict[str, object]]:
    """Copies of documents or tools, each an object. Raises `InvalidInputError` naming the one that is none."""
    plain = []
    for index, document in enumerate(documents):
        if not isinstance(document, Mapping):
            raise InvalidInputError(f"{what}[{index}] must be an object", param=f"{what}[{index}]")
        plain.append({key: plain_value(value, f"{what}[{index}].{key}") for key, value in document.items()})
    return plain


def plain_value(value: object, where: str, depth: int = 0) -> object:
    """`value` out of JSON's types: a template is a stranger's program, so it gets no other object, whose methods could
    do anything. What is none of these becomes the name of its type. Raises `InvalidInputError` for a bottomless one."""
    if depth > _MAX_DEPTH:
        raise InvalidInputError(f"{where} is nested more than {_MAX_DEPTH} deep", param=where)
    if value is None or type(value) in {str, int, float, bool}:
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_value(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item, where, depth + 1) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind):  # a subclass, such as an enumeration: back to what it is underneath
            return _UNDERNEATH[kind](value)
    return f"<{type(value).__name__}>"


def _plain_content(content: object, where: str) -> str:
    if content is None:  # an assistant turn that only calls tools
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidInputError(f"{where} must be a text or a list of text parts", param=where)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise InvalidInputError(
                f"{where}[{index}] has type {kind!r}; only 'text' is supported", param=f"{where}[{index}].type"
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidInputError(f"{where}[{index}].text must be a text", param=f"{where}[{index}].text")
        texts.append(text)
    return "\n".join(texts)
