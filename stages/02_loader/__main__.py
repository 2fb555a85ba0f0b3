"""Stage 2 from a checkout: `python stages/02_loader`, `python -m aie_loader` and `aie stage 2` are the same."""

import sys

try:
    from aie_loader.__main__ import main
    from aie_tensor import run_program
except ModuleNotFoundError as error:
    print(
        f"stage 2 needs the installed packages ({error.name} is missing): run `make install`, "
        "then `.venv/bin/python stages/02_loader`",
        file=sys.stderr,
    )
    sys.exit(3)

run_program(main)
