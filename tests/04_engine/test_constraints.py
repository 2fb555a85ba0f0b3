"""Constraints: what they allow, and what they refuse."""

import ctypes
import json
import re
from pathlib import Path

import numpy as np
import pytest

from aie_engine.constraints import (
    Constraint,
    ConstraintError,
    ConstraintMaker,
    ConstraintSpec,
    ConstraintsUnavailableError,
    TokenMatcher,
    check_constraint,
)
from aie_engine.text import TextModel, load_text_model

pytest.importorskip("llguidance", reason="needs llguidance (pip install -e '.[structured]')")

PADDING = 50  # ids that the model has and the tokenizer has not
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "grün", 'a "quoted" one']}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def text(tiny_model: Path) -> TextModel:
    return load_text_model(tiny_model)


@pytest.fixture(scope="module")
def maker(text: TextModel) -> ConstraintMaker:
    vocab_size = text.tokenizer.vocab_size + PADDING
    return ConstraintMaker(text.tokenizer, vocab_size=vocab_size, eos_token_ids=text.config.eos_token_ids)


def allowed(constraint: Constraint) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little"))


def write(constraint: Constraint, text: TextModel, seed: int, *, max_tokens: int = 400) -> str | None:
    """A text of tokens drawn from those allowed, often those that close something; None where it does not end."""
    rng = np.random.default_rng(seed)
    closing = {token for mark in '"}]' for token in text.tokenizer.encode(mark)}
    ids: list[int] = []
    while len(ids) < max_tokens:
        choices = allowed(constraint)
        ends = [token for token in choices if token in closing]
        token = int(rng.choice(ends if ends and rng.random() < 0.3 else choices))
        if token in text.config.eos_token_ids:
            return text.tokenizer.decode(ids)
        constraint.accept(token)
        ids.append(token)
        if constraint.is_done:
            return text.tokenizer.decode(ids)
    return None


def written(maker: ConstraintMaker, text: TextModel, spec: ConstraintSpec, num: int = 30) -> list[str]:
    texts = [found for seed in range(num) if (found := write(maker.make(spec), text, seed)) is not None]
    assert len(texts) > num // 2, "too few answers came to an end"
    return texts


def test_every_text_of_a_schema_parses_and_fits_it(maker: ConstraintMaker, text: TextModel) -> None:
    for found in written(maker, text, ConstraintSpec("json_schema", json.dumps(PERSON))):
        value = json.loads(found)
        assert set(value) == {"name", "age", "tags"}
        assert isinstance(value["name"], str) and len(value["name"]) <= 12
        assert type(value["age"]) is int and 0 <= value["age"] <= 150
        assert len(value["tags"]) <= 3 and set(value["tags"]) <= {"red", "grün", 'a "quoted" one'}


def test_a_schema_may_forbid_spaces_and_they_are_bounded_anyway(maker: ConstraintMaker, text: TextModel) -> None:
    tight = {**PERSON, "x-guidance": {"whitespace_flexible": False}}
    for found in written(maker, text, ConstraintSpec("json_schema", json.dumps(tight)), 12):
        assert not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', "", found))
    own = {**PERSON, "x-guidance": {"whitespace_pattern": " "}}
    for found in written(maker, text, ConstraintSpec("json_schema", json.dumps(own)), 12):
        assert not re.search(r"[\n\t]", found)
    for found in written(maker, text, ConstraintSpec("json_schema", json.dumps(PERSON)), 12):
        assert not re.search(r"[ \n\t\r]{33}", found)


def test_a_json_object_is_an_object(maker: ConstraintMaker, text: TextModel) -> None:
    for found in written(maker, text, ConstraintSpec("json_object"), 12):
        assert isinstance(json.loads(found), dict)


def test_a_regular_expression_matches_all_of_the_answer(maker: ConstraintMaker, text: TextModel) -> None:
    expression = r"(the|a) (cat|sat|ü){1,3}-[0-9]{2,4}"
    for found in written(maker, text, ConstraintSpec("regex", expression)):
        assert re.fullmatch(expression, found)


def test_a_choice_is_one_of_the_choices(maker: ConstraintMaker, text: TextModel) -> None:
    choices = ["yes", "yes, but", 'no "never"', "Ünicode ☃", "a\nb"]
    assert set(written(maker, text, ConstraintSpec("choice", json.dumps(choices)), 60)) == set(choices)


