"""Measured seconds along a size: a message, a batch of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectives.cost.step_costs import Floats


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Measured `seconds` at rising `sizes`, and the table they are from."""

    sizes: Floats
    seconds: Floats
    origin: str

    def at(self, asked: Floats) -> Floats:
        """Seconds at sizes between and beyond the measured ones."""
        return along_sizes(self.sizes, self.seconds, asked)


def along_sizes(sizes: Floats, seconds: Floats, asked: Floats) -> Floats:
    """Interpolation in logarithms; the first time below, in proportion to size above.

    >>> along_sizes(np.array([1.0, 4.0]), np.array([2.0, 8.0]), np.array([0.5, 2.0, 8.0])).tolist()
    [2.0, 4.0, 16.0]
    """
    logs = np.interp(np.log(np.maximum(asked, 1e-9)), np.log(sizes), np.log(seconds))
    return np.asarray(np.exp(logs) * np.maximum(1.0, asked / sizes[-1]))
