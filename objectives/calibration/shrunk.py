"""Few positive figures fitted to logarithmic errors, shrunk towards what is known of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

Floats = npt.NDArray[np.float64]


def shrunk_fit(
    log_errors: Callable[[Floats], Floats],
    centre: Floats,
    log_sd: Floats,
    *,
    noise: float,
    most: Floats | None = None,
) -> Floats:
    """Figures [p] that leave small errors and stay near `centre`.

    `log_errors` gives log(predicted / measured) [n] of figures [p]. Minimizes

        sum of 2 (sqrt(1 + (e / noise)^2) - 1) + sum of (log(x / centre) / log_sd)^2

    so that errors far beyond `noise` count linearly, and a few rows move little: one row moves
    the figure it hangs on by log_sd^2 / (log_sd^2 + noise^2) of its own error. No figure exceeds
    `most`.
    """
    start = np.log(centre)

    def misses(logs: Floats) -> Floats:
        errors = log_errors(np.exp(logs)) / noise
        soft = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([soft, (logs - start) / log_sd])

    top = np.full(len(start), np.inf) if most is None else np.log(most)
    return np.exp(np.asarray(least_squares(misses, start, bounds=(-np.inf, top)).x))
