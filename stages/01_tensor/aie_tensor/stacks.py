"""Call stacks that cost little to take and are turned into text only when somebody reads them.

Taking one walks the frames and keeps, per frame, the code object and the index of its current instruction. Line numbers
and file names are looked up in the report. Equal stacks are stored once, so that a million allocations from one line
cost one stack. (`traceback.format_stack` reads source files and builds strings: some twenty times the price.)

A stack begins at the line that asked for memory, not inside the code that serves it: innermost frames of the folder
`memory/` and of `tensor.py` are left out. Code of other packages that asks on somebody else's behalf says so with
`skip_frames_of(__file__)`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

__all__ = ["Frame", "RawStack", "StackTable", "resolve", "skip_frames_of"]

# (code object, instruction offset) per frame, innermost first
RawStack = tuple[tuple[CodeType, int], ...]

MAX_STACKS = 16_384  # stacks of 16 frames in a table: some 30 MB
_HERE = Path(__file__).parent
# Files whose innermost frames never count as the asker. It only grows, at import.
_SERVING_FILES = {str(_HERE / "stacks.py"), str(_HERE / "tensor.py")}
_SERVING_FILES.update(str(path) for path in (_HERE / "memory").glob("*.py"))


def skip_frames_of(path: str | Path) -> None:
    """Let no stack begin in this source file: it asks for memory on behalf of its callers. Call it at import with
    `__file__`; frames of the file further out, behind somebody else's, stay."""
    _SERVING_FILES.add(str(path))


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
    """Takes stacks of at most `max_frames` and interns them. Safe to use from several threads.

    A program that makes code at run time has ever new stacks, so the table forgets all at `max_stacks` and begins
    anew. Who holds a stack keeps it; only its equals taken later are other objects.
    """

    def __init__(self, max_frames: int = 16, max_stacks: int = MAX_STACKS) -> None:
        assert max_frames >= 1 and max_stacks >= 1, (max_frames, max_stacks)
        self.max_frames = max_frames
        self.max_stacks = max_stacks
        # Keyed by identity, since hashing a code object hashes its whole content; the values keep those objects alive.
        self._stacks: dict[tuple[int, ...], RawStack] = {}

    def __len__(self) -> int:
        return len(self._stacks)

    def capture(self) -> RawStack:
        """The current stack, innermost first, without the frames of files that only serve."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename in _SERVING_FILES:
            frame = frame.f_back
        first = frame
        left = self.max_frames
        key: list[int] = []
        while frame is not None and left:
            key += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
            left -= 1
        stacks = self._stacks  # another thread may begin a new table meanwhile
        known = stacks.get(interned := tuple(key))
        if known is not None:
            return known
        if len(stacks) >= self.max_stacks:
            self._stacks = stacks = {}
        return stacks.setdefault(interned, self._keep(first))

    def _keep(self, frame: FrameType | None) -> RawStack:
        """The stack from `frame` outward."""
        kept: list[tuple[CodeType, int]] = []
        while frame is not None and len(kept) < self.max_frames:
            kept.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        return tuple(kept)


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
