"""Prompts and messages become token ids that fit into the model's context."""

from collections.abc import Mapping
from typing import Any

from aie_engine import InvalidInputError, RequestTooLongError
from aie_server.api.fields import Fields
from aie_server.api.tool_formats import knows_tools
from aie_server.api.tool_messages import parse_tool_calls, parse_tool_result, without_tools
from aie_server.api.tools import ToolUse
from aie_server.config import ServerConfig
from aie_server.errors import UnsupportedFieldError
from aie_server.served import ServedModel

__all__ = ["chat_prompt", "check_context", "completion_prompts", "cut_prompt", "parse_truncation"]

_MAX_KEPT = 1 << 24
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def _encode(model: ServedModel, text: str, *, add_special_tokens: bool, param: str) -> tuple[int, ...]:
    """Token ids of `text`. A text that cannot possibly fit is refused by its size, before the tokenizer spends time
    on it."""
    num_bytes = len(text.encode())
    if num_bytes > 16 * model.max_seq_len and num_bytes > model.longest_token_bytes * model.max_seq_len:
        raise RequestTooLongError(
            f"{param} has {num_bytes} bytes; the model's context of {model.max_seq_len} tokens cannot hold that.",
            param=param,
        )
    return tuple(model.text.tokenizer.encode(text, add_special_tokens=add_special_tokens))


def check_context(model: ServedModel, num_prompt_tokens: int, max_tokens: int | None, *, param: str) -> int:
    """Tokens that the answer may have: `max_tokens`, or all that the prompt leaves. Raises 400 naming limit and
    counts."""
    limit = model.max_seq_len
    if num_prompt_tokens == 0:
        raise InvalidInputError(f"{param} is empty; the model needs at least one token.", param=param)
    if num_prompt_tokens >= limit:
        raise RequestTooLongError(
            f"{param} has {num_prompt_tokens} tokens; the model's context is {limit} tokens, and the answer "
            "needs at least one.",
            param=param,
        )
    if max_tokens is None:
        return limit - num_prompt_tokens
    if num_prompt_tokens + max_tokens > limit:
        raise RequestTooLongError(
            f"{num_prompt_tokens} tokens of {param} and max_tokens {max_tokens} make "
            f"{num_prompt_tokens + max_tokens}; the model's context is {limit} tokens.",
            param=param,
        )
    return max_tokens


def parse_truncation(fields: Fields) -> int | None:
    """`truncate_prompt_tokens`: how many tokens of a prompt are kept at most; None for all."""
    return fields.integer("truncate_prompt_tokens", low=1, high=_MAX_KEPT)


def cut_prompt(prompt: tuple[int, ...], keep: int | None) -> tuple[int, ...]:
    """The last `keep` tokens of the prompt: an answer goes on from the end."""
    return prompt if keep is None else prompt[-keep:]


def completion_prompts(fields: Fields, model: ServedModel, config: ServerConfig) -> list[tuple[int, ...]]:
    """The field `prompt`: a string, a list of strings, a list of token ids, or a list of such lists."""
    value = fields.get("prompt")
    if isinstance(value, str):
        items: list[object] = [value]
    elif isinstance(value, list) and value and not isinstance(value[0], str | list):
        items = [value]
    elif isinstance(value, list) and value:
        items = value
    else:
        raise fields.error(
            "prompt", "a string, a list of strings, a list of token ids, or a list of such lists, and not empty"
        )
    if len(items) > config.max_choices:
        raise fields.error("prompt", f"at most {config.max_choices} prompts, not {len(items)}")
    add_special_tokens = fields.flag("add_special_tokens", True)
    return [_one_prompt(item, model, add_special_tokens) for item in items]


def _one_prompt(item: object, model: ServedModel, add_special_tokens: bool) -> tuple[int, ...]:
    if isinstance(item, str):
        return _encode(model, item, add_special_tokens=add_special_tokens, param="prompt")
    ids = Fields({"prompt": item}).token_ids(
        "prompt", vocab_size=model.engine.info.vocab_size, max_length=max(model.max_seq_len * 4, 4096)
    )
    return ids or ()


