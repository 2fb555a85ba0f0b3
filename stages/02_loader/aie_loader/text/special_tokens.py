"""What a model wants around a text and between the two texts of a pair, such as BERT's `[CLS] … [SEP] … [SEP]`."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import processors

__all__ = ["SpecialTokens", "post_processor"]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Each token as (text, id)."""

    start: tuple[str, int] | None = None  # before a text
    end: tuple[str, int] | None = None  # after a text
    doubles_separator: bool = False  # RoBERTa: <s> first </s></s> second </s>
    starts_second: bool = False  # Llama: <s> first <s> second
    second_type: int = 0  # type id of the second text


def post_processor(tokens: SpecialTokens) -> processors.PostProcessor | None:
    """The step that adds them, or None where there are none."""
    start, end = tokens.start, tokens.end
    if start is None and end is None:
        return None
    before = "start:{}" if start else ""
    after = "end:{}" if end else ""
    between = after if tokens.doubles_separator else before if tokens.starts_second else ""
    first = _template([before, "$A:{}", after], 0)
    second = _template([between, "$B:{}", after], tokens.second_type)
    named = {"start": start, "end": end}  # by names of ours: a token's text could be taken for a part of a template
    special = [{"id": name, "ids": [token[1]], "tokens": [token[0]]} for name, token in named.items() if token]
    return processors.TemplateProcessing(single=first, pair=first + second, special_tokens=special)


def _template(items: Sequence[str], type_id: int) -> list[str]:
    return [item.format(type_id) for item in items if item]
