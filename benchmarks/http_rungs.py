"""Servers for `predictors_http.py`, each with one part more than the one before: `python http_rungs.py RUNG FOLDER`.

Each answers the request for the MLP with the same bytes, so the difference of two neighbours is what the part costs.
Prints its port, then serves until its standard input ends.

    sockets   a thread per connection that receives and sends: what Python itself costs
    standard  http.server of the standard library, as it comes, with HTTP/1.1
    framing   our HTTP layer, and a handler that has the answer already
    handler   and keys, limits, tensors in and out, metrics; a predictor that answers within `submit`
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aie_engine import (
    BatchFacts,
    LocalPredictor,
    PredictFuture,
    Prediction,
    PredictorConfig,
    PredictorStats,
    PredictRequest,
)
from aie_engine.processing import load_pipeline
from aie_server import ServedPredictor, Server
from aie_server.http import Request, Response, Route

__all__ = ["RUNGS", "Instant"]


class Instant:
    """A `PredictorClient` that gives every request the same outputs at once."""

    def __init__(self, folder: Path) -> None:
        real = LocalPredictor(PredictorConfig(folder, num_threads=1))
        self.info = real.info
        request = PredictRequest("first", {real.info.inputs[0].name: _zeros(real.info.inputs[0].shape)})
        self._prediction: Prediction = real.submit(request).result()
        self._facts: BatchFacts = self._prediction.batch
        real.close()
        self.is_alive = True

    def submit(self, request: PredictRequest) -> PredictFuture:
        """Resolved already."""
        future = PredictFuture(request.request_id, lambda _: False)
        future.resolve(self._prediction)
        return future

    def stats(self) -> PredictorStats:
        """Nothing waits."""
        return PredictorStats()

    def memory(self) -> Mapping[str, object]:
        """Nothing."""
        return {}

    def watch(self, on_batch: object) -> None:
        """Nobody does."""

    def drain(self) -> None:
        """Nothing waits."""

    def close(self, timeout_s: float = 10.0) -> None:
        """Nothing to do."""


def _zeros(shape: tuple[int, ...]) -> Any:
    import numpy as np

    return np.zeros(shape, np.float32)


def sockets(folder: Path) -> int:
    """Knows how long a request is, and looks at nothing in it."""
    length, answer = (folder / "request").stat().st_size, (folder / "answer").read_bytes()
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        have = 0
        while data := connection.recv(65536):
            have += len(data)
            if have >= length:
                have -= length
                connection.sendall(answer)

    def accept() -> None:
        while True:
            threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listening.getsockname()[1])


def standard(folder: Path) -> int:
    """Headers by `email.parser`, two buffered files on the socket, answer in one write."""
    body = _body(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # buffered: else head and body would be two packets
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: object) -> None:
            """Ours writes no line either, unless asked to."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def framing(folder: Path) -> int:
    """The route is the only one."""
    server = Server(predictors=[_served(folder)], port=0)
    body = _body(folder)
    path = "/v2/models/{model}/infer"

    def answer(_: Request) -> Response:
        return Response(body, content_type="application/octet-stream")

    server._router._routes[path]["POST"] = Route("POST", path, answer, "")
    server.start()
    return server.address[1]


def handler(folder: Path) -> int:
    """Everything but the batcher and the model."""
    server = Server(predictors=[_served(folder)], port=0)
    server.start()
    return server.address[1]


def _served(folder: Path) -> ServedPredictor:
    model = folder / "mlp"
    return ServedPredictor("mlp", Instant(model), load_pipeline(model))  # type: ignore[arg-type]


def _body(folder: Path) -> bytes:
    return (folder / "answer").read_bytes().partition(b"\r\n\r\n")[2]


RUNGS: dict[str, Callable[[Path], int]] = {
    "sockets": sockets, "standard": standard, "framing": framing, "handler": handler,
}  # fmt: skip


def main() -> None:
    """Until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's, who then closes our input
    print(RUNGS[sys.argv[1]](Path(sys.argv[2])), flush=True)
    sys.stdin.read()
    os._exit(0)  # connections' threads wait for requests that will not come


if __name__ == "__main__":
    main()
