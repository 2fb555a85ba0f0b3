"""Find a C compiler, build the kernels once, keep them in the user's cache.

The file's name is a hash of everything that could change its content: sources, flags, the compiler and its version,
the CPU (the kernels are compiled for exactly this one). Two processes that build at the same time each write a file of
their own and rename it into place, which is atomic; so no lock is needed, and nobody ever sees half a library.
"""

import errno
import functools
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aie_tensor.errors import NativeUnavailableError
from aie_tensor.paths import cache_dir

__all__ = [
    "Compiler",
    "build",
    "cache_key",
    "compile_once",
    "cpu_identity",
    "find_compilers",
    "is_cut",
    "source_files",
    "target_flags",
    "writable_folder",
]

SOURCE_DIR = Path(__file__).parent / "src"
BASE_FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden",
    # a*b+c may become one instruction, but nothing may assume away NaN and infinity: no -ffast-math
    "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
LINK_FLAGS = ("-lm", "-pthread")
REMEDY = "Install a C compiler (apt install gcc; xcode-select --install; or, as a Python package, pip install ziglang)."

NO_ROOM = "Make room on the disk, or name a folder on another one in AIE_CACHE."


@dataclass(frozen=True)
class Compiler:
    """A command that compiles C: ("gcc",) or (python, "-m", "ziglang", "cc"); and the first line of its --version."""

    command: tuple[str, ...]
    version: str

    @property
    def name(self) -> str:
        """For people: `gcc (Debian 12.2.0) 12.2.0`."""
        return self.version or " ".join(self.command)


def find_compilers() -> Iterator[Compiler]:
    """The compilers of this machine in the order cc, clang, gcc, zig; one that does not answer --version is skipped."""
    candidates = [(path,) for name in ("cc", "clang", "gcc") if (path := shutil.which(name))]
    for command in [*candidates, (sys.executable, "-m", "ziglang", "cc")]:
        try:
            answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0 and answer.stdout.strip():
            yield Compiler(command, answer.stdout.strip().splitlines()[0])


@functools.cache
def cpu_identity() -> str:
    """Model and instruction sets of this CPU: in a shared home folder, another CPU must not load its kernels."""
    parts = [platform.system(), platform.machine(), platform.processor()]
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return "|".join(parts)
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    seen = {line.partition(":")[0].strip(): line for line in reversed(lines) if line.startswith(wanted)}
    return "|".join([*parts, *sorted(seen.values())])


def target_flags() -> list[tuple[str, ...]]:
    """What asks the compiler for this very CPU, best first. x86 spells it -march, others -mcpu; some know neither."""
    native = ("-march=native",) if platform.machine().lower() in {"x86_64", "amd64"} else ("-mcpu=native",)
    return [native, ()]


def source_files() -> list[Path]:
    """The C sources and headers, in a fixed order."""
    return sorted(path for path in SOURCE_DIR.iterdir() if path.suffix in {".c", ".h"})


def cache_key(compiler: Compiler, flags: Sequence[str]) -> str:
    """Sixteen hex digits that name one build."""
    digest = hashlib.sha256()
    for part in [*flags, *compiler.command, compiler.version, cpu_identity()]:
        digest.update(part.encode() + b"\0")
    for path in source_files():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def writable_folder(wanted: Path) -> Path:
    """`wanted`, or where it cannot be written, a folder of this user alone among the temporary files."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    for folder in (wanted, Path(tempfile.gettempdir()) / f"aie-kernels-{user}"):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=folder):
                # A library from a folder that somebody else owns could be anybody's code.
                if not hasattr(os, "getuid") or folder.stat().st_uid == user:
                    return folder
        except OSError:
            continue
    raise NativeUnavailableError(f"Compiled kernels cannot be stored, neither in {wanted} nor in a temporary folder.")


def is_cut(library: Path) -> bool:
    """Whether an ELF file ends before its table of sections, which linkers write last. To load such a file kills the
    process: what is missing is mapped, and then touched. Raises `OSError`."""
    with library.open("rb") as file:
        head, size = file.read(64), os.fstat(file.fileno()).st_size
    if head[:5] != b"\x7fELF\x02":  # of another system, or no library at all, which its loader says
        return False
    order = "<" if head[5:6] == b"\x01" else ">"
    if len(head) < 64:
        return True
    sections_begin, section_bytes, num_sections = (
        *struct.unpack_from(f"{order}Q", head, 40),
        *struct.unpack_from(f"{order}HH", head, 58),
    )
    return bool(sections_begin + section_bytes * num_sections > size)


def compile_once(compiler: Compiler, flags: Sequence[str], target: Path) -> None:
    """Compile all sources into `target`, atomically. Raises NativeUnavailableError with the compiler's first lines."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.stem, suffix=".tmp")
    os.close(handle)
    sources = [str(path) for path in source_files() if path.suffix == ".c"]
    command = [*compiler.command, *flags, *sources, "-o", name, *LINK_FLAGS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=False)
        if done.returncode != 0:
            complaint = " / ".join((done.stderr or done.stdout).strip().splitlines()[:5])
            remedy = NO_ROOM if os.strerror(errno.ENOSPC) in complaint else REMEDY
            raise NativeUnavailableError(f"{compiler.name} could not compile the kernels: {complaint}. {remedy}")
        os.replace(name, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailableError(f"{compiler.name} could not compile the kernels: {error}. {REMEDY}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def build(
    *,
    report: Callable[[str], None] | None = None,
    compiler: Compiler | None = None,
    flags: Sequence[str] | None = None,
    cache: Path | None = None,
) -> Path:
    """Path of the compiled library, built now if it was not built before.

    `report` gets one line before a compilation starts. `compiler` and `flags` (instead of "this CPU") override what
    would be found; `cache` is the folder instead of `cache_dir() / "kernels"`.

    Raises NativeUnavailableError when there is no compiler, or when none of them can compile the kernels.
    """
    folder = writable_folder(cache if cache is not None else cache_dir() / "kernels")
    targets = target_flags() if flags is None else [tuple(flags)]
    failure = NativeUnavailableError(f"No C compiler was found (tried cc, clang, gcc, ziglang). {REMEDY}")
    for candidate in find_compilers() if compiler is None else [compiler]:
        for target in targets:
            all_flags = (*BASE_FLAGS, *target)
            library = folder / f"{cache_key(candidate, all_flags)}.so"
            if library.exists():
                return library
            if report is not None:
                report(f"compiling kernels with {candidate.name} (once; cached in {folder})")
            try:
                compile_once(candidate, all_flags, library)
            except NativeUnavailableError as error:
                failure = error
                continue
            return library
    raise failure
