"""Going on after the storage of a study was away: a restart or a failover of its database."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from optuna.exceptions import StorageInternalError

from optimizer.storing.storage import AnswerLost
from spaces.errors import StorageUnavailable

PATIENCE_S = 600.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
# A failure so long after an attempt began is a new outage, with patience of its own.
SETTLED_S = 60.0
LOOK_S = 0.1

Result = TypeVar("Result")


def patiently(
    attempt: Callable[[], Result], note: Callable[[str], None], cancelled: Callable[[], object]
) -> Result:
    """The result of `attempt`, made again from the start while its storage comes and goes.

    An attempt must find its way from what is stored, as after a kill. Pauses double up to
    `LONGEST_PAUSE_S`; an outage of `PATIENCE_S`, or a storage that was never there, ends as
    `StorageUnavailable`, a cancellation meanwhile as `KeyboardInterrupt`.
    """
    down_s, pause_s = None, FIRST_PAUSE_S
    while True:
        begun_s = time.monotonic()
        try:
            return attempt()
        except (StorageInternalError, AnswerLost) as error:
            reason = _reason(error)
            if down_s is None or time.monotonic() - begun_s > SETTLED_S:
                down_s, pause_s = time.monotonic(), FIRST_PAUSE_S
        except StorageUnavailable as error:
            reason = error.reason
            if down_s is None:
                raise
        if time.monotonic() - down_s > PATIENCE_S:
            raise StorageUnavailable(reason, "of the study")
        note(f"the storage does not answer ({reason}); trying again in {pause_s:g} s")
        _pause(pause_s, cancelled)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _pause(seconds: float, cancelled: Callable[[], object]) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if cancelled():
            raise KeyboardInterrupt
        time.sleep(LOOK_S)


def _reason(error: Exception) -> str:
    """What the driver said, which Optuna keeps as the cause."""
    lines = str(error.__cause__ or error).splitlines()
    return lines[0] if lines else type(error).__name__
