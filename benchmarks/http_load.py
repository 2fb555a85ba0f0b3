"""Compiles `http_load.c` with the system's compiler, and runs it."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from aie_engine import EnvironmentLacksError
from aie_tensor.native.build import find_compilers

__all__ = ["Load", "LoadClient", "build_program"]


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of the client saw, after its warm-up."""

    connections: int
    requests: int
    seconds: float
    cpu_s: float  # of the client itself
    body_bytes: int
    p50_us: float
    p99_us: float
    all_requests: int  # those of the warm-up, too

    @property
    def per_s(self) -> float:
        """Requests."""
        return self.requests / self.seconds


def build_program(source: Path, folder: Path) -> Path:
    """Compiles one C file into `folder`. Raises `EnvironmentLacksError` without a compiler that does."""
    program = folder / source.stem
    said = "none was found"
    for compiler in find_compilers():
        command = [*compiler.command, "-std=gnu11", "-O2", "-o", str(program), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return program
        said = f"{compiler.name} said: {done.stderr.strip().splitlines()[:3]}"
    raise EnvironmentLacksError(f"{source.name} needs a C compiler; {said}.")


class LoadClient:
    """folder: where the program is put. Raises `EnvironmentLacksError` without a compiler."""

    def __init__(self, folder: Path) -> None:
        self._program = build_program(Path(__file__).with_suffix(".c"), folder)

    def run(self, port: int, request: Path, *, connections: int, seconds: float, most: int = 10_000_000) -> Load:
        """The same request again and again. Raises `RuntimeError` for an answer that is not 200, and for none."""
        command = [str(self._program), str(port), str(connections), str(seconds), str(most), str(request)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise RuntimeError(f"the load client ended with {done.returncode}: {done.stderr.strip()}")
        return Load(**json.loads(done.stdout))
