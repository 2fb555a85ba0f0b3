"""Writing a file so that it appears complete or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from aie_tensor import EnvironmentLacksError

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes `path`'s place when the block ends well, and vanishes when it does not.

    It is made beside `path` (renaming works only within a file system), in folders that are made where they are
    missing. Whoever has the old file mapped keeps it. EnvironmentLacksError where the machine cannot write it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        raise EnvironmentLacksError(f"{path} cannot be written: {error}") from error
    finally:
        with suppress(OSError):  # it may be gone, or its folder may never have been one
            temporary.unlink()
