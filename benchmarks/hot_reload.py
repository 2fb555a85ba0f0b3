"""A thousand hot reloads under load: `python benchmarks/hot_reload.py --reloads 1000 --corrupt 0.05`.

A server of its own (`aie serve --repository`, on loopback) answers clients without a pause, whole and streamed, while
version after version is written beside its place, renamed into it, and loaded. Two tiny models take turns, and every
answer must be, to the letter, what one of them says: a request that were served by two versions would show. Some of the
versions are broken on purpose, each in one of several ways, and have to be refused with a reason while the one before
serves on.

Counted: requests that failed (there must be none), refusals by reason, and before and after: live bytes of the engine's
pool, mapped bytes, resident memory, threads, open files, mappings.
"""

import argparse
import http.client
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from aie.bench.target import own_server
from aie_loader import write_tiny_llama

NAME = "tiny"
PROMPT = "The scheduler takes"
NUM_TOKENS = 12
WARM_UP = 20  # reloads before the first look: caches fill, arenas grow
MIB = 1 << 20


@dataclass(slots=True)
class Seen:
    """What the clients met; each has its own."""

    num_answers: Counter[str] = field(default_factory=Counter)  # by text
    failures: list[str] = field(default_factory=list)


class Client(threading.Thread):
    """Asks again and again on one connection, every second time for a stream."""

    def __init__(self, host: str, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.seen = Seen()
        self._connection = http.client.HTTPConnection(host, port, timeout=60)
        self._stop_asking = stop

    def run(self) -> None:
        is_streamed = False
        while not self._stop_asking.is_set():
            try:
                self.seen.num_answers[ask(self._connection, is_streamed=is_streamed)] += 1
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                self.seen.failures.append(f"{type(error).__name__}: {error}")
                self._connection.close()
            is_streamed = not is_streamed
        self._connection.close()


def ask(connection: http.client.HTTPConnection, *, is_streamed: bool) -> str:
    """The text of one greedy answer. Raises `ValueError` for what is no whole answer."""
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    status, data = call(connection, "POST", "/v1/completions", {**body, "stream": is_streamed})
    if status != 200:
        raise ValueError(f"status {status}: {data[:200]!r}")
    if not is_streamed:
        return str(json.loads(data)["choices"][0]["text"])
    events = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    if events[-1] != b"[DONE]":
        raise ValueError(f"the stream ended with {events[-1][:200]!r}")
    return "".join(choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"])


def call(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    connection.request(method, path, None if body is None else json.dumps(body))
    response = connection.getresponse()
    return response.status, response.read()


# Versions, sound and broken


def truncated(folder: Path, _: random.Random) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def wrong_header(folder: Path, chance: random.Random) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8 : 8 + 64] = chance.randbytes(64)
    file.write_bytes(data)


def not_numbers(folder: Path, _: random.Random) -> None:
    """Sound in every byte, and useless: only computing with it shows."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    file.write_bytes(data[:start] + b"\xff" * (len(data) - start))


def other_answer(folder: Path, _: random.Random) -> None:
    (folder / "golden.json").write_text(json.dumps({"prompt": PROMPT, "token_ids": [0, 0, 0]}))


def other_shape(folder: Path, _: random.Random) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": config["hidden_size"] * 2}))


def unknown_family(folder: Path, _: random.Random) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["Nobody"], "model_type": "nobody"}))


def no_tokenizer(folder: Path, _: random.Random) -> None:
    (folder / "tokenizer.json").unlink()


def empty(folder: Path, _: random.Random) -> None:
    for file in folder.iterdir():
        file.unlink()


BROKEN: tuple[Callable[[Path, random.Random], None], ...] = (
    truncated, wrong_header, not_numbers, other_answer, other_shape, unknown_family, no_tokenizer, empty,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """The server, at rest, with one engine."""

    live: int
    mapped: int
    rss: int
    threads: int
    files: int
    mappings: int

    def line(self) -> str:
        return (
            f"live {self.live / MIB:.3f} MiB, mapped {self.mapped / MIB:.3f} MiB, RSS {self.rss / MIB:.1f} MiB, "
            f"{self.threads} threads, {self.files} open files, {self.mappings} mappings"
        )


def processes(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def resident(pid: int) -> int:
    return sum(int(process.memory_info().rss) for process in processes(pid))


def look(connection: http.client.HTTPConnection, pid: int) -> Look:
    wait_until_settled(connection)
    lines = call(connection, "GET", "/metrics")[1].decode().splitlines()
    states = {
        state: metric(lines, f'memory_bytes{{model_name="{NAME}",state="{state}"}}') for state in ("live", "mapped")
    }
    all_of_it = processes(pid)
    return Look(
        int(states["live"]),
        int(states["mapped"]),
        resident(pid),
        sum(process.num_threads() for process in all_of_it),
        sum(process.num_fds() for process in all_of_it),
        sum(len(process.memory_maps(grouped=False)) for process in all_of_it),
    )


def wait_until_settled(connection: http.client.HTTPConnection) -> None:
    """Until the versions that were replaced are closed."""
    for _ in range(1000):
        lines = call(connection, "GET", "/metrics")[1].decode().splitlines()
        if metric(lines, f'model_versions{{model_name="{NAME}"}}') == 1:
            return
        time.sleep(0.01)
    raise SystemExit("old versions are still in memory")


def metric(lines: list[str], name: str) -> float:
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"aie_{name}"))


class Publisher:
    """Writes versions beside their place and renames them into it, as whoever uses a repository should."""

    def __init__(self, folder: Path, sources: list[Path], chance: random.Random) -> None:
        self._folder = folder / NAME
        self._folder.mkdir()
        self._sources = sources
        self._chance = chance
        self._published: list[Path] = []

    def publish(self, number: int, broken: Callable[[Path, random.Random], None] | None = None) -> None:
        new = self._folder / f"{number}.tmp"
        shutil.copytree(self._sources[number % len(self._sources)], new)
        if broken is not None:
            broken(new, self._chance)
        self._published.append(new.rename(self._folder / str(number)))
        while len(self._published) > 3:
            shutil.rmtree(self._published.pop(0))


def reloads(
    connection: http.client.HTTPConnection,
    publisher: Publisher,
    numbers: range,
    share_broken: float,
    chance: random.Random,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[Counter[str], list[str]]:
    """(refusals by kind of fault and code, what should have been and was not)."""
    refusals: Counter[str] = Counter()
    wrong = []
    for done, number in enumerate(numbers, start=1):
        broken = chance.choice(BROKEN) if chance.random() < share_broken else None
        publisher.publish(number, broken)
        status, data = call(connection, "POST", f"/v2/repository/models/{NAME}/load", {})
        answer = json.loads(data)
        if broken is not None and 400 <= status < 500:
            kind = f"{broken.__name__}: {answer['code']}"
            if kind not in refusals:
                print(f"   refused, {broken.__name__}: {answer['error']}", flush=True)
            refusals[kind] += 1
        elif status != 200 or broken is not None:
            wrong.append(f"version {number} ({broken.__name__ if broken else 'sound'}): {status} {answer}")
        progress(done)
    return refusals, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--reloads", type=int, default=1000)
    parser.add_argument("--corrupt", type=float, default=0.05, help="part of the versions that are broken")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0, help="0: engines in the server's process; 1: in one each")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="aie-reload-") as name:
        folder = Path(name)
        sources = [write_tiny_llama(folder / f"source-{seed}", seed=seed) for seed in (1, 2)]
        (folder / "models").mkdir()
        publisher = Publisher(folder / "models", sources, chance)
        publisher.publish(1)
        flags = ["--repository", str(folder / "models"), "--workers", str(options.workers), "--threads", "1",
                 "--kernels", options.kernels, "--kv-memory", "8MiB", "--log-level", "error"]  # fmt: skip
        with own_server(flags) as (url, pid):
            return measure(options, publisher, chance, url, pid)


def measure(options: argparse.Namespace, publisher: Publisher, chance: random.Random, url: str, pid: int) -> int:
    address = urlsplit(url)
    assert address.hostname is not None and address.port is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=300)
    expected = {ask(connection, is_streamed=False)}
    reloads(connection, publisher, range(2, 3), 0.0, chance)
    expected.add(ask(connection, is_streamed=True))
    reloads(connection, publisher, range(3, WARM_UP), 0.0, chance)
    before = look(connection, pid)
    print(f"before: {before.line()}", flush=True)

    stop = threading.Event()
    clients = [Client(address.hostname, address.port, stop) for _ in range(options.clients)]
    for client in clients:
        client.start()
    began_s = time.perf_counter()
    first = WARM_UP
    numbers = range(first, first + options.reloads)

    def progress(done: int) -> None:
        if done % max(1, options.reloads // 5) == 0:
            print(f"   {done} reloads, RSS {resident(pid) / MIB:.1f} MiB", flush=True)

    refusals, wrong = reloads(connection, publisher, numbers, options.corrupt, chance, progress)
    took_s = time.perf_counter() - began_s
    stop.set()
    for client in clients:
        client.join()
    after = look(connection, pid)
    print(f"after:  {after.line()}")

    failures = [failure for client in clients for failure in client.seen.failures]
    answers = sum((client.seen.num_answers for client in clients), Counter())
    strange = answers.keys() - expected
    print(
        f"{options.reloads} reloads in {took_s:.1f} s, {refusals.total()} refused; {answers.total()} requests "
        f"answered meanwhile, {len(failures)} failed, {sum(answers[text] for text in strange)} in neither model's words"
    )
    for reason, count in sorted(refusals.items()):
        print(f"   {count:4} × {reason}")
    for line in [*failures[:10], *wrong[:10], *(f"strange text: {text!r}" for text in list(strange)[:3])]:
        print(f"   !! {line}")
    is_level = after.live == before.live and after.mapped == before.mapped
    return 0 if is_level and not failures and not wrong and not strange and len(expected) == 2 else 1


if __name__ == "__main__":
    sys.exit(main())
