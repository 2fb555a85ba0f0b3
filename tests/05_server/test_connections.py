"""Slow, absent, crowding and departing clients; draining and closing."""

import contextlib
import errno
import logging
import socket
import struct
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from aie_engine import EnvironmentLacksError, InvalidInputError, TokenEvent, TokenStream
from aie_server import AddressInUseError, HttpLimits, ServedModel, Server, ServerConfig
from aie_server.http.listener import check_port

WAIT_S = 5.0
PATIENT = HttpLimits()


def config(**limits: Any) -> ServerConfig:
    return ServerConfig(http=replace(PATIENT, **limits), disconnect_poll_s=0.01)


def wait_until(condition: Any) -> None:
    """For states that no event announces; gives up after a while."""
    deadline = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        pause.wait(0.002)


def reset(sock: socket.socket) -> None:
    """Close with a reset instead of a farewell."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


# Time


@pytest.mark.parametrize("sent", [b"G", b"GET / HTTP/1.1\r\nHost: t\r\n"])
def test_headers_that_do_not_end_are_answered_408(harness: Any, sent: bytes) -> None:
    harness.serve(config=config(header_timeout_s=0.05))
    client = harness.connect().send(sent)
    answer = client.answer()
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
    assert client.is_closed_by_peer()


def test_the_deadline_is_for_all_headers_and_not_for_each_byte(harness: Any) -> None:
    harness.serve(config=config(header_timeout_s=0.15))
    client = harness.connect().send(b"GET / HTTP/1.1\r\nHost: t\r\nX: ")
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.02):
            try:
                client.send(b"x")
            except OSError:
                return

    dripping = threading.Thread(target=drip)
    dripping.start()
    assert client.answer().status == 408
    stop.set()
    dripping.join()


def test_body_that_does_not_come_is_answered_408(harness: Any) -> None:
    harness.serve(config=config(body_timeout_s=0.05))
    client = harness.connect().send(b"POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{")
    assert client.answer().status == 408
    assert client.is_closed_by_peer()


def test_idle_connection_is_closed_without_a_word(harness: Any) -> None:
    harness.serve(config=config(idle_timeout_s=0.05))
    assert harness.connect().is_closed_by_peer()


def test_reader_that_stops_reading_loses_its_stream(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    harness.serve(engine, config=config(send_timeout_s=0.1, send_buffer_bytes=4096))
    client = harness.connect()
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.post("/v1/completions", {"prompt": "hi", "stream": True})
    for _ in range(30):  # 300 KB, more than the kernel will hold for a client that does not read
        engine.emit(b"x" * 10_000)
    engine.wait_for_cancel()


# Departures


def test_client_that_hangs_up_before_the_first_token_is_noticed(harness: Any, make_engine: Any) -> None:
    for stream in (False, True):
        engine = make_engine()
        server = harness.serve(engine, config=config())
        client = harness.connect(server).post("/v1/completions", {"prompt": "hi", "stream": stream})
        engine.wait_for_request()
        client.close()
        engine.wait_for_cancel()
        wait_until(lambda server=server: 'status="499"} 1' in server.metrics.render())


def test_client_that_hangs_up_in_mid_stream_is_noticed(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    server = harness.serve(engine, config=config())
    client = harness.connect().post("/v1/completions", {"prompt": "hi", "stream": True})
    engine.emit("a")
    client.head()
    reset(client.sock)
    engine.wait_for_cancel()
    wait_until(lambda: server.num_connections == 0)
    assert 'finished_reason="cancelled"} 1' in server.metrics.render()


class BreathlessStream(TokenStream):
    """A token is always there already, so its reader never waits, until the request is cancelled."""

    __slots__ = ("is_over",)

    def __init__(self, request_id: str, cancel: Any) -> None:
        super().__init__(request_id, cancel)
        self.is_over = threading.Event()

    def get(self, timeout_s: float | None = None) -> TokenEvent:
        return TokenEvent(self.request_id, (97,), finish_reason="cancelled" if self.is_over.is_set() else None)

    def cancel(self) -> None:
        self.is_over.set()


@pytest.mark.parametrize("hang_up", [socket.socket.close, lambda sock: sock.shutdown(socket.SHUT_WR)])
@pytest.mark.parametrize("stream", [False, True])
def test_hang_up_is_noticed_however_fast_the_tokens_come(
    harness: Any, make_engine: Any, stream: bool, hang_up: Any
) -> None:
    """Without a stream nothing is written that could fail, and a client that closed only its sending side takes what is
    written."""
    engine = make_engine()
    made: list[BreathlessStream] = []

    def submit(request: Any) -> TokenStream:
        made.append(BreathlessStream(request.request_id, engine.cancel))
        return made[-1]

    engine.submit = submit
    server = harness.serve(engine, config=config())
    client = harness.connect().post("/v1/completions", {"prompt": "hi", "stream": stream, "max_tokens": 200})
    wait_until(lambda: made)
    reader = threading.Thread(target=lambda: drain_socket(client.sock))
    if stream:
        reader.start()
    hang_up(client.sock)
    try:
        assert made[0].is_over.wait(WAIT_S), "the request went on for nobody"
    finally:
        made[0].cancel()
        if stream:
            reader.join()
    wait_until(lambda: 'finished_reason="cancelled"} 1' in server.metrics.render())


def drain_socket(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while sock.recv(1 << 16):
            pass


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET",
        b"GET / HTTP/1.1\r\nHost: t\r\n\r\n",
        b"junk\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{",
        b"POST /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n{",
    ],
)
def test_resets_leave_no_traceback(
    harness: Any, sent: bytes, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    server = harness.serve()
    for _ in range(3):
        client = harness.connect().send(sent)
        reset(client.sock)
    wait_until(lambda: server.num_connections == 0)
    assert harness.get("/version").status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert "Traceback" not in capfd.readouterr().err


# Crowds


def test_connections_beyond_the_cap_are_told_so(harness: Any) -> None:
    server = harness.serve(config=config(max_connections=2))
    first, second = harness.connect().send(b"GET"), harness.connect().send(b"GET")
    wait_until(lambda: server.num_busy_connections == 2)
    third = harness.connect()
    answer = third.answer()
    assert (answer.status, answer.error["code"], answer.headers["Retry-After"]) == (503, "too_many_connections", "1")
    assert third.is_closed_by_peer()
    first.close()
    wait_until(lambda: server.num_connections == 1)
    assert harness.connect().get("/version").answer().status == 200
    second.send(b" /version HTTP/1.1\r\nHost: t\r\n\r\n")
    assert second.answer().status == 200


def test_idle_connections_give_way_to_those_that_come(harness: Any) -> None:
    server = harness.serve(config=config(max_connections=3))
    busy = harness.connect().send(b"GET")
    wait_until(lambda: server.num_busy_connections == 1)
    used, silent = harness.connect().get("/version"), harness.connect()
    assert used.answer().status == 200
    wait_until(lambda: server.num_busy_connections == 1 and server.num_connections == 3)
    crowd = [harness.connect() for _ in range(20)]
    assert used.is_closed_by_peer() and silent.is_closed_by_peer()
    assert crowd[0].is_closed_by_peer()
    assert harness.connect().get("/version").answer().status == 200
    busy.send(b" /version HTTP/1.1\r\nHost: t\r\n\r\n")
    assert busy.answer().status == 200
    wait_until(lambda: server.num_connections <= 3)


def test_idle_connections_give_way_when_there_are_no_descriptors(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = harness.serve()
    idle = harness.connect()
    wait_until(lambda: server.num_connections == 1)
    accept = socket.socket.accept

    def accept_when_there_is_room(self: socket.socket) -> Any:
        if server.num_connections:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", accept_when_there_is_room)
    assert harness.connect().get("/version").answer().status == 200
    assert idle.is_closed_by_peer()


def test_accept_loop_survives_exhausted_file_descriptors(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = harness.serve()
    failures = [errno.EMFILE, errno.ENFILE]
    accept = socket.socket.accept

    def failing(self: socket.socket) -> Any:
        if failures:
            raise OSError(failures.pop(), "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    assert harness.connect(server).get("/version").answer().status == 200
    assert failures == []


def test_sixty_four_clients_at_once(harness: Any) -> None:
    harness.serve()
    clients = [harness.connect() for _ in range(64)]
    for client in clients:
        client.post("/v1/completions", {"prompt": "hi", "stream": True, "max_tokens": 20})
    for client in clients:
        assert client.answer().events[-1] == "[DONE]"


# Ends


def test_drain_finishes_what_runs_and_refuses_what_is_new(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    server = harness.serve(engine, config=config(leaving_timeout_s=0.05))
    idle = harness.connect()
    assert idle.get("/version").answer().status == 200
    running = harness.connect().post("/v1/completions", {"prompt": "hi", "stream": True})
    engine.emit("a")
    running.head()
    drained: list[bool] = []
    draining = threading.Thread(target=lambda: drained.append(server.drain(WAIT_S)))
    draining.start()
    assert idle.is_closed_by_peer()
    health = harness.get("/health")
    assert (health.status, health.json["reason"]) == (503, "the server is draining")
    refused = harness.complete()
    assert (refused.status, refused.error["code"], refused.headers["Connection"]) == (503, "server_draining", "close")
    engine.emit("b", finish_reason="length")
    assert running.answer_of_chunks().events[-1] == "[DONE]"
    draining.join()
    assert drained == [True]


def test_what_a_client_sends_before_it_knows_of_the_drain_is_answered(harness: Any) -> None:
    """Its last answer said that the connection lives on. To close it on the next request would be a reset."""
    server = harness.serve(config=config(leaving_timeout_s=WAIT_S))
    clients = [harness.connect().get("/version") for _ in range(8)]
    assert [client.answer().headers.get("Connection") for client in clients] == [None] * len(clients)
    server.begin_drain()
    for client in clients[::2]:
        answer = client.get("/version").answer()
        assert (answer.status, answer.headers["Connection"]) == (200, "close")
    for client in clients[1::2]:
        answer = client.post("/v1/completions", {"prompt": "hi"}).answer()
        assert (answer.status, answer.error["code"]) == (503, "server_draining")
        assert answer.headers["Connection"] == "close"
    assert all(client.is_closed_by_peer() for client in clients)


def test_who_is_connected_and_not_yet_heard_when_the_server_closes_is_answered(harness: Any) -> None:
    """Such as those who come back at once after a 503: the kernel lets them in until the socket is closed."""
    server = harness.serve(config=config(leaving_timeout_s=WAIT_S))
    silent = [harness.connect() for _ in range(4)]
    wait_until(lambda: server.num_connections == 4)
    server.begin_drain()
    closing = threading.Thread(target=server.close)
    closing.start()
    for client in silent:
        answer = client.get("/version").answer()
        assert (answer.status, answer.headers["Connection"]) == (200, "close")
    closing.join()


def test_the_backlog_is_answered_when_the_server_closes(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = harness.serve()
    is_accepting = threading.Event()
    monkeypatch.setattr(server._listener, "_accept_one", lambda: is_accepting.wait(0.001))  # nobody is accepted
    waiting = [harness.connect().get("/version") for _ in range(4)]
    server.close()
    for client in waiting:
        answer = client.answer()
        assert (answer.status, answer.error["code"]) == (503, "server_draining")


def test_a_request_that_began_before_the_drain_may_end_after_it(harness: Any) -> None:
    server = harness.serve(config=config(leaving_timeout_s=0.05))
    client = harness.connect().send(b"GET /version HTTP/1.1\r\n")
    wait_until(lambda: server.num_busy_connections == 1)
    server.begin_drain()
    assert server.drain(0.1) is False
    answer = client.send(b"Host: t\r\n\r\n").answer()
    assert (answer.status, answer.headers["Connection"]) == (200, "close")


def test_drain_and_close_cut_no_answer(harness: Any, make_engine: Any) -> None:
    for stream in [False, True] * 10:
        engine = make_engine()
        server = harness.serve(engine, config=config())
        client = harness.connect(server).post("/v1/completions", {"prompt": "hi", "stream": stream})
        engine.wait_for_request()
        stopping = threading.Thread(target=lambda server=server: (server.drain(WAIT_S), server.close()))
        stopping.start()
        engine.emit("a", finish_reason="length")
        answer = client.answer()
        assert answer.status == 200 and b"a" in answer.body
        stopping.join()


def test_connection_is_busy_until_the_last_byte_of_its_answer_has_left(harness: Any, make_engine: Any) -> None:
    """The gate forgets a request when its last token is known; whoever closes the server then would cut the answer of a
    client that reads slowly."""
    engine = make_engine(max_seq_len=1 << 20)
    server = harness.serve(engine, config=config(send_buffer_bytes=4096, leaving_timeout_s=0.05))
    idle = harness.connect().get("/version")
    assert idle.answer().status == 200
    wait_until(lambda: server.num_busy_connections == 0)
    client = harness.connect()
    client.post("/v1/completions", {"prompt": "hi", "max_tokens": 800_000})
    engine.emit("ä" * 400_000, finish_reason="length")
    client.head()
    server.begin_drain()
    assert idle.is_closed_by_peer()  # what is idle ends soon
    assert server.num_busy_connections == 1
    assert 'finished_reason="length"} 1' in server.metrics.render()
    drain_socket(client.sock)
    wait_until(lambda: server.num_busy_connections == 0)


def test_drain_gives_up_at_its_deadline_and_close_ends_the_rest(harness: Any, make_engine: Any) -> None:
    engine = make_engine()
    server = harness.serve(engine, config=config(leaving_timeout_s=0.05))
    client = harness.connect().post("/v1/completions", {"prompt": "hi"})
    engine.wait_for_request()
    assert server.drain(0.01) is False
    server.close()
    engine.wait_for_cancel()
    assert client.is_closed_by_peer()
    server.close()


def test_serve_forever_returns_when_closed(harness: Any) -> None:
    server = Server([ServedModel("fake", harness.engine, harness.text)], port=0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    socket.create_connection(server.address, timeout=WAIT_S).close()
    assert thread.is_alive()
    server.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_port_in_use_is_one_clear_sentence(harness: Any) -> None:
    _, port = harness.serve().address
    model = ServedModel("fake", harness.engine, harness.text)
    with pytest.raises(AddressInUseError, match=f"Port {port} .* in use") as caught:
        Server([model], port=port)
    assert isinstance(caught.value, EnvironmentLacksError) and caught.value.exit_code == 3
    with pytest.raises(AddressInUseError, match=f"Port {port} .* in use. Choose another with --grpc-port"):
        check_port("127.0.0.1", port, flag="--grpc-port")
    for host, bad_port in (("no such host", 0), ("127.0.0.1", 70000), ("203.0.113.1", 0)):
        with pytest.raises(InvalidInputError, match="Cannot listen"):
            Server([model], host=host, port=bad_port)
        with pytest.raises(InvalidInputError, match="Cannot listen"):
            check_port(host, bad_port)


def test_a_port_that_was_looked_at_is_still_free(harness: Any) -> None:
    model = ServedModel("fake", harness.engine, harness.text)
    server = Server([model], port=0)
    server.close()
    check_port(*server.address)
    Server([model], port=server.address[1]).close()
