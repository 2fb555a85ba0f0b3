"""Ctrl-C at every moment: while it is measured it ends the measurement, and while the report is made it is told that
this is what happens."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from aie.console import note

__all__ = ["interrupts_kept", "report_first"]


@contextlib.contextmanager
def interrupts_kept() -> Iterator[None]:
    """Ctrl-C is as it was at the end, whatever `report_first` did; SIGTERM is as Ctrl-C meanwhile, since `timeout` and
    service managers send that, and no server of ours may stay behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    _set(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: installed by another language
                _set(number, handler)


def report_first() -> None:
    """From now on Ctrl-C says that the report is being made; once more, and it ends that, too. Who presses it twice in
    a hurry to end a measurement means to keep what was measured."""
    is_told = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_told
        if is_told:
            signal.default_int_handler(number, frame)
        is_told = True
        note("The report is being made; Ctrl-C again gives it up.")

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            _set(number, handle)


def _set(number: int, handler: "Callable[[int, FrameType | None], Any] | int") -> None:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(number, handler)
