"""Writes golden.json: what transformers renders of the templates beside it, with and without tools and documents.

The templates are ours, written in the manner of published ones. Needs transformers; the suite does not, it reads what
is written here. Run with: python tests/02_loader/chat_templates/make.py
"""

import datetime
import json
from pathlib import Path

import jinja2
import tokenizers
import transformers
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
NOW = datetime.datetime(2024, 5, 6, 7, 8)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, in °C <now>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"unit": "°C", "city": "Köln"}}}
USER, SYSTEM = {"role": "user", "content": " Weather in Köln?\nAnd wind? "}, {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "\n12 °C <sunny>", "reasoning": "\nIt is May.\n"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": '{"temperature": "12 °C"}', "name": "get_weather"}
CONVERSATIONS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "several": [SYSTEM, USER, ANSWER, {"role": "user", "content": "And tomorrow?"}],
    "alternating": [USER, ANSWER, USER],
    "answered": [USER, ANSWER],
    "calling": [USER, CALLING, RESULT],
    "two results": [USER, CALLING, RESULT, RESULT, ANSWER],
    "two calls": [USER, {**CALLING, "tool_calls": [CALL, CALL]}],
    "no tools called": [USER, {"role": "assistant", "content": "hi", "tool_calls": None, "name": None}],
}
DOCUMENTS = [{"id": 1, "title": "Wind", "text": "A long text about the wind, which blows. " * 3}, {"title": "Rain"}]


class FrozenTime(datetime.datetime):
    @classmethod
    def now(cls, tz: object = None) -> "FrozenTime":
        return cls(NOW.year, NOW.month, NOW.day, NOW.hour, NOW.minute)


def records() -> list[dict[str, object]]:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **TOKENS)
    found = []
    for path in sorted(HERE.glob("*.jinja")):
        tokenizer.chat_template = path.read_text("utf-8")
        for messages in CONVERSATIONS.values():
            for options in (
                {},
                {"add_generation_prompt": False},
                {"tools": [TOOL]},
                {"documents": DOCUMENTS},
                {"enable_thinking": False, "date_string": "today"},
            ):
                call = {"add_generation_prompt": True, **options}
                try:
                    text = tokenizer.apply_chat_template(messages, tokenize=False, **call)
                except (jinja2.TemplateError, TypeError):  # the template refuses, or there are no documents
                    text = None
                found.append({"template": path.name, "messages": messages, "options": call, "text": text})
    return found


if __name__ == "__main__":
    chat_template_utils.datetime = FrozenTime
    golden = {"now": NOW.isoformat(), "tokens": TOKENS, "records": records()}
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n", encoding="utf-8")