@pytest.mark.parametrize(
    "grammar", ['start: ("ab" | "c"){2,4} ";"', 'root ::= item item? item? item? ";"\nitem ::= "ab" | "c"'],
    ids=["lark", "gbnf"],
)  # fmt: skip
def test_a_grammar_in_either_notation(maker: ConstraintMaker, text: TextModel, grammar: str) -> None:
    for found in written(maker, text, ConstraintSpec("grammar", grammar)):
        assert re.fullmatch(r"(ab|c){1,4};", found)


def test_neither_padding_nor_control_tokens_ever_come(maker: ConstraintMaker, text: TextModel) -> None:
    constraint = maker.make(ConstraintSpec("regex", r"(.|\n)*"))
    mask = constraint.mask()
    assert mask.dtype == np.uint32 and len(mask) == -(-(text.tokenizer.vocab_size + PADDING) // 32)
    ids = set(allowed(constraint).tolist())
    assert max(ids) < text.tokenizer.vocab_size
    assert ids & text.tokenizer.special_ids == set(text.config.eos_token_ids)
    assert len(ids) > text.tokenizer.vocab_size // 2


def test_a_complete_form_is_done_at_its_last_token(maker: ConstraintMaker, text: TextModel) -> None:
    constraint = maker.make(ConstraintSpec("choice", '["yes"]'))
    for token in text.tokenizer.encode("yes"):
        assert not constraint.is_done
        constraint.accept(token)
    assert constraint.is_done


def test_a_token_that_is_not_allowed_is_an_error(maker: ConstraintMaker, text: TextModel) -> None:
    constraint = maker.make(ConstraintSpec("regex", "[0-9]+", "guided_regex"))
    with pytest.raises(ConstraintError, match="guided_regex") as caught:
        constraint.accept(text.tokenizer.encode("x")[0])
    assert caught.value.param == "guided_regex" and caught.value.status == 400


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ConstraintSpec("json_schema", "{"), "EOF"),
        (ConstraintSpec("json_schema", "[1]"), "schema"),
        (ConstraintSpec("json_schema", '{"type": "number", "minimum": 5, "maximum": 3}'), "Unsatisfiable"),
        (ConstraintSpec("json_schema", '{"type": "nothing"}'), "nothing"),
        (ConstraintSpec("json_schema", '{"type": "object", "unevaluatedProperties": false}'), "unevaluatedProperties"),
        (ConstraintSpec("json_schema", '{"$ref": "file:///etc/hostname"}'), "file"),
        (ConstraintSpec("json_schema", '{"items": ' * 5000 + "{}" + "}" * 5000), "recursion limit"),
        (ConstraintSpec("regex", "(a"), "unclosed group"),
        (ConstraintSpec("regex", "(?=a)b"), "look-around"),
        (ConstraintSpec("regex", "(" * 20_000 + ")" * 20_000), "refused"),
        (ConstraintSpec("regex", r"[^\x00-\U0010ffff]"), "refused|no text can"),
        (ConstraintSpec("json_schema", '{"$ref": "#"}'), "no text can have that form"),
        (ConstraintSpec("grammar", 'start: "a" nothing'), "nothing"),
        (ConstraintSpec("grammar", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000), "nested"),
        (ConstraintSpec("grammar", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000), "recursion"),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_says_why_in_a_line(maker: ConstraintMaker, spec: ConstraintSpec, words: str) -> None:
    with pytest.raises(ConstraintError, match=words) as caught:
        maker.make(spec)
    message = str(caught.value)
    assert message.startswith("response_format ") and len(message) < 400 and "\n" not in message


def test_a_state_that_grows_too_large_ends_its_own_answer(maker: ConstraintMaker, text: TextModel) -> None:
    constraint = maker.make(ConstraintSpec("grammar", "start: " + " | ".join(f'"a{n}"' for n in range(8000))))
    with pytest.raises(ConstraintError, match="cannot be followed"):
        write(constraint, text, 0)


def test_masks_that_take_too_long_end_their_own_answer() -> None:
    class Slow:
        """As the library's: every token is allowed, and each mask takes its time."""

        now_s, takes_s = 0.0, 0.004

        def unsafe_compute_mask_ptr(self, pointer: int, num_bytes: int) -> None:
            ctypes.memset(pointer, 255, num_bytes)
            self.now_s += self.takes_s

        def is_error(self) -> bool:
            return False

        def consume_token(self, token_id: int) -> bool:
            return True

    slow = Slow()
    constraint = TokenMatcher(slow, 4, "guided_regex", cpu_s=lambda: slow.now_s)
    for _ in range(1000):  # less than each token's share
        constraint.mask()
        constraint.accept(0)
    slow.takes_s = 0.1
    with pytest.raises(ConstraintError, match="guided_regex takes too long"):
        for _ in range(20):
            constraint.mask()
            constraint.accept(0)


