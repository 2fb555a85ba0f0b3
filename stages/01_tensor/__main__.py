"""Stage 1 from a checkout: `python stages/01_tensor`, `python -m aie_tensor` and `aie stage 1` are the same."""

import sys

try:
    from aie_tensor import run_program
    from aie_tensor.__main__ import main
except ModuleNotFoundError as error:
    print(
        f"stage 1 needs the installed packages ({error.name} is missing): run `make install`, "
        "then `.venv/bin/python stages/01_tensor`",
        file=sys.stderr,
    )
    sys.exit(3)

run_program(main)
