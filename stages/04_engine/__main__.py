"""Stage 4 straight from a checkout: `python stages/04_engine` is the same as `python -m aie_engine` and `aie stage 4`."""

import sys

try:
    from aie_engine.__main__ import main
except ModuleNotFoundError as error:
    print(f"stage 4 needs the installed packages ({error.name} is missing): run `make install`, "
          "then `.venv/bin/python stages/04_engine`", file=sys.stderr)
    sys.exit(3)

sys.exit(main())
