"""`python -m aie_tensor`: stage 1 by itself. Everything it prints is measured while it prints."""

import argparse
import os
from collections.abc import Callable, Sequence

from aie_tensor.demo_fragmentation import show_fragmentation
from aie_tensor.demo_kernels import show_kernels
from aie_tensor.demo_leaks import show_leaks
from aie_tensor.demo_memory import show_reuse, show_rounding
from aie_tensor.demo_misuse import show_misuse
from aie_tensor.demo_streams import show_streams
from aie_tensor.program import run_program

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; 0 when it is done. `argv` without the program's name."""
    parser = argparse.ArgumentParser(
        prog="python -m aie_tensor", description="Stage 1: memory that you can see, and kernels."
    )
    parser.add_argument("--threads", type=int, default=min(8, os.cpu_count() or 1), help="threads of the C kernel")
    parser.add_argument("--part", type=int, action="append", help="only this part, 1 to 7 (may be repeated)")
    options = parser.parse_args(argv)
    if options.threads < 1:
        parser.error(f"--threads must be at least 1, not {options.threads}")
    parts: list[Callable[[], None]] = [
        show_reuse,
        show_rounding,
        show_fragmentation,
        show_streams,
        show_misuse,
        show_leaks,
        lambda: show_kernels(options.threads),
    ]
    chosen = options.part or range(1, len(parts) + 1)
    if wrong := [number for number in chosen if not 1 <= number <= len(parts)]:
        parser.error(f"--part must be 1 to {len(parts)}, not {wrong[0]}")
    print("Stage 1, aie_tensor: bytes into arrays and operators\n")
    for number in chosen:
        parts[number - 1]()
    return 0


if __name__ == "__main__":
    run_program(main)
