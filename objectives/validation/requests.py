"""The requests a load generator sent to a measured deployment, drawn anew."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from objectives.validation.points import Setup
from objectives.validation.published_runs import client_of, published_runs
from objectives.workload import SyntheticSpec, Workload, generate
from objectives.workload.synthetic import BLOCK_TOKENS
from spaces.documents import validated
from spaces.errors import InputError

# All rounds of a closed loop are run: its first one, in which all prompts come at once, is then as
# small a part of the medians as it was of those that were measured.
LEAST_REQUESTS, OPEN_LOOP_REQUESTS = 40, 500

# Half-widths of uniform lengths around their mean, by what a row says of its workload: InferenceX
# draws from [0.8, 1] of the nominal length, SGLang's own benchmark from about [0, 1].
SPREADS = (("InferenceX", 1 / 9), ("[~0,1]x", 1.0), ("+-15%", 0.15))
# What the workload of a row names where its lengths are those of recorded conversations.
RECORDED = ("sharegpt", "dataset", "mlperf")

REPLAY = "a replay of sessions, whose turns and shared prefixes are not stated"


def requests_of(setup: Setup) -> Workload:
    """Requests with the setup's mean lengths, spread as its workload says.

    A stated prefix hit becomes a beginning that all prompts share. Raises `InputError` for replays
    of sessions.
    """
    if "agentic" in setup.workload or "multi-turn" in setup.workload:
        raise InputError(REPLAY)
    shared = int(setup.prefix_hit * setup.input_tokens) // BLOCK_TOKENS * BLOCK_TOKENS
    draw = _drawn if setup.requests is None else _matched
    return draw(
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
    return max(LEAST_REQUESTS, published_runs().requests_per_user * users)


@lru_cache(maxsize=256)
def _matched(
    requests: int, input_tokens: float, output_tokens: float, workload: str, shared: int
) -> Workload:
    """All requests of a run: their own means are those of the row, few as they may be.

    Drawn again from the same numbers, aiming past the means by what the first draw missed.
    """
    first = _drawn(requests, input_tokens, output_tokens, workload, shared)
    inputs, outputs = first.input_tokens.mean() - shared, first.output_tokens.mean()
    aimed = shared + (input_tokens - shared) ** 2 / inputs
    return _drawn(requests, aimed, output_tokens**2 / outputs, workload, shared)


@lru_cache(maxsize=256)
def _drawn(
    requests: int, input_tokens: float, output_tokens: float, workload: str, shared: int
) -> Workload:
    recorded = published_runs().recorded_lengths
    spec = {
        "requests": requests,
        "input_tokens": _lengths(input_tokens, workload, recorded.input, shared),
        "output_tokens": _lengths(output_tokens, workload, recorded.output),
        "shared_prefix_tokens": shared,
        "arrivals": _arrivals(workload),
    }
    return generate(validated(SyntheticSpec, spec, "points"), seed=1)


def _lengths(
    mean: float, workload: str, recorded: Sequence[float], shared: int = 0
) -> dict[str, object]:
    """Lengths around their mean, each longer than what all share.

    Recorded ones are spread as `recorded` says beyond that, in multiples of the mean.
    """
    if any(word in workload.lower() for word in RECORDED):
        unit = (mean - shared) / (sum(recorded) / len(recorded))
        longer = [shared + max(1, round(unit * part)) for part in recorded]
        return {"empirical": {"values": longer}}
    spread = next((width for word, width in SPREADS if word in workload), 0.0)
    low, high = (max(shared + 1, round(mean * (1 + side * spread))) for side in (-1, 1))
    return {"uniform": [low, high]}


def _arrivals(workload: str) -> object:
    """By the clock where the client sends so; gamma-distributed gaps whose shape is a stated
    burstiness (vLLM's client); else Poisson.
    """
    client = client_of(workload)
    if client is not None and client.clocked:
        return "constant"
    stated = re.search(r"burstiness ([0-9.]+)", workload)
    shape = float(stated.group(1)) if stated else 1.0
    return "poisson" if shape == 1.0 else {"gamma": {"cv": shape**-0.5}}
