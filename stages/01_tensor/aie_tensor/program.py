"""The end of a program that a person started: an exit code and at most one sentence, never a traceback.

For the demonstrations of the stages; the command line `aie` does the same for itself.
"""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from aie_tensor.errors import AieError

__all__ = ["run_program"]


def run_program(main: Callable[[], int]) -> NoReturn:
    """Runs `main` and exits with what it returns: an `AieError` becomes its message and its code, Ctrl-C becomes 130,
    and a reader of the output who went away (`python -m aie_tensor | head`) is no error."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered goes nowhere, or the interpreter would complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except AieError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
