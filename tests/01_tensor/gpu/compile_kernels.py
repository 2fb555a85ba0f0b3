"""Compile the CUDA kernels with NVRTC, on a machine with or without a GPU.

    pip install nvidia-cuda-nvrtc-cu12          (90 MB; brings libnvrtc and nothing else)
    python tests/01_tensor/gpu/compile_kernels.py

NVRTC is a library, not a driver: it turns CUDA C into machine code for any architecture it knows. So what a GPU would
compile at first use can be compiled here, errors and all. NVRTC_LIBRARY names the library where it is not found.
"""

import ctypes
import ctypes.util
import importlib.util
import os
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "stages" / "01_tensor" / "aie_tensor" / "memory" / "cuda" / "kernels.cu"
# Turing, Ampere, Ada, Hopper, Blackwell; a version of NVRTC knows a range of them
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)


def find_nvrtc() -> Path | str | None:
    """The library: named by NVRTC_LIBRARY, from NVIDIA's Python packages, or from an installed CUDA toolkit."""
    named = os.environ.get("NVRTC_LIBRARY")
    if named:
        return named
    if importlib.util.find_spec("nvidia") is not None:
        spec = importlib.util.find_spec("nvidia")
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            for library in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
                if ".alt." not in library.name:
                    return library
    return ctypes.util.find_library("nvrtc")


class Nvrtc:
    """The few calls of the library that compiling takes."""

    def __init__(self, path: Path | str) -> None:
        self._lib = ctypes.CDLL(str(path))
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return major.value, minor.value

    def architectures(self) -> list[int]:
        """Compute capabilities it can compile for, times ten."""
        count = ctypes.c_int()
        self._check(self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        known = (ctypes.c_int * count.value)()
        self._check(self._lib.nvrtcGetSupportedArchs(known))
        return list(known)

    def compile(self, source: str, name: str, options: list[str]) -> bytes:
        """The machine code (cubin). RuntimeError with the compiler's log for errors, and for warnings as well."""
        program = ctypes.c_void_p()
        self._check(self._lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None))
        try:
            flags = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
            status = self._lib.nvrtcCompileProgram(program, len(options), flags)
            log = self._fetch(program, "ProgramLog").strip(b"\0\n ").decode()
            if status or log:
                raise RuntimeError(log or f"NVRTC failed with status {status}")
            return self._fetch(program, "CUBIN")
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _fetch(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._lib, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(self._lib.nvrtcGetErrorString(status).decode())


def compile_all(nvrtc: Nvrtc, options: tuple[str, ...]) -> dict[int, int]:
    """Architecture → bytes of its machine code. RuntimeError with the compiler's log."""
    source = SOURCE.read_text(encoding="utf-8")
    known = nvrtc.architectures()
    return {
        arch: len(nvrtc.compile(source, SOURCE.name, [*options, f"--gpu-architecture=sm_{arch}"]))
        for arch in ARCHITECTURES
        if arch in known
    }


def main() -> int:
    """Print what was compiled; exit code 1 for an error in the source, 3 without the library."""
    path = find_nvrtc()
    if path is None:
        print("NVRTC is not here: pip install nvidia-cuda-nvrtc-cu12", file=sys.stderr)
        return 3
    nvrtc = Nvrtc(path)
    print(f"NVRTC {nvrtc.version()[0]}.{nvrtc.version()[1]}, {SOURCE.name}")
    try:
        for arch, nbytes in compile_all(nvrtc, ("--std=c++14",)).items():
            print(f"  sm_{arch}: {nbytes} bytes of machine code")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
