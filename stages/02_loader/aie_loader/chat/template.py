"""Chat templates: a conversation into the one text that the model was trained to continue.

The template is a Jinja program that comes with the model, so it runs in Jinja's immutable sandbox, which keeps it from
Python's internals and from changing what it is given, and under the limits of `sandbox.py`. What it may see is
what every engine gives it: `messages`, `tools`, `documents`, `add_generation_prompt`, the special tokens (`bos_token`,
`eos_token`, …), and further variables that the caller passes and the template asks for. A model may have several
templates: for calling tools and for answering from documents, say, there is often one each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import jinja2

from aie_loader.chat.files import DEFAULT, TOKEN_NAMES, folder_sources, gguf_sources
from aie_loader.chat.messages import plain_documents, plain_messages, plain_value
from aie_loader.chat.sandbox import ChatEnvironment, RenderLimits
from aie_loader.errors import ChatTemplateError
from aie_tensor import InvalidInputError

__all__ = ["ChatTemplate"]

_RESERVED = frozenset({"messages", "tools", "documents", "template", "add_generation_prompt", *TOKEN_NAMES})
_MAX_SOURCE_CHARS = 1 << 18  # the longest in use have a tenth of it
_FOR_TOOLS, _FOR_DOCUMENTS = "tool_use", "rag"


@dataclass(frozen=True, slots=True)
class _Compiled:
    template: jinja2.Template
    variables: frozenset[str]  # that the template reads and the caller may give


class ChatTemplate:
    """A model's templates; thread-safe. Raises `ChatTemplateError` when the default one does not compile; the others
    are compiled when they are first used.

    `source` is one Jinja program, or several by name. `bos` and `eos` are the texts of those tokens, which some
    templates write themselves; `tokens` those of further ones, such as "pad_token"; the attribute holds all.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        bos: str = "",
        eos: str = "",
        *,
        tokens: Mapping[str, str] | None = None,
        limits: RenderLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.sources: Mapping[str, str] = {DEFAULT: source} if isinstance(source, str) else dict(source)
        if not self.sources:
            raise ChatTemplateError("the model has no chat template")
        self.tokens: Mapping[str, str] = {"bos_token": bos, "eos_token": eos, **(tokens or {})}
        self._environment = ChatEnvironment(limits or RenderLimits(), now)
        self._compiled: dict[str, _Compiled] = {}
        self._compile(DEFAULT if DEFAULT in self.sources else next(iter(self.sources)))

    @property
    def names(self) -> tuple[str, ...]:
        """The model's templates; "default" is the one for ordinary chat."""
        return tuple(self.sources)

    @property
    def source(self) -> str:
        """The program of the default template, or of the first where none is called so."""
        return self.sources.get(DEFAULT) or next(iter(self.sources.values()))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> "ChatTemplate | None":
        """The templates in a GGUF file's metadata, or None for models that are not made for chat."""
        found = gguf_sources(metadata)
        return cls(found.templates, tokens=found.tokens) if found.templates else None

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate | None":
        """The templates of a model folder, or None."""
        found = folder_sources(Path(folder))
        return cls(found.templates, tokens=found.tokens) if found.templates else None

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        template: str | None = None,
        **kwargs: object,
    ) -> str:
        """The prompt text. `kwargs` are further variables of the template; those that it does not read are ignored.

        `tools` are functions the model may call, `documents` texts it may answer from. `template` names one of `names`;
        without it "tool_use" is taken where there are tools and such a template, then "rag" where there are documents,
        else the default. A message's content may be a text, or a list of `{"type": "text", "text": …}` parts, which are
        joined by newlines. Raises `InvalidInputError` for messages of another form, an unknown name, and kwargs that
        would replace what the engine provides; `ChatTemplateError` when the template refuses (many check the order of
        roles), fails, or exceeds its limits.
        """
        for name in kwargs:
            if name.startswith("_") or name in _RESERVED or name in self._environment.globals:
                raise InvalidInputError(
                    f"the template variable {name!r} cannot be replaced", param="chat_template_kwargs"
                )
        compiled = self._compile(self._choose(template, bool(tools), bool(documents)))
        variables = {name: plain_value(value, name) for name, value in kwargs.items() if name in compiled.variables}
        variables |= {
            **self.tokens,
            "messages": plain_messages(messages),
            "tools": plain_documents(tools, "tools") if tools else None,
            "documents": plain_documents(documents, "documents") if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._environment.render_bounded(compiled.template, variables)
        except ChatTemplateError:
            raise
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses these messages: {error}", param="messages") from error
        except Exception as error:  # any Python error that the template's code can provoke
            reason = f"{type(error).__name__}: {error}"
            raise ChatTemplateError(f"the chat template fails on these messages: {reason}", param="messages") from error

    def _choose(self, name: str | None, has_tools: bool, has_documents: bool) -> str:
        known = ", ".join(self.names)
        if name is not None:
            if name not in self.sources:
                raise InvalidInputError(f"the model has no chat template {name!r}; it has {known}", param="template")
            return name
        if has_tools and _FOR_TOOLS in self.sources:
            return _FOR_TOOLS
        if has_documents and _FOR_DOCUMENTS in self.sources:
            return _FOR_DOCUMENTS
        if DEFAULT in self.sources:
            return DEFAULT
        if len(self.sources) == 1:
            return next(iter(self.sources))
        raise ChatTemplateError(f"the model has no default chat template; name one of {known}", param="template")

    def _compile(self, name: str) -> _Compiled:
        compiled = self._compiled.get(name)
        if compiled is None:  # two threads may both compile it: no harm
            compiled = self._compiled[name] = self._compile_source(name, self.sources[name])
        return compiled

    def _compile_source(self, name: str, source: str) -> _Compiled:
        which = "the chat template" if name == DEFAULT else f"the chat template {name!r}"
        if len(source) > _MAX_SOURCE_CHARS:
            raise ChatTemplateError(f"{which} has {len(source)} characters, more than {_MAX_SOURCE_CHARS}")
        try:
            template = self._environment.from_string(source)
            variables = self._environment.variables_of(source) - _RESERVED - self._environment.globals.keys()
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"{which} does not compile: line {error.lineno}: {error.message}") from error
        except (RecursionError, MemoryError, SyntaxError) as error:  # the last of Python, which Jinja compiles to
            raise ChatTemplateError(f"{which} does not compile: it is nested too deeply") from error
        return _Compiled(template, frozenset(variables))
