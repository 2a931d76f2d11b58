"""The requests a load generator sent to a measured deployment, drawn anew."""

from __future__ import annotations

import re
from functools import lru_cache

from objectives.published_runs import published_runs
from objectives.validation.points import Setup
from objectives.workload import SyntheticSpec, Workload, generate
from objectives.workload.synthetic import BLOCK_TOKENS
from spaces.documents import validated
from spaces.errors import InputError

# Beyond 6,000 requests the rounds of a closed loop are cut to two and more.
LEAST_REQUESTS, MOST_REQUESTS, LEAST_ROUNDS = 40, 6000, 2
OPEN_LOOP_REQUESTS = 500

# Half-widths of uniform lengths around their mean, by what a row says of its workload: InferenceX
# draws from [0.8, 1] of the nominal length, SGLang's own benchmark from about [0, 1].
SPREADS = (("InferenceX", 1 / 9), ("[~0,1]x", 1.0), ("+-15%", 0.15))
# Lengths of recorded conversations have a standard deviation about as large as their mean.
RECORDED = ("sharegpt", "dataset", "mlperf")
RECORDED_CV = 1.0

REPLAY = "a replay of sessions, whose turns and shared prefixes are not stated"


def requests_of(setup: Setup) -> Workload:
    """Requests with the setup's mean lengths, spread as its workload says.

    A stated prefix hit becomes a beginning that all prompts share. Raises `InputError` for replays
    of sessions.
    """
    if "agentic" in setup.workload or "multi-turn" in setup.workload:
        raise InputError(REPLAY)
    shared = int(setup.prefix_hit * setup.input_tokens) // BLOCK_TOKENS * BLOCK_TOKENS
    return _drawn(
        _request_count(setup),
        setup.input_tokens,
        setup.output_tokens,
        setup.workload,
        shared,
    )


def _request_count(setup: Setup) -> int:
    users = setup.load.concurrency
    if setup.requests is not None:
        return setup.requests
    if users is None:
        return OPEN_LOOP_REQUESTS
    asked = max(LEAST_REQUESTS, published_runs().requests_per_user * users)
    return min(asked, max(MOST_REQUESTS, LEAST_ROUNDS * users))


@lru_cache(maxsize=256)
def _drawn(
    requests: int, input_tokens: float, output_tokens: float, workload: str, shared: int
) -> Workload:
    spec = {
        "requests": requests,
        "input_tokens": _lengths(input_tokens, workload, shared),
        "output_tokens": _lengths(output_tokens, workload),
        "shared_prefix_tokens": shared,
        "arrivals": _arrivals(workload),
    }
    return generate(validated(SyntheticSpec, spec, "points"), seed=1)


def _lengths(mean: float, workload: str, shared: int = 0) -> dict[str, object]:
    """Lengths around their mean, none shorter than what all share.

    Where recorded lengths would be, the rest is uniform up to twice its mean.
    """
    spread = next((width for word, width in SPREADS if word in workload), 0.0)
    if any(word in workload.lower() for word in RECORDED):
        if not shared:
            return {"lognormal": {"mean": mean, "cv": RECORDED_CV}}
        spread = 1 - shared / mean
    low, high = (max(shared + 1, round(mean * (1 + side * spread))) for side in (-1, 1))
    return {"uniform": [low, high]}


def _arrivals(workload: str) -> object:
    """Poisson, or gamma-distributed gaps whose shape is a stated burstiness (vLLM's client)."""
    stated = re.search(r"burstiness ([0-9.]+)", workload)
    shape = float(stated.group(1)) if stated else 1.0
    return "poisson" if shape == 1.0 else {"gamma": {"cv": shape**-0.5}}
