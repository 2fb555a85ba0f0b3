"""The tests of the native kernels under GCC's sanitizers; by hand, since it takes minutes and wants GCC and Linux.

    python tests/01_tensor/sanitize.py                        both, on the kernels' own tests and on the executors'
    python tests/01_tensor/sanitize.py thread PATH …          ThreadSanitizer: races, locks held wrongly
    python tests/01_tensor/sanitize.py address PATH …         AddressSanitizer, UBSan: bounds, use after free, overflow

The kernels are compiled with the sanitizer; Python is not, so its library is loaded before everything else. NumPy's
arrays come from malloc, so a kernel that leaves one is caught as well.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
PATHS = [
    *(f"01_tensor/test_native_{name}.py" for name in ("attention", "matmul", "operators", "plan", "pool")),
    "04_engine/test_executors.py",
    "04_engine/test_native_stateless.py",
]  # fmt: skip
FLAGS = {
    "thread": "-fsanitize=thread",
    "address": "-fsanitize=address,undefined -fno-sanitize-recover=undefined",
}
LIBRARIES = {"thread": ["libtsan.so"], "address": ["libasan.so", "libubsan.so"]}
OPTIONS = {
    # Without instrumentation Python's own locks are invisible, and its memory looks leaked at the end.
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1 exitcode=66",
    "ASAN_OPTIONS": "detect_leaks=0",
    "PYTHONMALLOC": "malloc",
}


def run(kind: str, paths: list[str]) -> int:
    """pytest's exit code, or the sanitizer's."""
    found = [
        subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip() for name in LIBRARIES[kind]
    ]
    environment = {
        "AIE_TEST_KERNEL_FLAGS": f"-march=native -O1 -g -fno-omit-frame-pointer {FLAGS[kind]}",
        "LD_PRELOAD": " ".join(found),
        **OPTIONS,
    }
    # ThreadSanitizer lays out the address space itself, which the kernel's randomization can make impossible.
    command = ["setarch", "-R", sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-m", "native"]
    command.append("--timeout=1200")  # the first test waits for the compiler, which takes its time with a sanitizer
    with tempfile.TemporaryDirectory() as cache:
        return subprocess.call([*command, *paths], env={**os.environ, **environment, "AIE_CACHE": cache})


if __name__ == "__main__":
    wanted = sys.argv[1:2] or list(FLAGS)
    chosen = sys.argv[2:] or [str(TESTS / path) for path in PATHS]
    codes = [run(kind, chosen) for kind in wanted]
    sys.exit(max(codes))
