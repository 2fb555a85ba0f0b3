"""Stage 3 from a checkout: `python stages/03_scheduler`, `python -m aie_scheduler` and `aie stage 3` are the same."""

import sys

try:
    from aie_scheduler.__main__ import main
    from aie_tensor import run_program
except ModuleNotFoundError as error:
    print(
        f"stage 3 needs the installed packages ({error.name} is missing): run `make install`, "
        "then `.venv/bin/python stages/03_scheduler`",
        file=sys.stderr,
    )
    sys.exit(3)

run_program(main)
