"""Stage 6 straight from a checkout: `python stages/06_reliability` is the same as `python -m aie_reliability` and `aie stage 6`."""

import sys

try:
    from aie_reliability.__main__ import main
except ModuleNotFoundError as error:
    print(f"stage 6 needs the installed packages ({error.name} is missing): run `make install`, "
          "then `.venv/bin/python stages/06_reliability`", file=sys.stderr)
    sys.exit(3)

sys.exit(main())
