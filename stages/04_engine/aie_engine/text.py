"""The text side of a model: what the HTTP front needs to turn messages into token ids and back, without its weights."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from aie_loader import ChatTemplate, ModelConfig, Tokenizer, find_leniency, load_tokenizer

__all__ = ["ChatTemplate", "ModelConfig", "TextModel", "Tokenizer", "load_text_model"]


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model without its weights."""

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None  # None: a model that was not trained to chat
    config: ModelConfig


def load_text_model(path: Path | str, *, lenient: Collection[str] = ()) -> TextModel:
    """Reads headers and tokenizer only; lenient: names of differences to let through. Raises the loader's errors."""
    tokenizer, chat_template, config = load_tokenizer(path, lenient=find_leniency(lenient))
    where = Path(path).resolve()
    return TextModel(where.name if where.is_dir() else where.stem, tokenizer, chat_template, config)
