"""One request over a real socket, in the load generator's event loop and in any other."""

import asyncio
import shutil
import ssl
import subprocess

import pytest

from aie.bench.generator import HUNG_UP, Call, Endpoint, Outcome
from aie.bench.generator.ask import Asker, request_bytes
from aie.bench.generator.pacing import new_event_loop


@pytest.fixture(params=[new_event_loop, asyncio.new_event_loop], ids=["precise", "asyncio"])
def run(request):
    def run(coroutine):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(coroutine, 60))

    return run


async def ask(endpoint, *calls, timeout_s=30):
    """The outcomes of calls, one after another."""
    asker, outcomes = Asker(endpoint, timeout_s), []
    for call in calls:
        outcomes.append(Outcome())
        await asker.ask(call, outcomes[-1])
    asker.close()
    return outcomes


def whole(**more):
    return Call("/x", more.pop("body", b"{}"), answer="whole", **more)


async def ok(asked, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def test_a_body_that_no_buffer_holds_arrives(run, scripted):
    heard = []

    async def answer(asked, writer):
        heard.append(asked.raw)
        await ok(asked, writer)

    body = bytes(range(256)) * (1 << 15)

    async def go():
        async with scripted(answer) as server:
            answered, left = await ask(server.endpoint, whole(body=body), whole(body=body, hang_up_after=0))
            while len(heard) < 2:
                await asyncio.sleep(0.001)
            return answered, left

    answered, left = run(go())
    assert (answered.error, left.error) == (None, HUNG_UP) and heard == [body, body]


def test_a_refusal_is_heard_though_the_body_is_not_read(run):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 too much\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        await writer.drain()
        while await reader.read(1 << 16):  # as servers do that are polite
            pass

    async def go():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
            endpoint = Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1], "", False)
            return await ask(endpoint, whole(body=bytes(8 << 20)))

    assert run(go())[0].error == "HTTP 413: no"


def test_who_is_late_is_hung_up_on(run, scripted):
    async def go():
        gone = asyncio.Event()

        async def serve(reader, _writer):
            await reader.read()  # to its end
            gone.set()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
            endpoint = Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1], "", False)
            (outcome,) = await ask(endpoint, whole(), timeout_s=0.01)
            await gone.wait()
            return outcome

    outcome = run(go())
    assert outcome.error == "no complete answer within 0.01 s" and outcome.kind == "timed out"
    assert outcome.end_s - outcome.sent_s >= 0.01


def test_of_several_addresses_the_one_that_answers(run, scripted, monkeypatch):
    async def go():
        async with scripted(ok) as server:
            port = server.endpoint.port
            found = [(2, 1, 6, "", ("127.0.0.1", 1)), (2, 1, 6, "", ("127.0.0.1", port))]
            monkeypatch.setattr("socket.getaddrinfo", lambda *_args, **_more: found)
            asker, early = Asker(Endpoint("somewhere", port, "", False), 30), Outcome()
            await asker.prepare()
            await asker.ask(whole(), early)
            assert early.error is None and server.num_connections == 2  # one of them to try the address out
            answered = await ask(Endpoint("somewhere", port, "", False), whole(), whole())
            found[1:] = found[:1]
            return answered, await ask(Endpoint("nowhere", port, "", False), whole())

    answered, refused = run(go())
    assert [one.error for one in answered] == [None, None]
    assert [one.error for one in refused] == ["Connection refused"]


def test_nobody_listens(run):
    assert run(ask(Endpoint("127.0.0.1", 1, "", False), whole()))[0].error == "Connection refused"


def test_what_is_asked_with_which_words():
    endpoint = Endpoint("::1", 7, "/base", False, api_key="secret")
    lines = request_bytes(endpoint, Call("/v1/x", b"{}"), "s-1").decode().split("\r\n")
    assert lines[0] == "POST /base/v1/x HTTP/1.1" and lines[-1] == "{}"
    assert {"Host: [::1]:7", "Authorization: Bearer secret", "x-session-id: s-1", "Content-Length: 2",
            "Content-Type: application/json", "Connection: close"} <= {*lines}  # fmt: skip
    get = request_bytes(endpoint, Call("/", method="GET", answer="whole", keep_alive=True, headers=("Accept: a/b",)))
    assert get.startswith(b"GET /base/ HTTP/1.1\r\n") and get.endswith(b"\r\n\r\n")
    assert get.lower().count(b"accept:") == 1 and b"Content-" not in get and b"Connection: keep-alive" in get


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """For localhost, signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate with")
    folder = tmp_path_factory.mktemp("certificate")
    made = [folder / "certificate.pem", folder / "key.pem"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-out", str(made[0]), "-keyout", str(made[1]),
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


def secure(scripted, certificate, *calls):
    """The outcomes of calls to a server with TLS, and how many connections it had."""

    async def go():
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        async with scripted(answering, keeps=True, tls=context) as server:
            return await ask(server.endpoint, *calls), server.num_connections

    async def answering(asked, writer):
        if asked.path == "/x":
            await ok(asked, writer)
        else:
            events = [scripted.text("a"), scripted.text("b"), scripted.text("c"), scripted.usage(3), scripted.END]
            head = scripted.HEAD.replace(b"Connection: close", b"Content-Length: %d" % sum(map(len, events)))
            for piece in (head, *events):
                writer.write(piece)
                await writer.drain()

    return go()


def test_tls_with_a_certificate_that_is_trusted(run, scripted, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    outcomes, num_connections = run(secure(scripted, certificate, whole(keep_alive=True), whole(keep_alive=True),
                                           Call("/y", b"{}", keep_alive=True)))  # fmt: skip
    assert [one.error for one in outcomes] == [None] * 3 and num_connections == 1
    assert outcomes[2].num_output_tokens == 3 and len(outcomes[2].gaps_s) == 2


def test_tls_with_a_certificate_that_nobody_knows(run, scripted, certificate):
    outcomes, _ = run(secure(scripted, certificate, whole()))
    assert outcomes[0].error == "its certificate is not trusted: self-signed certificate"


def test_tls_where_there_is_none(run):
    async def serve(_reader, writer):
        writer.write(b"HTTP/1.1 400 what is that?\r\n\r\n")

    async def go():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
            return await ask(Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1], "", True), whole())

    assert run(go())[0].error == "no TLS there: wrong version number"


def test_no_tls_where_there_is_some(run, scripted, certificate):
    async def go():
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        async with scripted(ok, tls=context) as server:
            return await ask(Endpoint("127.0.0.1", server.endpoint.port, "", False), whole())

    assert run(go())[0].error in (
        "the connection was closed before an answer", "Connection reset by peer",
        "garbled answer (the answer is not HTTP/1.1)",
    )  # fmt: skip
