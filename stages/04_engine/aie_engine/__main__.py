"""`python -m aie_engine`: stage 4 by itself. Everything it prints is measured while it prints."""

import argparse
import sys
from collections.abc import Sequence

from aie_engine.demo import run
from aie_tensor import AieError, run_program

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; 0 when it is done. `argv` without the program's name."""
    parser = argparse.ArgumentParser(
        prog="python -m aie_engine",
        description="Stage 4: tokens from a batch of eight, streams that overlap, and predictions in batches.",
    )
    parser.add_argument("--tokens", type=int, default=24, help="tokens to generate for each request (1 to 200)")
    options = parser.parse_args(argv)
    if not 1 <= options.tokens <= 200:
        parser.error(f"--tokens must be from 1 to 200, not {options.tokens}")
    try:
        run(options.tokens)
    except AieError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    run_program(main)
