"""Where model files keep their chat templates, and the special tokens that templates write themselves.

A folder may have them in tokenizer_config.json, as one text or a list of named ones; newer ones in chat_template.jinja,
with further ones as additional_chat_templates/NAME.jinja; models that also read images in chat_template.json. GGUF has
the keys tokenizer.chat_template and tokenizer.chat_template.NAME. The name of the one that is taken where nothing says
otherwise is "default".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aie_loader.errors import ChatTemplateError
from aie_loader.formats import optional_json_object

__all__ = ["DEFAULT", "TOKEN_NAMES", "ChatSources", "folder_sources", "gguf_sources"]

DEFAULT = "default"
TOKEN_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_MAX_BYTES = 4 << 20  # of one file
_MAX_TEMPLATES = 64
_GGUF_KEY = "tokenizer.chat_template"
_GGUF_IDS = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask"}


@dataclass(frozen=True, slots=True)
class ChatSources:
    """What a model's files say: Jinja programs by name, and the texts of special tokens by `TOKEN_NAMES`."""

    templates: Mapping[str, str]
    tokens: Mapping[str, str]


def folder_sources(folder: Path) -> ChatSources:
    """`templates` is empty for a model that is not made for chat. Raises `ChatTemplateError`, or
    `MalformedHeaderError` for a file that is not a JSON object."""
    config = optional_json_object(folder / "tokenizer_config.json")
    special = optional_json_object(folder / "special_tokens_map.json")
    templates = _named(optional_json_object(folder / "chat_template.json").get("chat_template"))
    templates |= _named(config.get("chat_template"))
    path = folder / "chat_template.jinja"
    if path.is_file():
        templates[DEFAULT] = _read(path)
    additional = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    if len(additional) > _MAX_TEMPLATES:
        raise ChatTemplateError(f"{folder} has {len(additional)} chat templates, more than {_MAX_TEMPLATES}")
    templates |= {path.stem: _read(path) for path in additional}
    texts = {name: _token_text(config.get(name)) or _token_text(special.get(name)) for name in TOKEN_NAMES}
    return ChatSources(templates, {name: text for name, text in texts.items() if text})


def gguf_sources(metadata: Mapping[str, object]) -> ChatSources:
    """As `folder_sources`, from the metadata of a GGUF file."""
    templates = {}
    for key, value in metadata.items():
        name = DEFAULT if key == _GGUF_KEY else key.removeprefix(f"{_GGUF_KEY}.")
        if name != key and name and isinstance(value, str):
            templates[name] = value
    tokens = metadata.get("tokenizer.ggml.tokens")
    texts = {}
    for name, key in _GGUF_IDS.items():
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(tokens, list | tuple) and isinstance(index, int) and 0 <= index < len(tokens):
            texts[f"{name}_token"] = str(tokens[index])
    return ChatSources(templates, texts)


def _named(value: object) -> dict[str, str]:
    """The templates in a JSON value: a text, a list of {"name": …, "template": …}, or an object of texts."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, Mapping)]
        value = {entry.get("name"): entry.get("template") for entry in entries}
    if not isinstance(value, Mapping):
        return {}
    return {name: text for name, text in value.items() if isinstance(name, str) and isinstance(text, str)}


def _read(path: Path) -> str:
    if path.stat().st_size > _MAX_BYTES:
        raise ChatTemplateError(f"{path} is larger than {_MAX_BYTES >> 20} MiB, too large for a chat template")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ChatTemplateError(f"{path} is not UTF-8 text") from error


def _token_text(token: object) -> str:
    """A token in these files is a text, or an object that describes it."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""
