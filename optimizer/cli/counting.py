"""How far a known number of equal steps has come, in lines on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable

from optimizer.cli.talk import say

LINE_EVERY_S = 5.0


def counted(what: str) -> Callable[[int, int], None]:
    """A function of steps done and steps in all that says so every few seconds, and at the end."""
    started = last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LINE_EVERY_S and done < total:
            return
        last = now
        say(f"{what} {done} of {total}, {now - started:.0f} s")

    return progress
