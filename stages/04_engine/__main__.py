"""Stage 4 from a checkout: `python stages/04_engine`, `python -m aie_engine` and `aie stage 4` are the same."""

import sys

try:
    from aie_engine.__main__ import main
    from aie_tensor import run_program
except ModuleNotFoundError as error:
    print(
        f"stage 4 needs the installed packages ({error.name} is missing): run `make install`, "
        "then `.venv/bin/python stages/04_engine`",
        file=sys.stderr,
    )
    sys.exit(3)

run_program(main)
