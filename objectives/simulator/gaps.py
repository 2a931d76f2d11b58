"""Inter-token gaps: counted in logarithmic bins, those of a whole leap at once."""

from __future__ import annotations

import math

from objectives.simulator.jit import compiled
from objectives.simulator.state import GAP_BINS, GAP_MAX_S, GAP_MIN_S, State


@compiled
def leap_seconds(first_s: float, slope_s: float, steps: int) -> float:
    """Seconds of `steps` steps of which the first takes `first_s` and each next one more."""
    return steps * first_s + slope_s * (steps * (steps - 1) / 2)


@compiled
def count_gaps(state: State, first_s: float, slope_s: float, gaps: int, weight: int) -> None:
    """Count `gaps` rising inter-token gaps in their bins, each `weight` times."""
    state.clock[0].gap_seconds += leap_seconds(first_s, slope_s, gaps) * weight
    done = 0
    while done < gaps:
        place = gap_bin(first_s + slope_s * done)
        same = gaps - done
        if slope_s > 0.0:
            upto = math.ceil((_gap_floor_s(place + 1) - first_s) / slope_s) - done
            same = min(same, max(1, int(upto)))
        state.gaps[place] += same * weight
        done += same


@compiled
def gap_bin(gap_s: float) -> int:
    """The bin that counts a gap."""
    if gap_s <= GAP_MIN_S:
        return 0
    scale = GAP_BINS / math.log(GAP_MAX_S / GAP_MIN_S)
    return min(GAP_BINS - 1, int(math.log(gap_s / GAP_MIN_S) * scale))


@compiled
def _gap_floor_s(place: int) -> float:
    """The smallest gap a bin counts."""
    return float(GAP_MIN_S * math.exp(place * math.log(GAP_MAX_S / GAP_MIN_S) / GAP_BINS))