def chat_prompt(fields: Fields, model: ServedModel, config: ServerConfig, tools: ToolUse | None) -> tuple[int, ...]:
    """The field `messages`, rendered by the model's chat template and tokenized; with the tools that may be called."""
    template = model.text.chat_template
    if template is None:
        raise InvalidInputError(
            f"The model {model.name!r} has no chat template; use /v1/completions.", param="messages"
        )
    messages = _parse_messages(fields, config)
    continue_final = fields.flag("continue_final_message", False)
    add_prompt = fields.flag("add_generation_prompt", not continue_final)
    if continue_final and (add_prompt or messages[-1]["role"] != "assistant"):
        raise fields.error(
            "continue_final_message", "used with a last message of the assistant and without add_generation_prompt"
        )
    offered = None if tools is None else tools.offered
    if not knows_tools(template):
        messages, offered = without_tools(messages, offered or ()), None
    text = template.render(
        messages, add_generation_prompt=add_prompt, tools=offered, **_template_kwargs(fields, config)
    )
    if continue_final:
        text = _cut_after(text, messages[-1]["content"].strip(), fields)
    return _encode(model, text, add_special_tokens=False, param="messages")


def _cut_after(text: str, content: str, fields: Fields) -> str:
    """`text` up to the end of the last message, without what the template closes it with."""
    start = text.rfind(content)
    if not content or start < 0:
        raise fields.error(
            "continue_final_message", "left out: this model's template does not keep the last message as it is"
        )
    return text[: start + len(content)]


def _parse_messages(fields: Fields, config: ServerConfig) -> list[dict[str, Any]]:
    value = fields.get("messages")
    if not isinstance(value, list) or not value:
        raise fields.error("messages", "a list of at least one message")
    if len(value) > config.max_messages:
        raise fields.error("messages", f"a list of at most {config.max_messages} messages, not {len(value)}")
    return [_parse_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _parse_message(message: object, path: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidInputError(f"{path} must be an object with role and content.", param=path)
    fields = Fields(message, path)
    role = fields.text("role")
    if role not in _ROLES:
        raise fields.error("role", f"one of {', '.join(_ROLES)}")
    parsed: dict[str, Any] = {"role": _ROLES[role], "content": ""}
    if role == "tool":
        parsed |= parse_tool_result(fields)
    elif role == "assistant" and (calls := parse_tool_calls(fields)):
        parsed["tool_calls"] = calls
    if fields.has("content") or "tool_calls" not in parsed:  # who only calls functions says nothing
        parsed["content"] = _content(message.get("content"), fields)
    return parsed


def _content(value: object, fields: Fields) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.error("content", "a string or a list of text parts")
    texts: list[str] = []
    for index, part in enumerate(value):
        path = f"{fields.name('content')}[{index}]"
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise InvalidInputError(f"{path} must be an object with a type.", param=path)
        if part["type"] != "text":
            raise UnsupportedFieldError(f"{path} is not text; this model reads text only.", param=path)
        if not isinstance(part.get("text"), str):
            raise InvalidInputError(f"{path}.text must be a string.", param=f"{path}.text")
        texts.append(part["text"])
    return "".join(texts)


def _template_kwargs(fields: Fields, config: ServerConfig) -> dict[str, Any]:
    """Only names from the configuration, only plain values: a template variable can switch anything inside a
    template."""
    given = fields.object("chat_template_kwargs")
    if given is None:
        return {}
    for key in given.names():
        if key not in config.allowed_template_kwargs:
            raise UnsupportedFieldError(
                f"chat_template_kwargs may name {', '.join(config.allowed_template_kwargs)}.",
                param="chat_template_kwargs",
            )
        if not isinstance(given.get(key), str | bool | int | float | None):
            raise given.error(key, "a string, a number or a flag")
    return {key: given.get(key) for key in given.names()}
