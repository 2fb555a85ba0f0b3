"""What a request to a small model costs over HTTP, part by part: `python benchmarks/predictors_http.py [--json PATH]`.

The MLP 784-256-10 from a seed; tensors as bytes, one request at a time per connection. Servers that have one part more
each (`http_rungs.py`; the last two are `aie serve`) answer the same request, whose load comes from a client in C that
takes a few microseconds of processor time per request. Two figures of each:

    requests/s   what came out, on whatever cores there are; it needs an idle machine
    µs CPU       processor time of the server (and its workers) per request, user and system; of the client beside it

A Python process has one interpreter lock, so 1 s divided by the front's µs CPU is about what it can do at most, however
many cores there are; what the lock's hand-over costs on top is the difference between 1 connection and 32.
"""

import argparse
import json
import os
import platform
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from http_load import Load, LoadClient
from predictor_models import write_mlp

from aie.bench.target import own_server
from aie.version import versions
from aie_tensor import run_program

WANTED_PER_S = 2500  # what the project asks of 32 connections on two cores
RUNGS = {
    "sockets": "bare sockets, a thread per connection",
    "standard": "the standard library's http.server",
    "framing": "our HTTP layer alone",
    "handler": "+ keys, limits, tensors, metrics",
    "in process": "+ batcher and model, --workers 0",
    "worker": "+ a worker process, --workers 1",
}
SERVED = {"in process": ("--workers", "0"), "worker": ("--workers", "1")}


@dataclass(frozen=True, slots=True)
class Cost:
    """One server under one load."""

    rung: str
    connections: int
    per_s: float
    p50_ms: float
    p99_ms: float
    front_us: float  # processor time of the server's process per request
    worker_us: float  # of its children
    client_us: float
    switches: float  # context switches of the front per request, wanted or not
    mean_batch: float | None  # None: there is no batcher


def write_request(folder: Path) -> Path:
    """As Triton's own client sends it."""
    pixels = np.random.default_rng(0).random(784, np.float32)
    parameters = {"binary_data_size": pixels.nbytes}
    described = {"name": "pixels", "datatype": "FP32", "shape": [1, 784], "parameters": parameters}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    body = head + pixels.tobytes()
    lines = (
        "POST /v2/models/mlp/infer HTTP/1.1", "Host: 127.0.0.1", "User-Agent: http_load", "Accept: */*",
        "Content-Type: application/octet-stream", f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(body)}", "", "",
    )  # fmt: skip
    path = folder / "request"
    path.write_bytes("\r\n".join(lines).encode() + body)
    return path


def write_answer(folder: Path, port: int, request: bytes) -> None:
    """What `aie serve` says, for the servers that have no model."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection, connection.makefile("rb") as file:
        connection.sendall(request)
        head = b"".join(iter(lambda: file.readline() if not head_ended(file) else b"", b""))
        del head
    raise NotImplementedError


def head_ended(_: object) -> bool:
    return False
