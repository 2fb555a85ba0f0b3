"""Several answers to one prompt, and the prompt as a part of the answer."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aie_engine import AieError, GenerateRequest, TokenEvent
from aie_server import ServerConfig
from aie_server.api.choices import parse_fanout
from aie_server.api.fields import Fields
from aie_server.api.sampling import parse_max_tokens, parse_output_options, parse_sampling


def test_each_choice_is_a_request_and_the_prompt_is_counted_once(harness: Any) -> None:
    body = harness.chat(n=3, max_tokens=5).json
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [
        (index, "Hello") for index in range(3)
    ]
    assert body["usage"] == {
        "prompt_tokens": 21, "completion_tokens": 15, "total_tokens": 36, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    assert len({request.request_id for request in harness.engine.requests}) == 3
    assert len({request.prompt_ids for request in harness.engine.requests}) == 1


def test_cached_tokens_are_those_of_the_first_choice(harness: Any, make_engine: Any) -> None:
    def script(request: GenerateRequest) -> Iterable[TokenEvent]:
        cached = 16 if len(harness.engine.requests) > 1 else 4  # the others find what the first has computed
        yield TokenEvent(request.request_id, (65,), finish_reason="length", num_cached_tokens=cached)

    harness.serve(make_engine(script))
    usage = harness.complete("x" * 20, n=3).json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 4


def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(harness: Any) -> None:
    body = harness.complete(["a", "bc"], n=2, best_of=2, max_tokens=2).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [bytes(request.prompt_ids) for request in harness.engine.requests] == [b"a", b"a", b"bc", b"bc"]
    assert body["usage"]["prompt_tokens"] == 3 and body["usage"]["completion_tokens"] == 8


def test_the_first_choice_has_the_seed_and_the_others_their_own(harness: Any) -> None:
    harness.complete(seed=-7, n=4)
    harness.complete(["a", "b"], seed=-7, n=2)
    harness.complete(n=2)
    seeds = [request.sampling.seed for request in harness.engine.requests]
    assert seeds[0] == -7 and len(set(seeds[:4])) == 4
    assert all(-(2**63) <= seed < 2**64 for seed in seeds[:8])
    assert seeds[4:8] == seeds[:2] * 2, "each prompt of several gets what it would get alone"
    assert seeds[8:] == [None, None]


def test_choices_stream_side_by_side(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    client = harness.connect(harness.serve(engine))
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "n": 2}
    client.post("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    engine.emit("second", index=1)
    client.head()
    first = client.chunk()
    assert first.count(b'"role":"assistant"') == 2 and b'"index":1,"delta":{"content":"second"}' in first
    engine.emit("first", index=0)
    engine.emit("!", index=1, finish_reason="length")
    engine.emit("?", index=0, finish_reason="length")
    *events, usage, done = client.answer_of_chunks().events
    texts = {0: "", 1: "second"}
    for event in events:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "first?", 1: "second!"} and done == "[DONE]"
    assert {event["choices"][0]["index"] for event in events if event["choices"][0]["finish_reason"]} == {0, 1}
    assert usage["usage"]["prompt_tokens"] == 21 and usage["usage"]["completion_tokens"] == 13


def test_a_choice_that_fails_ends_them_all(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    client = harness.connect(harness.serve(engine))
    client.post("/v1/completions", {"prompt": "hi", "n": 3})
    engine.wait_for_request(2)
    engine.emit(finish_reason="error", index=1)
    assert client.answer().status == 500
    engine.wait_for_cancel(2)


def test_too_many_choices_are_refused_with_the_limit(harness: Any) -> None:
    error = harness.complete(["a"] * 10, n=7).error
    assert error["param"] == "n" and "at most 6 with 10 prompts" in error["message"] and "64" in error["message"]
    assert "from 1 to 64" in harness.chat(n=65).error["message"]
    assert harness.engine.requests == []


def test_wishes_reach_the_engine(harness: Any) -> None:
    harness.complete(
        "hi there", typical_p=0.9, repetition_penalty=1.1, frequency_penalty=0.5, presence_penalty=-0.5,
        logit_bias={"65": 5, "66": -100}, bad_words=["no", " way"], allowed_token_ids=[65, 66, 256], min_tokens=2,
        prompt_logprobs=1, priority=-3, cache_salt="tenant", truncate_prompt_tokens=5,
    )  # fmt: skip
    (request,) = harness.engine.requests
    wish = request.sampling
    assert (wish.typical_p, wish.repetition_penalty, wish.frequency_penalty, wish.presence_penalty) == (
        0.9, 1.1, 0.5, -0.5,
    )  # fmt: skip
    assert wish.logit_bias == ((65, 5.0), (66, -100.0))
    assert wish.bad_words == (tuple(b"no"), tuple(b"way")), "a space before it would be a token of its own"
    assert (wish.allowed_token_ids, wish.min_tokens, wish.prompt_logprobs) == ((65, 66, 256), 2, 1)
    assert request.priority == -3 and bytes(request.prompt_ids) == b"there"
    assert request.cache_salt.endswith("tenant")


def test_salts_and_clients_share_nothing(harness: Any) -> None:
    harness.serve(api_keys=["one", "two"])
    for key in ("one", "two"):
        for salt in ("a", "b", None):
            body = {"prompt": "hi", **({} if salt is None else {"cache_salt": salt})}
            harness.connect().post("/v1/completions", body, {"Authorization": f"Bearer {key}"}).answer()
    assert len({request.cache_salt for request in harness.engine.requests}) == 6


def test_without_keys_all_share_what_has_no_salt(harness: Any) -> None:
    for salt in (None, None, "a"):
        harness.complete("hi", **({} if salt is None else {"cache_salt": salt}))
    first, second, salted = (request.cache_salt for request in harness.engine.requests)
    assert first == second != salted and "127.0.0.1" not in first


class TestBadWords:
    """Words as tokens, with a tokenizer that knows words with a space before them."""

    @pytest.fixture(autouse=True)
    def _spaced(self, harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        known = {"cat": [1], " cat": [2], "dog": [3], " dog": [4, 5], "new": [400]}
        encode = harness.text.tokenizer.encode
        monkeypatch.setattr(
            harness.text.tokenizer, "encode", lambda text, **kwargs: known.get(text) or encode(text, **kwargs)
        )

    @pytest.mark.parametrize(("word", "expected"), [
        ("cat", ((1,), (2,))), (" cat", ((1,), (2,))), ("dog", ((3,),)), (" ", ((32,),)),
    ])  # fmt: skip
    def test_with_and_without_a_space(self, harness: Any, word: str, expected: tuple[tuple[int, ...], ...]) -> None:
        harness.complete(bad_words=[word])
        assert harness.engine.requests[0].sampling.bad_words == expected

    def test_a_word_that_the_model_cannot_say_is_refused(self, harness: Any) -> None:
        assert harness.complete(bad_words=["new"]).error["param"] == "bad_words"


def test_no_stop_string_before_min_tokens(harness: Any) -> None:
    choice = harness.complete(stop="l", min_tokens=3, max_tokens=20).json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hel", "stop")
    choice = harness.complete(stop="l", min_tokens=4, max_tokens=20).json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hello, wörld"[:10], "stop")


def test_echo_begins_with_the_prompt(harness: Any) -> None:
    body = harness.complete(["one ", "tẅo "], echo=True, max_tokens=5, n=2).json
    assert [choice["text"] for choice in body["choices"]] == ["one Hello"] * 2 + ["tẅo Hello"] * 2
    assert body["usage"]["completion_tokens"] == 20


def test_echo_scores_the_prompt_as_openai_does(harness: Any) -> None:
    choice = harness.complete("aé", echo=True, logprobs=1, max_tokens=2).json["choices"][0]
    assert choice["text"] == "aéHe"
    assert choice["logprobs"] == {
        "tokens": ["a", "\ufffd", "\ufffd", "H", "e"],
        "token_logprobs": [None, -1.0, -1.0, -0.5, -0.5],
        "top_logprobs": [None, {"x": -0.25}, {"x": -0.25}, {"H": -0.5}, {"e": -0.5}],
        "text_offset": [0, 1, 1, 2, 3],
    }


def test_echo_alone_with_max_tokens_0(harness: Any) -> None:
    body = harness.complete("abc", echo=True, logprobs=0, max_tokens=0).json
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -1.0]
    assert body["usage"]["completion_tokens"] == 0
    assert harness.complete("abc", max_tokens=0).error["param"] == "max_tokens"


def test_echo_streams_the_prompt_first(harness: Any) -> None:
    *chunks, _ = harness.complete("stop here", echo=True, stream=True, stop=["o"], max_tokens=9).events
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert texts[0].startswith("stop here"), "no stop string is looked for in the prompt"
    assert "".join(texts) == "stop hereHell"
    *chunks, _ = harness.complete("ab", echo=True, stream=True, logprobs=0, max_tokens=1).events
    scored = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert [value for part in scored for value in part["token_logprobs"]] == [None, -1.0, -0.5]


def test_a_prompt_of_token_ids_is_echoed_as_text(harness: Any) -> None:
    assert harness.complete([104, 105], echo=True, max_tokens=1).json["choices"][0]["text"] == "hiH"


PROMPT_LOGPROBS = [
    None,
    {
        "105": {"logprob": -1.0, "rank": 3, "decoded_token": "i"},
        "120": {"logprob": -0.25, "rank": 1, "decoded_token": "x"},
    },
]


def test_prompt_logprobs_of_a_completion_are_in_its_choices(harness: Any) -> None:
    body = harness.complete("hi", prompt_logprobs=1, n=2).json
    assert [choice["prompt_logprobs"] for choice in body["choices"]] == [PROMPT_LOGPROBS] * 2
    assert [request.sampling.prompt_logprobs for request in harness.engine.requests] == [1, None], "computed once"
    assert "prompt_logprobs" not in harness.complete("hi").json["choices"][0]


def test_prompt_logprobs_of_a_chat_are_in_its_answer(harness: Any) -> None:
    body = harness.chat(prompt_logprobs=0).json
    first, *rest = body["prompt_logprobs"]
    assert first is None and len(rest) == 20
    assert all(len(entry) == 1 for entry in rest)


def test_token_ids_beside_the_text(harness: Any) -> None:
    body = harness.complete(["a", "bc"], return_token_ids=True, max_tokens=2, echo=True).json
    assert [choice["prompt_token_ids"] for choice in body["choices"]] == [[97], [98, 99]]
    assert [choice["token_ids"] for choice in body["choices"]] == [[72, 101]] * 2
    body = harness.chat(return_token_ids=True).json
    assert bytes(body["prompt_token_ids"]) == b"user: hi|\nassistant: "
    assert body["choices"][0]["token_ids"] == [*"Hello, wörld".encode(), 256], "the token that ended it was computed"
    assert "token_ids" not in harness.chat().json["choices"][0]


@pytest.mark.parametrize("stop", [None, "xyz"])
def test_token_ids_stream_as_they_come(harness: Any, make_engine: Any, script: Any, stop: str | None) -> None:
    harness.serve(make_engine(script("ax\u00e9")))
    first, *chunks, done = harness.complete("hi", return_token_ids=True, stream=True, stop=stop).events
    assert first["choices"][0]["prompt_token_ids"] == [104, 105] and done == "[DONE]"
    tokens = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", ())]
    assert tokens == [97, 120, 0xC3, 0xA9, 256]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ax\u00e9"
    first, *chunks, done = harness.chat(return_token_ids=True, stream=True).events
    assert bytes(first["prompt_token_ids"]) == b"user: hi|\nassistant: "
    assert all("prompt_token_ids" not in chunk for chunk in chunks)


NUMBERS = st.integers(-2, 3) | st.sampled_from([0.5, -0.0, 1e300, 2**63, 300, 256, 65])
VALUES = (
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text("a 5\u00e9", max_size=2)
    | st.lists(NUMBERS | st.text("a ", max_size=2) | st.lists(NUMBERS, max_size=2), max_size=3)
    | st.dictionaries(st.sampled_from(["5", "05", "256", "300", "-1", "a", ""]), NUMBERS | st.none(), max_size=3)
)
FIELDS = [
    "n", "best_of", "priority", "cache_salt", "temperature", "top_k", "top_p", "min_p", "typical_p", "seed",
    "min_tokens", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "bad_words",
    "allowed_token_ids", "prompt_logprobs", "return_token_ids", "stop", "stop_token_ids", "max_tokens", "ignore_eos",
    "stream",
]  # fmt: skip


@given(given_fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])  # nothing of it is changed
def test_whatever_a_field_holds_is_taken_or_refused_by_its_name(harness: Any, given_fields: dict[str, object]) -> None:
    fields, config = Fields(given_fields), ServerConfig()
    model: Any = SimpleNamespace(engine=harness.engine, text=harness.text)
    try:
        parse_output_options(fields, config, with_logprobs=False)
        max_tokens = parse_max_tokens(fields)
        sampling = parse_sampling(fields, config, model, logprobs=None)(16 if max_tokens is None else max_tokens)
        fanout = parse_fanout(fields, config)
    except AieError as error:
        assert error.status == 400
        assert str(getattr(error, "param", "")).split(".")[0] in given_fields
    else:
        sampling.check_vocabulary(harness.engine.info.vocab_size)
        for number in range(fanout.num_choices):
            fanout.sampling_of(number, sampling, scores_prompt=False).validated()
