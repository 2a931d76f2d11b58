"""Feeds coefficients and workloads of another simulator (simdistserve) to ours.

Its prefill worker takes every waiting prompt, its decode worker every request at hand; a step
takes a constant, a share of each token and of each request, and of the squares of prompts. KV
moves in no time and without limit, so that its two pools are two runs of ours, the second fed
with the ends of the first. There a request joins with its whole context as a chunk that costs
what its first decode step costs.
"""

from __future__ import annotations

import gzip
import heapq
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from objectives.cost.step_costs import COEFFICIENTS, StepCosts
from objectives.simulator import PoolSetup, Scenario, SimulationResult, simulate
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload
from tests.objectives.simulator.worlds import workload_of

SEATS = 1000
TOKENS = 10_000_000
OVERHEAD_S, OVERHEAD_S_PER_TOKEN = 2e-3, 1e-7  # of the first stage, whatever the model


@dataclass(frozen=True)
class Case:
    """A workload, and model and parallelism of the two pools; decode in `stages`.

    Requests arrive as those of `arrivals` do, whose times are multiplied by `scale`.
    """

    workload: str
    model: str
    prefill_tp: int
    decode_tp: int
    stages: int = 1
    arrivals: str = ""
    scale: float = 1.0


@dataclass(frozen=True)
class Served:
    """Seconds from arrival to the end of prefill, and from there to the last token [n]."""

    first_token_s: np.ndarray
    decoding_s: np.ndarray
    mean_batch: float


def served(data: Path, case: Case) -> Served:
    """Our run of a case."""
    folder = data / "peer" / "simdistserve"
    table = json.loads((folder / "coefficients_distserve.json").read_text())[case.model]
    rows = requests(folder, case.workload)
    arrivals = arrivals_s(data, case)
    prompts, outputs = rows["prompt_len"].to_numpy(), rows["output_len"].to_numpy()
    first = _run(
        _prefill(table[str(case.prefill_tp)]["prefill"]),
        workload_of(arrivals, prompts, np.ones_like(outputs)),
    )
    ends = first.requests.first_token_s
    order = np.argsort(ends, kind="stable")
    start_s = ends[order[0]]
    decoded = _run(
        _decode(table[str(case.decode_tp)]["decoding_smallbs"], case.stages),
        workload_of(ends[order] - start_s, prompts[order], outputs[order]),
    )
    finish_s = np.empty_like(ends)
    finish_s[order] = decoded.requests.finish_s + start_s
    return Served(ends - arrivals, finish_s - ends, decoded.pools[0].mean_batch)


def alone_s(data: Path, case: Case) -> np.ndarray:
    """Seconds that each prompt takes where nothing else is there [n]."""
    folder = data / "peer" / "simdistserve"
    table = json.loads((folder / "coefficients_distserve.json").read_text())[case.model]
    prompts = requests(folder, case.workload)["prompt_len"].to_numpy()
    apart_s = 1e3 * np.arange(len(prompts))
    workload = workload_of(apart_s, prompts, np.ones_like(prompts))
    records = _run(_prefill(table[str(case.prefill_tp)]["prefill"]), workload).requests
    return records.ttft_s


def answers(data: Path, case: Case) -> pd.DataFrame:
    """What the other simulator answered, in milliseconds."""
    return pd.read_csv(data / "peer" / "simdistserve" / f"{case.workload}_latency_ms.csv.gz")


def arrivals_s(data: Path, case: Case) -> np.ndarray:
    """When the requests of a case arrived."""
    folder = data / "peer" / "simdistserve"
    own = requests(folder, case.workload)
    others = requests(folder, case.arrivals or case.workload)
    times_s = others["start_time"].to_numpy()[: len(own)] * case.scale
    return np.asarray(times_s)


