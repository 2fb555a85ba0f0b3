"""The head of a report: what the server tells of itself, and which source measured."""

import asyncio
import json

import pytest

import aie
from aie.bench.generator import Endpoint
from aie.bench.header import header, header_lines, server_version, source_commit


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({"/version": '{"version": "0.33.0"}'}, {"version": "0.33.0"}),
        ({"/props": '{"build_info": "b6000-abc", "n_ctx": 5}'}, {"build_info": "b6000-abc"}),
        ({"/v2": '{"name": "triton", "version": "2.6", "extensions": []}'}, {"name": "triton", "version": "2.6"}),
        ({"/version": "[1]", "/props": "x", "/get_server_info": '{"version": 5}', "/v2": "[" * 100_000}, {}),
        ({}, {}),
    ],
)
def test_servers_tell_in_their_own_places(scripted, answers, told):
    async def answer(asked, writer):
        text = answers.get(asked.path)
        status = b"404 no" if text is None else b"200 OK"
        writer.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n\r\n" + (text or "").encode())

    async def ask():
        async with scripted(answer) as server:
            return await server_version(server.endpoint)

    assert asyncio.run(ask()) == told


def test_a_server_that_closes_at_once_tells_nothing(scripted):
    async def answer(asked, writer):
        writer.close()

    async def ask():
        async with scripted(answer) as server:
            return await server_version(server.endpoint)

    assert asyncio.run(ask()) == {}


def test_the_commit_of_a_checkout(tmp_path):
    source = tmp_path / "cli" / "aie" / "__init__.py"
    assert source_commit(source) is None
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    assert source_commit(source) is None  # without a HEAD it is none
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text("# pack-refs\nabc1 refs/heads/other\nabc2 refs/heads/main\n")
    assert source_commit(source) == "abc2"
    (git / "refs" / "heads" / "main").write_text("abc3\n")
    assert source_commit(source) == "abc3"
    (git / "HEAD").write_text("abc4\n")
    assert source_commit(source) == "abc4"


def test_the_head_is_json_and_sentences():
    found = json.loads(json.dumps(header(Endpoint("127.0.0.1", 9, "", False), 7)))
    assert found["seed"] == 7 and found["server"] == {} and found["host"]["cores"] >= 1
    first, second = header_lines(found)
    assert "nothing" in first and "seed 7" in second and found["host"]["processor"] in second
    assert found["commit"] == source_commit(__import__("pathlib").Path(aie.__file__))
