"""Stage 6 from a checkout: `python stages/06_reliability`, `python -m aie_reliability`, `aie stage 6` are one thing."""

import sys

try:
    from aie_reliability.__main__ import main
    from aie_tensor import run_program
except ModuleNotFoundError as error:
    print(
        f"stage 6 needs the installed packages ({error.name} is missing): run `make install`, "
        "then `.venv/bin/python stages/06_reliability`",
        file=sys.stderr,
    )
    sys.exit(3)

run_program(main)
