"""The server under test: one that runs already, or one started here on a free port and stopped afterwards."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from aie.bench.client import Endpoint, describe_error, get_text
from aie.bench.energy import is_this_machine, meter_of
from aie.bench.fleet import Fleet
from aie.bench.load import Sampler
from aie.bench.uninterrupted import uninterrupted
from aie.console import note
from aie_engine import EnvironmentLacksError, InvalidInputError

__all__ = ["Target", "own_server", "reach"]

_START_TIMEOUT_S = 180.0
_STOP_S = 15.0  # in good order


class Target:
    """Where to send, which model to name, who sends, and what is to be seen of the server meanwhile."""

    def __init__(self, endpoint: Endpoint, model: str, pid: int | None) -> None:
        self.endpoint = endpoint
        self.model = model
        self.metrics = endpoint  # where its /metrics are
        self.part_models: Mapping[str, str] = {}  # of a mix
        self.energy = meter_of(pid is not None or is_this_machine(endpoint.host))
        self.fleet: Fleet | None = None  # None: each level starts its own
        self._process = None if pid is None else psutil.Process(pid)

    def look_at(self, metrics_url: str) -> None:
        """Its metrics are elsewhere. Raises `InvalidInputError` for what is no URL, `EnvironmentLacksError` where no
        metrics are: who names the place wants to see them."""
        try:
            place = Endpoint.parse(metrics_url.rstrip("/").removesuffix("/metrics"))
        except InvalidInputError:
            raise InvalidInputError(
                f"--metrics-url is {metrics_url!r}; give something like http://127.0.0.1:8002.", param="metrics-url"
            ) from None
        # The key is nobody else's business.
        self.metrics = replace(place, api_key=self.endpoint.api_key) if place.host == self.endpoint.host else place
        try:
            status = asyncio.run(get_text(self.metrics, "/metrics"))[0]
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            reason = describe_error(error, is_begun=False)
        else:
            reason = f"status {status}"
            if status == 200:
                return
        raise EnvironmentLacksError(f"No metrics at {self.metrics.url}/metrics: {reason}. Look at --metrics-url.")

    def sampler(self) -> Sampler:
        """Watches it through one level."""
        return Sampler(self.metrics, self.model, self.rss_bytes, energy=self.energy, part_models=self.part_models)

    def rss_bytes(self) -> int | None:
        """Resident memory of all the server's processes; None for a server that was not started here."""
        if self._process is None:
            return None
        total = 0
        with contextlib.suppress(psutil.Error):
            for process in [self._process, *self._process.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
        return total or None


def reach(url: str, model: str | None, api_key: str | None, pid: int | None = None, *, lists: bool = True) -> Target:
    """Asks the server for its models, so that an unreachable URL is one sentence before anything is measured. lists:
    False where the endpoint under test is no part of OpenAI's API, and the server perhaps none of its servers: then
    the model must be named, or is none at all."""
    endpoint = Endpoint.parse(url, api_key)
    try:
        status, text = asyncio.run(get_text(endpoint, "/v1/models"))
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        reason = describe_error(error, is_begun=False)
        hint = "" if endpoint.tls else _hint(error)
        raise EnvironmentLacksError(f"No server answers at {url}: {reason}.{hint}") from None
    if not lists and (status != 200 or model is not None):
        return Target(endpoint, model or "", pid)
    if status in (401, 403):
        key = "--api-key is not one that" if api_key else "give the --api-key that"
        raise InvalidInputError(f"{url} asks for a key (status {status}); {key} it takes.", param="api-key")
    if status != 200:
        raise InvalidInputError(f"{url}/v1/models answers with status {status}; is it an OpenAI-compatible server?")
    try:
        names = [str(entry["id"]) for entry in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        if not lists:
            return Target(endpoint, "", pid)
        raise InvalidInputError(f"{url}/v1/models does not answer as an OpenAI-compatible server does.") from None
    if model is None and not names:
        raise InvalidInputError(f"The server at {url} lists no model; name one with --model.")
    return Target(endpoint, model or names[0], pid)


def _hint(error: Exception) -> str:
    """What to do where a URL without TLS got no answer."""
    if isinstance(error, ConnectionResetError | ValueError | asyncio.IncompleteReadError):
        return " Somebody is there; where it speaks TLS, the URL begins with https://."
    return " Start one with `aie serve`."


@contextlib.contextmanager
def own_server(arguments: list[str]) -> Iterator[tuple[str, int]]:
    """Runs `aie serve` with `arguments` on a free loopback port; gives (URL, process id) and stops it at the end."""
    port = _free_port()
    command = [sys.executable, "-m", "aie", "serve", *arguments, "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryDirectory(prefix="aie-bench-") as folder:
        log = Path(folder) / "server.log"
        server = None
        try:
            # Its own session: a Ctrl-C at the terminal reaches only us, and we stop the server in good order.
            with log.open("wb") as sink, uninterrupted():
                server = subprocess.Popen(
                    command, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, start_new_session=True
                )
            _wait_until_ready(server, port, log)
            yield f"http://127.0.0.1:{port}", server.pid
        finally:
            if server is not None:
                _stop(server)


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    note("Starting a server for the test …")
    endpoint = Endpoint("127.0.0.1", port, "", False)
    end_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < end_s:
        if server.poll() is not None:
            last = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise EnvironmentLacksError(f"The server ended while starting (exit code {server.returncode}): {last}")
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            if asyncio.run(get_text(endpoint, "/health"))[0] == 200:
                return
        time.sleep(0.1)
    raise EnvironmentLacksError(f"The server was not ready within {_START_TIMEOUT_S:g} s.")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Whatever interrupts this, nothing of it is left: neither the server nor processes of its own, which take a moment
    to notice where it was stopped in mid-start."""
    server.send_signal(signal.SIGTERM)  # nothing, where it has ended
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_STOP_S)
        end_s = time.monotonic() + _STOP_S
        while _has_session(server) and time.monotonic() < end_s:
            time.sleep(0.05)
    finally:
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)  # the session that was started above, nothing else
        else:
            server.kill()
        server.wait()


def _has_session(server: subprocess.Popen[bytes]) -> bool:
    """Whether a process of its session is alive; False where the system does not say."""
    if not hasattr(os, "killpg"):
        return False
    try:
        os.killpg(server.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
