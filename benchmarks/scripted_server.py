"""A server of the OpenAI API that answers by a script and notes what it did: builds and runs `scripted_server.c`."""

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from http_load import build_program

__all__ = ["Script", "ScriptedServer", "Served", "scripted_server"]

_STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Script:
    """One answer. steps: (milliseconds after the step before, action), as `scripted_server.c` knows them."""

    steps: tuple[tuple[float, str], ...]

    @property
    def line(self) -> str:
        """For the server's file."""
        return " ".join(f"{round(after_ms * 1000)}:{action}" for after_ms, action in self.steps)


@dataclass(frozen=True, slots=True)
class Served:
    """What the server did for one request. Times are seconds on the monotonic clock."""

    number: int  # from 1 on, in the order of arrival
    script: Script
    arrival_s: float  # of the request's last byte
    end_s: float  # the last byte was written, or the client had gone
    has_left: bool  # the client went before the script was over
    written_s: tuple[float, ...]  # of each step that was reached
    is_open: bool = False  # neither over nor left, when the server was stopped

    @property
    def actions(self) -> tuple[str, ...]:
        """Those that were reached."""
        return tuple(action for _, action in self.script.steps[: len(self.written_s)])

    @property
    def texts(self) -> list[tuple[float, int]]:
        """When each event with text was complete, and of how many tokens it was."""
        found = []
        for at_s, action in zip(self.written_s, self.actions, strict=True):
            if action == "rest" or action.startswith("text"):
                found.append((at_s, int(action.removeprefix("text") or 1) if action != "rest" else 1))
        return found

    @property
    def first_body_s(self) -> float | None:
        """The first byte after the head of a stream."""
        body = ("role", "text", "half", "usage", "done", "error")
        for at_s, action in zip(self.written_s, self.actions, strict=True):
            if action.startswith(body):
                return at_s
        return None

    @property
    def lateness_s(self) -> float:
        """How far behind its script the server was at worst."""
        due_s, worst_s = self.arrival_s, 0.0
        for at_s, (after_ms, _) in zip(self.written_s, self.script.steps, strict=False):
            due_s += after_ms / 1e3
            worst_s = max(worst_s, at_s - due_s)
        return worst_s


@dataclass(slots=True)
class ScriptedServer:
    """One that runs. records: filled when it has ended."""

    url: str
    pid: int
    records: list[Served] = field(default_factory=list)


@contextmanager
def scripted_server(scripts: Sequence[Script], port: int = 0) -> Iterator[ScriptedServer]:
    """The k-th request is answered by the k-th script, and then from the first again. Raises `RuntimeError` when the
    server ended by itself, and `EnvironmentLacksError` without a compiler."""
    with tempfile.TemporaryDirectory(prefix="scripted-") as name:
        folder = Path(name)
        program = build_program(Path(__file__).with_suffix(".c"), folder)
        (folder / "scripts").write_text("".join(script.line + "\n" for script in scripts))
        command = [str(program), str(port), str(folder / "scripts"), str(folder / "records")]
        # Its own session: Ctrl-C reaches whoever runs it, who stops it in good order.
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the scripted server did not start: {process.stderr.read().strip()}")
            server = ScriptedServer(f"http://127.0.0.1:{int(line)}", process.pid)
            try:
                yield server
            finally:
                process.terminate()
                try:
                    status = process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    status = process.wait()
                said = process.stderr.read().strip()
        if status != 0:
            raise RuntimeError(f"the scripted server ended with {status}: {said}")
        server.records += _read_records(folder / "records", scripts)


def _read_records(path: Path, scripts: Sequence[Script]) -> Iterator[Served]:
    for line in path.read_text().splitlines():
        number, script, _, arrival, end, how, *written = line.split()
        yield Served(int(number), scripts[int(script)], float(arrival), float(end), how == "left",
                     tuple(map(float, written)), how == "open")  # fmt: skip
