"""Ctrl-C and SIGTERM as a question that the search asks, never in the middle of a write."""

from __future__ import annotations

import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While entered, the first signal is only noted; a second one ends the process at once.

    >>> with Interrupt() as interrupt:
    ...     interrupt.asked
    ''
    """

    def __init__(self) -> None:
        self.asked = ""

    def __enter__(self) -> Interrupt:
        self._former = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def is_asked(self) -> bool:
        """Whether a signal has come."""
        return bool(self.asked)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = f"interrupted ({signal.Signals(number).name})"
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_DFL)
