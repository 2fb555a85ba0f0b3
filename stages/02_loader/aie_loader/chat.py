"""Chat templates: a conversation into the one text that the model was trained to continue.

The template is a Jinja program that comes with the model, so it runs in Jinja's immutable sandbox, which keeps it from
Python's internals and from changing what it is given, and under the limits of `chat_sandbox.py`. What it may see is
what every engine gives it: `messages`, `tools`, `bos_token`, `eos_token`, `add_generation_prompt`, and further
variables that the caller passes and the template asks for.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import jinja2

from aie_loader.chat_sandbox import ChatEnvironment, RenderLimits
from aie_loader.errors import ChatTemplateError
from aie_loader.formats import optional_json_object
from aie_tensor import InvalidInputError

__all__ = ["ChatTemplate"]

_RESERVED = frozenset({"messages", "tools", "bos_token", "eos_token", "add_generation_prompt"})
_MAX_SOURCE_CHARS = 1 << 20


class ChatTemplate:
    """A compiled template; thread-safe. Raises `ChatTemplateError` when `source` does not compile.

    `bos` and `eos` are the texts of those tokens, which some templates write themselves.
    """

    def __init__(
        self,
        source: str,
        bos: str = "",
        eos: str = "",
        *,
        limits: RenderLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if len(source) > _MAX_SOURCE_CHARS:
            raise ChatTemplateError(f"the chat template has {len(source)} characters, more than {_MAX_SOURCE_CHARS}")
        self.source = source
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._environment = ChatEnvironment(limits or RenderLimits(), now)
        try:
            self._template = self._environment.from_string(source)
            self._variables = self._environment.variables_of(source) - _RESERVED - self._environment.globals.keys()
        except jinja2.TemplateSyntaxError as error:
            where = f"line {error.lineno}: {error.message}"
            raise ChatTemplateError(f"the chat template does not compile: {where}") from error
        except RecursionError as error:
            raise ChatTemplateError("the chat template does not compile: it is nested too deeply") from error

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> "ChatTemplate | None":
        """The template in a GGUF file's metadata, or None for models that are not made for chat."""
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            return None
        tokens = metadata.get("tokenizer.ggml.tokens")

        def text(name: str) -> str:
            index = metadata.get(f"tokenizer.ggml.{name}_token_id")
            known = isinstance(tokens, list | tuple) and isinstance(index, int) and 0 <= index < len(tokens)
            return str(tokens[index]) if known else ""  # type: ignore[index]

        return cls(source, text("bos"), text("eos"))

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate | None":
        """The template of a model folder (chat_template.jinja, else in tokenizer_config.json), or None."""
        config = optional_json_object(Path(folder) / "tokenizer_config.json")
        path = Path(folder) / "chat_template.jinja"
        source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
        if isinstance(source, list):  # several templates by name
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, Mapping)}
            source = named.get("default")
        if not isinstance(source, str):
            return None
        return cls(source, _token_text(config.get("bos_token")), _token_text(config.get("eos_token")))

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **kwargs: object,
    ) -> str:
        """The prompt text. `kwargs` are further variables of the template; those that it does not read are ignored.

        A message's content may be a text, or a list of `{"type": "text", "text": …}` parts, which are joined by
        newlines. Raises `InvalidInputError` for messages of another form and for kwargs that would replace what the
        engine provides, `ChatTemplateError` when the template refuses (many check the order of roles), fails, or
        exceeds its limits.
        """
        for name in kwargs:
            if name.startswith("_") or name in _RESERVED or name in self._environment.globals:
                raise InvalidInputError(
                    f"the template variable {name!r} cannot be replaced", param="chat_template_kwargs"
                )
        variables = {name: value for name, value in kwargs.items() if name in self._variables}
        variables |= {
            **self._tokens,
            "messages": _plain_messages(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._environment.render_bounded(self._template, variables)
        except ChatTemplateError:
            raise
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses these messages: {error}", param="messages") from error
        except Exception as error:  # any Python error that the template's code can provoke
            reason = f"{type(error).__name__}: {error}"
            raise ChatTemplateError(f"the chat template fails on these messages: {reason}", param="messages") from error


def _plain_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Copies of the messages with every content a text."""
    if not messages:
        raise InvalidInputError("messages must not be empty", param="messages")
    plain = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidInputError(f"messages[{index}] must have a role", param=f"messages[{index}].role")
        plain.append({**message, "content": _plain_content(message.get("content"), f"messages[{index}].content")})
    return plain


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


def _token_text(token: object) -> str:
    """A token in tokenizer_config.json is a text, or an object that describes it."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""
