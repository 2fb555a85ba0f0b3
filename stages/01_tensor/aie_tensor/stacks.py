"""Call stacks that cost little to take and are turned into text only when somebody reads them.

Taking one walks the frames and keeps, per frame, the code object and the index of its current instruction. Line numbers
and file names are looked up in the report. Equal stacks are stored once, so that a million allocations from one line
cost one stack. (`traceback.format_stack` reads source files and builds strings: some twenty times the price.)
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

__all__ = ["Frame", "RawStack", "StackTable", "resolve"]

# (code object, instruction offset) per frame, innermost first
RawStack = tuple[tuple[CodeType, int], ...]

# A stack starts at the line that asked for memory, not inside the code that serves it.
_OWN_FILES = frozenset(
    str(Path(__file__).parent / name)
    for name in ("stacks.py", "tensor.py", "memory/allocation.py", "memory/ledger.py", "memory/pool.py")
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a call stack. Prints as `file:line in function`, a file inside the current folder relative to it."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        path = Path(self.file)
        here = Path.cwd()
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        return f"{shown}:{self.line} in {self.function}"


class StackTable:
    """Takes stacks of at most `max_frames` and interns them. Safe to use from several threads."""

    def __init__(self, max_frames: int = 16) -> None:
        self.max_frames = max_frames
        # Keyed by identity, since hashing a code object hashes its whole content; the values keep those objects alive.
        self._stacks: dict[tuple[int, ...], RawStack] = {}

    def capture(self) -> RawStack:
        """The current stack, innermost first, without the memory package's own frames."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename in _OWN_FILES:
            frame = frame.f_back
        taken: list[tuple[CodeType, int]] = []
        key: list[int] = []
        while frame is not None and len(taken) < self.max_frames:
            code, offset = frame.f_code, frame.f_lasti
            taken.append((code, offset))
            key += (id(code), offset)
            frame = frame.f_back
        return self._stacks.setdefault(tuple(key), tuple(taken))


def resolve(stack: RawStack) -> tuple[Frame, ...]:
    """The frames as text, innermost first: the first is the line that asked. Python's start-up frames are left out."""
    named = [(code, offset) for code, offset in stack if not code.co_filename.startswith("<frozen ")]
    return tuple(Frame(code.co_filename, _line(code, offset), code.co_qualname) for code, offset in named)


def _line(code: CodeType, offset: int) -> int:
    """The source line of the instruction at byte `offset`."""
    for start, end, line in code.co_lines():
        if start <= offset < end:
            return line or code.co_firstlineno
    return code.co_firstlineno