def test_a_long_text_without_a_choice_is_not_tokenized_at_every_step(text: TextModel) -> None:
    longest = 0

    class Watching:
        vocab_size, special_ids = text.tokenizer.vocab_size, text.tokenizer.special_ids
        token_bytes = text.tokenizer.token_bytes

        def encode(self, value: str, *, add_special_tokens: bool = False, parse_special: bool = True) -> list[int]:
            nonlocal longest
            longest = max(longest, len(value.encode()))
            return text.tokenizer.encode(value, parse_special=parse_special)

    maker = ConstraintMaker(Watching(), vocab_size=text.tokenizer.vocab_size, eos_token_ids=(2,))
    sentence = "The queue waits for the ünicode ☃ scheduler, "
    constraint = maker.make(ConstraintSpec("regex", f"({sentence}){{100}}"))
    for token in text.tokenizer.encode(sentence * 100)[:500]:
        assert allowed(constraint).tolist() == [token], "as the model itself would write it"
        constraint.accept(token)
    assert 0 < longest <= 512


@pytest.mark.parametrize("header", ["", "%llguidance {}\n", '  %llguidance {"no_forcing": false}\n'])
@pytest.mark.parametrize("rule", ["start: /b+/{2}", 'start: "a" start', "start: x\nx: %lark {\nstart: /b+/{2}\n}\n"])
def test_a_text_that_is_forced_for_ever_is_not_written_down(
    maker: ConstraintMaker, text: TextModel, header: str, rule: str
) -> None:
    constraint = maker.make(ConstraintSpec("grammar", header + rule))
    for _ in range(3):
        constraint.accept(int(allowed(constraint)[0]))
    with pytest.raises(ConstraintError, match="beginning only"):
        maker.make(ConstraintSpec("grammar", f"{header}{rule}\n%llguidance {{}}"))


def test_the_same_constraint_is_compiled_once_and_followed_separately(maker: ConstraintMaker, text: TextModel) -> None:
    spec = ConstraintSpec("regex", "ab|ba")
    first, second = maker.make(spec), maker.make(spec)
    a, b = text.tokenizer.encode("a")[0], text.tokenizer.encode("b")[0]
    first.accept(a)
    assert a not in allowed(first)
    assert {a, b} <= set(allowed(second).tolist())


def test_what_was_compiled_long_ago_is_forgotten(maker: ConstraintMaker) -> None:
    for number in range(40):
        maker.make(ConstraintSpec("regex", f"a{number}"))
    assert len(maker._kept) == 32
    assert ("regex", "a39") in maker._kept and ("regex", "a7") not in maker._kept


# What is refused before anybody compiles it


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ConstraintSpec("regex", "a" * 101, "guided_regex"), "guided_regex has 101 characters; at most 100"),
        (ConstraintSpec("regex", " "), "must not be empty"),
        (ConstraintSpec("choice", "[]"), "none of them empty"),
        (ConstraintSpec("choice", '["a", ""]'), "none of them empty"),
    ],
)
def test_check_names_the_field(spec: ConstraintSpec, words: str) -> None:
    with pytest.raises(ConstraintError, match=words) as caught:
        check_constraint(spec, max_chars=100)
    assert caught.value.param == spec.param


def test_without_the_package_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch, text: TextModel) -> None:
    from importlib import util

    monkeypatch.setattr(util, "find_spec", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(ConstraintsUnavailableError, match=re.escape("pip install 'aie[structured]'")) as caught:
        check_constraint(ConstraintSpec("json_object"))
    assert caught.value.status == 501
    with pytest.raises(ConstraintsUnavailableError):
        ConstraintMaker(text.tokenizer, vocab_size=text.tokenizer.vocab_size, eos_token_ids=(2,))


def test_a_tokenizer_that_writes_a_space_before_a_text_is_seen_through(text: TextModel) -> None:
    """Forced text is written in tokens that stand for just these bytes."""

    class Spacing:
        vocab_size = text.tokenizer.vocab_size
        special_ids = text.tokenizer.special_ids

        def encode(self, value: str, *, add_special_tokens: bool = False, parse_special: bool = True) -> list[int]:
            return text.tokenizer.encode(" " + value, parse_special=parse_special)

        def token_bytes(self, token_id: int) -> bytes:
            return text.tokenizer.token_bytes(token_id)

    maker = ConstraintMaker(Spacing(), vocab_size=text.tokenizer.vocab_size, eos_token_ids=(2,))
    assert write(maker.make(ConstraintSpec("choice", '["the request ☃"]')), text, 0) == "the request ☃"
