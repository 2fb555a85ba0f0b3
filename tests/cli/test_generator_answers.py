"""What the load generator makes of the bytes of an answer, however they are cut into pieces."""

import asyncio
import json
import random

import pytest

from aie.bench.generator import Call, Outcome
from aie.bench.generator.event_text import TextFinder, read_event, text_of
from aie.bench.generator.exchange import Exchange


def event(payload, end=b"\n\n", name=b"data: "):
    return name + json.dumps(payload, ensure_ascii=False).encode() + end


def completion(text, **more):
    return {"id": "c-1", "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}], **more}


def delta(text, **more):
    return {"choices": [{"index": 0, "delta": {"content": text, **more}, "finish_reason": None}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}
DONE = b"data: [DONE]\n\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(pieces, head=OK, line_end=b"\r\n", extension=b""):
    body = b"".join(b"%x%s" % (len(piece), extension) + line_end + piece + b"\r\n" for piece in pieces)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def sized(body, head=OK):
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def until_closed(body, head=OK):
    return head + b"Connection: close\r\n\r\n" + body


TEXTS = ["a", " b", "", 'say "so"', "ü — 漢字 🙂", "\\ \n\t", "content", "a", "text", " "]
BODIES = {
    "completions": [*(event(completion(text)) for text in TEXTS), event(USAGE), DONE],
    "chat": [event(delta("", role="assistant")), *(event(delta(text)) for text in TEXTS), event(USAGE), DONE],
    "escaped": [b"data: " + json.dumps(delta(text)).encode() + b"\n\n" for text in TEXTS] + [event(USAGE), DONE],
    "usage in each": [event(completion(text, usage={"completion_tokens": 7, "prompt_tokens": 5})) for text in TEXTS]
    + [DONE],
    "crlf, comments, no blank": [
        b": hello\r\n\r\n", *(event(delta(text), b"\r\n\r\n", b"data:") for text in TEXTS),
        b"event: message\r\nid: 7\r\n" + event(USAGE, b"\r\n\r\n"), b"data: [DONE]\r\n\r\n",
    ],
    "cr": [*(event(delta(text), b"\r\r") for text in TEXTS), event(USAGE, b"\r\r"), b"data: [DONE]\r\r"],
    "several lines": [b'data: {"choices": [{"text":\ndata: "a"}]}\n\n'] * 9 + [event(USAGE), DONE],
}  # fmt: skip
ERRORS = {
    "error event": [event(completion("a")), event({"error": {"message": "engine died"}}), DONE],
    "no JSON": [event(completion("a")), b"data: {oops\n\n"],
    "cut": [event(completion("a")), event(completion("b"))[:20]],
    "nothing": [],
    "no text": [event(USAGE), DONE],
}


def read(pieces, call=None, *, closes=True):
    """The outcome of an answer that comes in these pieces, one a second."""

    async def take():
        exchange = Exchange(call or Call("/"), Outcome(pieces=[]))
        for number, piece in enumerate(pieces):
            if not exchange.done.done():
                exchange.take(piece, float(number))
        if closes:
            exchange.lose(None, float(len(pieces)))
        return exchange

    return asyncio.run(take())


def cut_up(whole, seed):
    draw = random.Random(seed)
    cuts = sorted(draw.sample(range(1, len(whole)), min(len(whole) - 1, draw.choice([1, 3, 10, 60]))))
    return [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def gist(exchange):
    one = exchange.outcome
    return (one.error, one.status, one.pieces, len(one.gaps_s), one.num_prompt_tokens, one.num_output_tokens,
            one.num_bytes, one.is_counted)  # fmt: skip


@pytest.mark.parametrize("frame", [chunked, sized, until_closed])
@pytest.mark.parametrize("name", [*BODIES, *ERRORS])
def test_pieces_may_end_anywhere(name, frame):
    events = (BODIES | ERRORS)[name]
    whole = frame(events if frame is chunked else b"".join(events))
    expected = gist(read([whole]))
    if name in BODIES:
        texts = ["a"] * 9 if name == "several lines" else [text for text in TEXTS if text]
        assert expected[:6] == (None, 200, texts, len(texts) - 1, 5, 7)
        assert expected[6] == sum(map(len, events))
    else:
        assert expected[0]
    assert gist(read([whole[at : at + 1] for at in range(len(whole))])) == expected
    for seed in range(30):
        assert gist(read(cut_up(whole, seed))) == expected


def test_chunks_may_begin_and_end_anywhere():
    whole = b"".join(BODIES["chat"])
    expected = gist(read([sized(whole)]))
    for seed in range(20):
        answer = chunked(cut_up(whole, seed), extension=b";a=b", line_end=b"\n")
        assert gist(read(cut_up(answer, seed + 100))) == expected


@pytest.mark.parametrize("first", [completion("a"), delta("a"), completion("text"), delta("漢")])
def test_events_that_come_one_by_one_are_the_same(first):
    """What was read is then compared with what was read before, all at once."""
    draw = random.Random(1)
    for _ in range(20):
        others = [*STRANGE, *map(completion, TEXTS), *map(delta, TEXTS), *[first] * 20, {}]
        events = [event(first), event(first), *map(event, draw.sample(others, len(others)))]
        events += [b'data: {"choices": [{"text": "\\ud83d"}]}\n\n', b": comment\n\n", event(USAGE), DONE]
        whole = chunked(events)
        at = whole.index(b"\r\n\r\n") + 4
        pieces = [whole[:at]]
        for one in events:
            size = len(b"%x" % len(one)) + 2 + len(one) + 2
            pieces.append(whole[at : at + size])
            at += size
        pieces.append(whole[at:])
        assert b"".join(pieces) == whole
        expected = gist(read([whole]))
        assert gist(read(pieces)) == expected and len(expected[2]) > 20
        assert gist(read([whole[: len(pieces[0])], *cut_up(whole[len(pieces[0]) :], 3)])) == expected


def test_every_event_has_the_time_of_its_last_byte():
    first, second, third = (event(delta(text)) for text in "abc")
    head = chunked([])[:-5]

    def chunk(piece):
        return b"%x\r\n" % len(piece) + piece + b"\r\n"

    pieces = [head, chunk(event(delta("", role="assistant"))), chunk(first)[:30], chunk(first)[30:],
              chunk(second) + chunk(third), chunk(event(USAGE) + DONE), b"0\r\n\r\n"]  # fmt: skip
    outcome = read(pieces, closes=False).outcome
    assert (outcome.first_byte_s, outcome.first_token_s, outcome.gaps_s) == (1.0, 3.0, [1.0, 0.0])
    assert (outcome.last_token_s, outcome.end_s) == (4.0, 6.0)


def test_when_the_server_closes_is_no_part_of_the_answer():
    answer = until_closed(event(delta("a")) + event(USAGE) + DONE)
    assert read([answer[:60], answer[60:], b""]).outcome.end_s == 1.0
    assert read([until_closed(b"x"), b"y", b""], Call("/", answer="whole")).outcome.end_s == 1.0


def test_an_answer_before_the_answer_is_passed_over():
    early = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    whole = early + sized(b"".join(BODIES["chat"]))
    for seed in range(20):
        assert gist(read(cut_up(whole, seed))) == gist(read([whole]))
    assert read([whole]).outcome.error is None


@pytest.mark.parametrize(
    ("answer", "ended", "goes_on"),
    [
        (chunked([b"x"]), True, True),
        (sized(b"x"), True, True),
        (sized(b"x") + b"y", True, False),  # more than it says
        (chunked([b"x"])[:-2], True, False),  # a trailer is not waited for
        (sized(b"x", OK + b"Connection: close\r\n"), True, False),
        (sized(b"x", OK.replace(b"1.1", b"1.0")), True, False),
        (until_closed(b"x"), False, False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True, True),
    ],
)
def test_which_connections_serve_again(answer, ended, goes_on):
    reader = read([answer], Call("/", answer="whole"), closes=False).reader
    assert reader.ended == ended and (reader.ended and reader.may_go_on) == goes_on


@pytest.mark.parametrize(
    ("answer", "more", "error"),
    [
        (sized(b"x"), {}, None),
        (sized(b""), {}, "the answer is empty"),
        (sized(b""), {"may_be_empty": True}, None),
        (b"HTTP/1.1 201 Made\r\nContent-Length: 1\r\n\r\nx", {}, None),
        (b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno", {}, "HTTP 404: no"),
        (sized(b'{"usage": {"prompt_tokens": 3}}'), {"reads_usage": True}, None),
        (sized(b"[1]"), {"reads_usage": True}, "garbled answer (no JSON object with a usage)"),
        (until_closed(b"[1"), {"reads_usage": True}, "garbled answer (no JSON object with a usage)"),
        (sized(b"x" * 9)[:-3], {}, "the connection was closed in mid-answer"),
        (b"", {}, "the connection was closed before an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", {"method": "HEAD", "may_be_empty": True}, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", {"method": "HEAD", "may_be_empty": True}, None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdeXX", {}, "of another length than it says"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", {}, "the answer is not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000, {}, "response headers are too long"),
    ],
)
def test_answers_in_one_piece(answer, more, error):
    outcome = read([answer], Call("/", answer="whole", **more)).outcome
    assert outcome.error is None if error is None else error in outcome.error
    if more.get("reads_usage") and error is None:
        assert outcome.num_prompt_tokens == 3


# What differs from the last event in its text alone is not read as JSON: the result must be the same.

STRANGE = [
    completion("b", choices=[{"index": 0, "text": "b"}, {"index": 1, "text": "a"}]),
    {"text": "a", "choices": [{"index": 0, "text": "b"}]},
    {"choices": [{"index": 0, "text": "a", "logprobs": {"content": [{"token": "a"}], "tokens": ["a"]}}]},
    {"choices": [{"index": 0, "text": "id", "id": "text"}]},
    {"choices": [{"index": 0, "delta": {"content": "a", "reasoning_content": "a"}}]},
    {"choices": [{"index": 0, "delta": {"reasoning_content": "a"}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"arguments": "a"}}]}}]},
    {"a": "a", "choices": [{"text": "a"}], "z": "a"},
    completion("a", usage={"completion_tokens": 1}),
    completion("a", error={"message": "a"}),
]


