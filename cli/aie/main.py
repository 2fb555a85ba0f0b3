"""Entry point of the `aie` command: the one place where errors become a sentence and an exit code.

Exit codes: 0 done · 1 the thing measured fell short · 2 wrong usage or input · 3 the environment lacks something ·
130 interrupted.
"""

import os
import signal
import sys

from aie.plain_characters import allow_plain_characters

__all__ = ["main"]


def main() -> None:
    """Run one command line. Our own errors are one sentence on standard error, never a traceback."""
    _open_what_is_closed()
    allow_plain_characters()
    code = _run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
    except OSError as error:
        _silence_stdout()
        print(f"aie: standard output cannot be written: {error.strerror or error}", file=sys.stderr)
        code = 3
    sys.exit(code)


def _run() -> int | str | None:
    code: int | str | None = 0
    try:
        # Imported here, not above, so that Ctrl-C in the half second of loading is no traceback either.
        from aie.app import app

        app()
    except SystemExit as end:
        # Typer ends with 1 when the reader of our output went away (`aie models | head`); that is its right, no error.
        code = 0 if isinstance(end.__context__, BrokenPipeError) else end.code
    except BrokenPipeError:
        code = 0
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = _explain(error)
    if code == 130:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # once more, while the interpreter ends, is no traceback
    if code == 130 and sys.stderr.isatty():
        print(file=sys.stderr)  # the shell's prompt does not belong behind the line that was cut off
    return code


def _explain(error: Exception) -> int:
    from aie_engine import AieError

    if isinstance(error, AieError):
        print(f"aie: {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, OSError):
        # What the commands foresee has a sentence of its own; this is for the rest of what disks and systems do.
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"aie: the system refused: {where}{error.strerror or error}", file=sys.stderr)
        return 3
    raise error  # a bug of ours: its traceback is what we need


def _open_what_is_closed() -> None:
    """Who closed a standard stream (`2>&-`) wants to hear nothing there. But the next file or socket would get its
    number, and in it the errors of whatever program is started."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115


def _silence_stdout() -> None:
    """Let what is still buffered go nowhere, or the interpreter would complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
