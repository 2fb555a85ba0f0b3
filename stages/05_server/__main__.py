"""Stage 5 from a checkout: `python stages/05_server`, `python -m aie_server` and `aie stage 5` are the same."""

import sys

try:
    from aie_server.__main__ import main
    from aie_tensor import run_program
except ModuleNotFoundError as error:
    print(
        f"stage 5 needs the installed packages ({error.name} is missing): run `make install`, "
        "then `.venv/bin/python stages/05_server`",
        file=sys.stderr,
    )
    sys.exit(3)

run_program(main)
