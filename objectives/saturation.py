"""Whether an open loop offers more than is served: its queue grows as long as it runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectives.simulator import SimulationResult

# Fewer finished requests do not show a trend.
_LEAST_REQUESTS = 30


@dataclass(frozen=True, slots=True)
class QueueGrowth:
    """Mean waits for admission, in seconds, of the first and the last third of an open loop.

    Those for the pool that a prompt enters and for the decode pool together. `unfinished` is the
    share of requests that had not finished when the last one arrived.
    """

    early_s: float
    late_s: float
    unfinished: float

    @property
    def saturated(self) -> bool:
        """Whether requests pile up and wait ever longer.

        Over a tenth of the requests were unfinished at the last arrival, and the last third waited
        more than twice as long as the first, by at least a second.
        """
        longer = self.late_s > 2 * self.early_s and self.late_s > self.early_s + 1.0
        return self.unfinished > 0.1 and longer


def queue_growth(result: SimulationResult) -> QueueGrowth | None:
    """How the queue grew; None for a closed loop, or where too few requests finished."""
    records = result.requests
    finished = np.flatnonzero(records.finished)
    if result.closed_loop or len(finished) < _LEAST_REQUESTS:
        return None
    in_order = finished[np.argsort(records.arrival_s[finished], kind="stable")]
    waits_s = (records.queue_s + records.decode_wait_s)[in_order]
    third = len(in_order) // 3
    last_arrival_s = records.arrival_s[records.sent].max()
    return QueueGrowth(
        early_s=float(waits_s[:third].mean()),
        late_s=float(waits_s[-third:].mean()),
        unfinished=float((records.finish_s[finished] > last_arrival_s).mean()),
    )
