"""The requests a deployment has to serve, as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Workload:
    """`n` requests in order of arrival.

    `arrival_s` [n] counts from the first request and never falls. `input_tokens` and
    `output_tokens` [n] are at least 1. Equal leading prefix blocks of two requests mean an equal
    beginning of their inputs: request `i` has blocks `block_ids[block_offsets[i] :
    block_offsets[i + 1]]`, each `block_tokens` long (the last may be partial), numbered densely
    from 0. Without prefix information `block_tokens` is 0 and `block_ids` is empty.
    """

    name: str
    arrival_s: Seconds
    input_tokens: Tokens
    output_tokens: Tokens
    block_tokens: int
    block_offsets: Tokens
    block_ids: npt.NDArray[np.int32]
    session: npt.NDArray[np.int32] = None  # type: ignore[assignment]
    parent: npt.NDArray[np.int32] = None  # type: ignore[assignment]
    gap_s: Seconds = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        n = len(self.arrival_s)
        if self.session is None:
            object.__setattr__(self, "session", np.arange(n, dtype=np.int32))
            object.__setattr__(self, "parent", np.full(n, -1, np.int32))
            object.__setattr__(self, "gap_s", np.zeros(n))

    def __len__(self) -> int:
        return len(self.arrival_s)
