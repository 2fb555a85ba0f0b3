"""`python -m aie_tensor`: stage 1 by itself. Everything it prints is measured while it prints."""

import argparse
import os
from collections.abc import Sequence

from aie_tensor.demo_kernels import show_kernels
from aie_tensor.demo_memory import show_misuse, show_reuse
from aie_tensor.program import run_program

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; 0 when it is done. `argv` without the program's name."""
    parser = argparse.ArgumentParser(prog="python -m aie_tensor", description="Stage 1: memory, misuse, kernels.")
    parser.add_argument("--threads", type=int, default=min(8, os.cpu_count() or 1), help="threads of the C kernel")
    options = parser.parse_args(argv)
    if options.threads < 1:
        parser.error(f"--threads must be at least 1, not {options.threads}")
    print("Stage 1, aie_tensor: bytes into arrays and operators\n")
    show_reuse()
    show_misuse()
    show_kernels(options.threads)
    return 0


if __name__ == "__main__":
    run_program(main)