@pytest.mark.parametrize("first", [completion("a"), delta("a"), delta("id"), *STRANGE])
def test_texts_are_found_where_json_has_them(first):
    finder, found = TextFinder(), 0
    payload = json.dumps(first).encode()
    if text := text_of(first):
        finder.learn(payload, first, text)
    others = [
        payload.replace(b'"a"', b'"%s"' % new) for new in (b"b", b"", b"\\n", b'\\"', b"\xc3\xbc", b"\xff", b"\x01")
    ]
    others += [json.dumps(one).encode() for one in (*STRANGE, *map(completion, TEXTS), *map(delta, TEXTS))]
    for other in (payload, payload[:-1], b"", b"{}", *others):
        if finder.finds_in(other):
            event = read_event(other)
            assert finder.text.decode() == text_of(event) and event.get("usage") is None and event.get("error") is None
            found += 1
    if first in (completion("a"), delta("a")):
        assert found >= 6  # otherwise it would be no help


@pytest.mark.parametrize("count", [-1, True, 1.5, 10**400, "7"])
def test_a_count_that_is_none_ends_the_request_and_not_the_report(count):
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": count}}
    outcome = read([chunked([event(completion("a")), event(usage), DONE])]).outcome
    assert outcome.error == "garbled answer (a usage whose completion_tokens are no count)"
    assert outcome.num_output_tokens == 0


def test_any_number_of_interim_responses_comes_before_the_answer():
    begun = b"HTTP/1.1 100 Continue\r\n\r\n" * 3000
    outcome = read([begun + chunked([event(completion("a")), event(USAGE), DONE])]).outcome
    assert outcome.error is None and outcome.num_output_tokens == 7


def test_what_is_compressed_is_said_to_be():
    head = OK + b"Content-Encoding: gzip\r\n"
    assert read([sized(b"\x1f\x8b\x08", head)]).outcome.error == (
        "garbled answer (it is compressed, which was not asked for)"
    )
    assert read([sized(b"\x1f\x8b\x08", head)], Call("/", answer="whole")).outcome.error is None
