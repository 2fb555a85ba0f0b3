"""Frames as text, "file:line in function", taken apart again."""

import re

from aie_tensor.stacks import Frame

__all__ = ["parse_frame"]

_FRAME = re.compile(r"(?P<file>.*):(?P<line>\d+) in (?P<function>.*)", re.DOTALL)


def parse_frame(text: str) -> Frame:
    """What prints as `text`. Text of another form becomes the function's name."""
    match = _FRAME.fullmatch(text)
    return Frame(match["file"], int(match["line"]), match["function"]) if match else Frame("", 0, text)
