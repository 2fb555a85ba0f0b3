"""The name under which a request appears in answers and logs."""

import os
import re
from typing import Final

__all__ = ["choose_request_id"]

_ACCEPTABLE: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")  # nothing that could forge a header or a log line


def choose_request_id(offered: str | None) -> str:
    """The client's own X-Request-Id where it is harmless, else a new one."""
    if offered is not None and _ACCEPTABLE.fullmatch(offered):
        return offered
    return os.urandom(16).hex()
