"""What in a trace is possible but so unlikely that a unit may be wrong."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from objectives.workload.workload import NO_PARENT, Seconds, Tokens, Workload

PLAUSIBLE_REQUESTS_PER_S = 10_000
PLAUSIBLE_TOKENS_PER_S = 10_000_000
PLAUSIBLE_BURST = 1_000
IMPLAUSIBLE_S_PER_SESSION = 1_000
ENOUGH_SESSIONS = 10
ARRIVALS_ON_A_GRID = 3
GRID_JITTER = 0.01
PLAUSIBLE_OUTPUT_TOKENS_PER_S = (0.2, 5_000)
PLAUSIBLE_PAUSE_S = 7 * 86_400

# Two sessions of fewer turns may well have equal lengths by chance.
TURNS_THAT_TELL = 3


def rate_doubts(workload: Workload) -> Iterator[str]:
    """Sentences about arrivals much too fast or too slow, and about pauses of weeks."""
    arrival_s = workload.arrival_s[workload.parent == NO_PARENT]
    requests, span_s = len(arrival_s), float(arrival_s[-1])
    tokens = int(workload.input_tokens.sum() + workload.output_tokens.sum())
    if span_s == 0 and requests > PLAUSIBLE_BURST:
        yield f"all {requests} requests arrive at one moment: is the unit of the times right?"
    elif span_s > 0 and (requests - 1) / span_s > PLAUSIBLE_REQUESTS_PER_S:
        rate = (requests - 1) / span_s
        yield f"the mean rate is {rate:,.0f} requests/s: is the unit of the times right?"
    elif span_s > 0 and requests >= ENOUGH_SESSIONS and tokens / span_s > PLAUSIBLE_TOKENS_PER_S:
        yield (
            f"{tokens / span_s:,.0f} tokens/s arrive in the mean: is the unit of the times right?"
        )
    elif requests >= ENOUGH_SESSIONS and span_s / (requests - 1) > IMPLAUSIBLE_S_PER_SESSION:
        yield (
            f"{span_s / (requests - 1):,.0f} s lie between two arrivals in the mean: is the unit "
            "of the times right?"
        )
    pauses = workload.gap_s[workload.parent != NO_PARENT]
    if len(pauses) and float(np.median(pauses)) > PLAUSIBLE_PAUSE_S:
        yield (
            f"the median pause before a turn is {np.median(pauses):,.0f} s: is the unit of the "
            "pauses right?"
        )


def grid_doubts(workload: Workload) -> Iterator[str]:
    """A sentence where many arrivals share few moments, whole steps apart."""
    moments = np.unique(workload.arrival_s[workload.parent == NO_PARENT])
    arrivals = int(np.count_nonzero(workload.parent == NO_PARENT))
    if len(moments) < ENOUGH_SESSIONS or arrivals < ARRIVALS_ON_A_GRID * len(moments):
        return
    steps = np.diff(moments)
    step_s = float(np.median(steps[steps < 1.5 * steps.min()]))
    if np.allclose(steps / step_s, np.rint(steps / step_s), rtol=0, atol=GRID_JITTER):
        yield (
            f"all arrivals are recorded on a grid of {step_s:g} s: bursts within a step are "
            "artefacts of it"
        )


def speed_doubts(output_tokens: Tokens, service_s: Seconds) -> Iterator[str]:
    """A sentence where answers took a time that no server needs; unknown times are negative."""
    known = service_s > 0
    if not known.any():
        return
    speed = float(np.median(output_tokens[known] / service_s[known]))
    low, high = PLAUSIBLE_OUTPUT_TOKENS_PER_S
    if not low <= speed <= high:
        yield (
            f"answers come at {speed:,.4g} tokens/s in the median: is the unit of the times of "
            "answers right?"
        )


def copy_doubts(workload: Workload) -> Iterator[str]:
    """A sentence where sessions have the lengths of an earlier one, turn for turn."""
    order = np.argsort(workload.session, kind="stable")
    ends = np.cumsum(np.bincount(workload.session))
    lengths = np.stack([workload.input_tokens[order], workload.output_tokens[order]], axis=1)
    seen: set[bytes] = set()
    copies = 0
    for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        if end - start >= TURNS_THAT_TELL:
            told = lengths[start:end].tobytes()
            copies += told in seen
            seen.add(told)
    if copies:
        yield f"{copies} sessions are copies of earlier ones by their lengths; they were kept"
