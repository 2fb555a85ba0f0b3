"""`aie serve` as a user starts it: a process of its own, on a free loopback port, with a tiny generated model."""

import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest


class Serving:
    """A running `aie serve`; `log` holds its standard error so far."""

    def __init__(self, process, url, log):
        self.process, self.url, self.log = process, url, log
        # Somebody must read what the server writes: a full pipe would stop it.
        self._reader = threading.Thread(target=lambda: log.extend(process.stderr), daemon=True)
        self._reader.start()

    def stop(self, timeout_s=30):
        """SIGTERM, then the exit code."""
        self.process.terminate()
        return self.wait(timeout_s)

    def wait(self, timeout_s=30):
        """The exit code of a server that has been asked to end."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code


@contextmanager
def serving(*arguments, environ=None):
    command = [sys.executable, "-m", "aie", "serve", "--host", "127.0.0.1", "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True,
        env={**os.environ, **(environ or {})},
    )  # fmt: skip
    log = []
    running = None
    try:
        for line in process.stderr:
            log.append(line)
            if found := re.search(r"Ready .* on (http://\S+)", line):
                running = Serving(process, found[1], log)
                break
        else:
            pytest.fail(f"aie serve ended with {process.wait()}: {''.join(log)}")
        yield running
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def serve():
    """Context manager: `with serve(MODEL, "--workers", 0) as server: server.url`."""
    return serving


@pytest.fixture(scope="module")
def server(tiny_model):
    with serving(tiny_model, "--threads", 1, "--kv-memory", "8MiB") as running:
        yield running


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)