def merged_decoding_s(data: Path, case: Case, starts_s: np.ndarray) -> np.ndarray:
    """Seconds of decoding where each stage takes all that waits for it, batches merging [n].

    That is how the other simulator runs a pipeline; here batches stay what they are between the
    stages, as in engines.
    """
    folder = data / "peer" / "simdistserve"
    table = json.loads((folder / "coefficients_distserve.json").read_text())[case.model]
    step, token, request = table[str(case.decode_tp)]["decoding_smallbs"]
    rows = requests(folder, case.workload)
    context, left = rows["prompt_len"].to_numpy().copy(), rows["output_len"].to_numpy().copy()
    ends_s = np.zeros(len(rows))
    waiting: list[list[int]] = [[] for _ in range(case.stages)]
    serving: list[list[int]] = [[] for _ in range(case.stages)]
    events = [(start_s, -1, place) for place, start_s in enumerate(starts_s)]
    heapq.heapify(events)
    while events:
        now_s, stage, place = heapq.heappop(events)
        if stage < 0:
            waiting[0].append(place)
        elif stage < case.stages - 1:
            waiting[stage + 1] += serving[stage]
        else:
            context[serving[stage]] += 1
            left[serving[stage]] -= 1
            ends_s[serving[stage]] = now_s
            waiting[0] += [place for place in serving[stage] if left[place] > 0]
        if stage >= 0:
            serving[stage] = []
        for free in range(case.stages):
            if waiting[free] and not serving[free]:
                serving[free], waiting[free] = waiting[free], []
                seen, count = context[serving[free]].sum(), len(serving[free])
                seconds = (step + token * (seen + count) + request * count) / 1e3 / case.stages
                if free == 0:
                    seconds += OVERHEAD_S + OVERHEAD_S_PER_TOKEN * seen
                heapq.heappush(events, (now_s + seconds, free, -1))
    return np.asarray(ends_s - starts_s)


def requests(folder: Path, workload: str) -> pd.DataFrame:
    """The requests of a workload."""
    with gzip.open(folder / f"{workload}.json.gz", "rt") as file:
        return pd.DataFrame(json.load(file))


def _run(costs: StepCosts, workload: Workload) -> SimulationResult:
    pool = PoolSetup(
        role="aggregated",
        replicas=1,
        ranks=1,
        seats=SEATS,
        step_tokens=TOKENS,
        alternating=False,
        kv_blocks=TOKENS,
        request_blocks=0,
        costs=costs,
        flight_requests=SEATS,
    )
    load = OfferedLoad(workload.arrival_s, 0)
    return simulate(Scenario((pool,), block_tokens=1), workload, load)


def _prefill(coefficients: list[float]) -> StepCosts:
    """A step takes a + b (sum of prompts) + c (sum of their squares) ms, and one more."""
    step, token, square = (ms / 1e3 for ms in coefficients)
    return _costs(
        host_s=OVERHEAD_S,
        eager_s=[step + 1e-3],
        chunk_token_s=[token - square + OVERHEAD_S_PER_TOKEN],
        pair_s=[2 * square],  # n (n + 1) / 2 pairs
    )


def _decode(coefficients: list[float], stages: int) -> StepCosts:
    """A step takes a + b (sum of contexts with the new token) + c (requests) ms."""
    step, token, request = (ms / 1e3 / stages for ms in coefficients)
    first = np.eye(1, stages)[0]
    per_token = token + OVERHEAD_S_PER_TOKEN * first
    joined = np.full(stages, request + token)
    return _costs(
        host_s=OVERHEAD_S,
        token_s=np.full((stages, 2), step),
        prefill_base_s=joined,
        chunk_token_s=per_token,
        decode_request_s=joined,
        decode_token_s=per_token,
    )


def _costs(host_s: float, **given: object) -> StepCosts:
    stages = max(np.atleast_1d(np.asarray(value)).shape[0] for value in given.values())
    nothing = np.zeros(stages)
    flat = {name: nothing for name in COEFFICIENTS}
    tables = {name: np.zeros((stages, 2)) for name in ("token_s", "expert_s")}
    told = {name: np.asarray(value, float) for name, value in given.items()}
    return StepCosts(
        grid=np.array([0, 1]),
        graph_tokens=np.ones(SEATS + 1, np.int64),
        window_tokens=0,
        host_s=host_s,
        request_s=0.0,
        **(flat | tables | told),
    )
