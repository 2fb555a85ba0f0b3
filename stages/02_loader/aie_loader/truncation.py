"""Texts that are longer than a model can read lose their end, but keep the tokens that close a text."""

from aie_loader.tokenizer import Tokenizer

__all__ = ["encode_truncated"]


def encode_truncated(tokenizer: Tokenizer, text: str, max_length: int | None) -> list[int]:
    """Ids of `text` with the tokens that the model wants around it ([CLS] … [SEP]), at most `max_length` in all."""
    ids = tokenizer.encode(text, add_special_tokens=True)
    if max_length is None or len(ids) <= max_length:
        return ids
    own = tokenizer.encode(text)
    around = len(ids) - len(own)
    before = next(start for start in range(around + 1) if ids[start : start + len(own)] == own)
    kept = own[: max(max_length - around, 0)]
    return ids[:before] + kept + ids[before + len(own) :]
