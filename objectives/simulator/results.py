"""What a finished simulation's state says, as records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from objectives.simulator.records import (
    Counts,
    HostRecord,
    Places,
    PoolRecord,
    RequestRecords,
    SimulationResult,
    TierBytes,
)
from objectives.simulator.scenario import PoolSetup, Scenario
from objectives.simulator.state import (
    EXPECTED,
    FINISHED,
    GAP_BINS,
    GAP_MAX_S,
    GAP_MIN_S,
    LEVELS,
    NONE,
    TOOL,
    TURNED_AWAY,
    State,
)
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload


def result(
    scenario: Scenario, workload: Workload, state: State, load: OfferedLoad
) -> SimulationResult:
    """What happened, from a state in which nothing is left to happen."""
    finish_s = state.requests["finished_s"]
    makespan_s = float(finish_s.max(initial=0.0))
    counts = state.gaps
    used = np.flatnonzero(counts)
    gaps = int(counts.sum())
    return SimulationResult(
        requests=_records(state, workload, load),
        pools=tuple(
            _pool_record(setup, state, pool_id, makespan_s, scenario.block_tokens)
            for pool_id, setup in enumerate(scenario.pools)
        ),
        makespan_s=makespan_s,
        gap_middle_s=GAP_MIN_S * (GAP_MAX_S / GAP_MIN_S) ** ((used + 0.5) / GAP_BINS),
        gap_counts=counts[used],
        gap_mean_s=float(state.clock["gap_seconds"][0]) / gaps if gaps else float("nan"),
        handed_off_bytes=float(state.clock["handed_off_bytes"][0]),
        tier_bytes=_tier_bytes(state),
        closed_loop=bool(state.clock["closed_loop"][0]),
        hosts=_host_record(scenario, state),
    )


def _host_record(scenario: Scenario, state: State) -> HostRecord | None:
    if scenario.hosts is None:
        return None
    stations = state.stations
    whole_s = np.maximum(1, stations["cores"]) * float(state.clock["now_s"][0])
    front_end, tools = (stations["worked_s"] / np.maximum(whole_s, 1e-12)).tolist()
    hosts = scenario.hosts
    return HostRecord(hosts.front_end_cores, front_end, hosts.tool_cores, tools)


def _records(state: State, workload: Workload, load: OfferedLoad) -> RequestRecords:
    requests = state.requests
    sent = requests["phase"] != EXPECTED
    finished = requests["phase"] == FINISHED
    received = requests["decode_admitted_s"] >= 0
    entry_rank = np.where(received, requests["source_rank"], requests["rank"])
    on_hosts = sent & (requests["tool_s"] > 0) & (state.stations["cores"][TOOL] > 0)

    def told(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.where(finished, values, np.nan)

    first_token_s = requests["first_token_s"]
    # A place set aside before the prompt's end is not waited for.
    decode_admitted_s = np.maximum(requests["decode_admitted_s"], requests["prefilled_s"])
    return RequestRecords(
        finished=finished,
        sent=sent,
        turned_away=requests["phase"] == TURNED_AWAY,
        measured=sent & load.measured & (requests["arrival_s"] >= load.warm_up_s),
        arrival_s=requests["arrival_s"].copy(),
        first_token_s=told(first_token_s),
        finish_s=told(requests["finished_s"]),
        input_tokens=np.asarray(workload.input_tokens, np.int64),
        output_tokens=np.asarray(workload.output_tokens, np.int64),
        frontend_s=told(requests["entered_s"] - requests["arrival_s"]),
        queue_s=told(requests["admitted_s"] - requests["entered_s"]),
        fetch_s=told(requests["fetched_s"] - requests["admitted_s"]),
        prefill_s=told(requests["prefilled_s"] - requests["fetched_s"]),
        decode_wait_s=told(decode_admitted_s - requests["prefilled_s"]),
        transfer_s=told(first_token_s - decode_admitted_s),
        hbm_hit_tokens=requests["hbm_hit"].copy(),
        host_hit_tokens=requests["host_hit"].copy(),
        ssd_hit_tokens=requests["ssd_hit"].copy(),
        store_hit_tokens=requests["store_hit"].copy(),
        preemptions=requests["preemptions"].copy(),
        decode_steps=requests["decode_steps"].copy(),
        entry_pool=np.where(sent, _pools_of(state, entry_rank), np.int8(NONE)),
        decode_pool=np.where(received, _pools_of(state, requests["rank"]), np.int8(NONE)),
        tool_wait_s=np.where(on_hosts, requests["tool_wait_s"], np.nan),
    )


def _pools_of(state: State, ranks: Counts) -> Places:
    found: Places = state.ranks["pool"].astype(np.int8)[ranks]
    return found


def _pool_record(
    setup: PoolSetup, state: State, pool_id: int, makespan_s: float, block_tokens: int
) -> PoolRecord:
    replicas = state.replicas[state.replicas["pool"] == pool_id]
    ranks = state.ranks[state.ranks["pool"] == pool_id]
    steps = int(replicas["steps"].sum())
    busy_s = float(replicas["busy_s"].sum())
    whole_s = makespan_s * setup.replicas
    return PoolRecord(
        role=setup.role,
        replicas=setup.replicas,
        utilization=busy_s / whole_s if whole_s else 0.0,
        steps=steps,
        mean_batch=float(replicas["request_steps"].sum()) / steps if steps else 0.0,
        prefill_tokens=int(replicas["prefill_tokens"].sum()),
        decode_tokens=int(replicas["decode_tokens"].sum()),
        decode_request_steps=int(replicas["decode_request_steps"].sum()),
        kv_capacity_tokens=setup.kv_blocks * block_tokens,
        peak_kv_fraction=float(ranks["peak_blocks"].max()) / max(1, setup.kv_blocks),
        bubble_fraction=_bubble_fraction(setup, replicas),
        batch_steps=tuple(np.trim_zeros(state.batches[pool_id], "b").tolist()),
        kv_short_fraction=int(replicas["kv_short_steps"].sum()) / steps if steps else 0.0,
        network_bytes=_moved_bytes(state, ranks["net_link"]),
        host_bytes=_moved_bytes(state, ranks["host_link"]),
        ssd_bytes=_moved_bytes(state, ranks["ssd_link"]),
        network_utilization=_link_utilization(state, ranks["net_link"], makespan_s),
        host_link_utilization=_link_utilization(state, ranks["host_link"], makespan_s),
        copied_bytes=_moved_bytes(state, ranks["copy_link"]),
        copy_utilization=_link_utilization(state, ranks["copy_link"], makespan_s),
        ssd_utilization=_link_utilization(state, ranks["ssd_link"], makespan_s),
        experts_utilization=float(replicas["experts_work_s"].sum()) / whole_s if whole_s else 0.0,
    )


def _bubble_fraction(setup: PoolSetup, replicas: np.recarray) -> float:
    """Share of busy time that servers waited: pipeline stages, or attention for experts."""
    servers = setup.costs.stages
    busy_s = servers * float(replicas["busy_s"].sum())
    if busy_s == 0 or (servers == 1 and setup.costs.split is None):
        return 0.0
    return max(0.0, 1.0 - float(replicas["work_s"].sum()) / busy_s)


def _tier_bytes(state: State) -> TierBytes:
    store_link = state.clock["store_link"]
    written = [float(state.writers["written_bytes"][n::LEVELS].sum()) for n in range(LEVELS)]
    return TierBytes(
        host=_moved_bytes(state, state.ranks["host_link"]) - written[0],
        ssd=_moved_bytes(state, state.ranks["ssd_link"]) - written[1],
        store=_moved_bytes(state, store_link) - written[2],
        written_to_host=written[0],
        written_to_ssd=written[1],
        written_to_store=written[2],
    )


def _link_utilization(state: State, links: npt.NDArray[np.int64], makespan_s: float) -> float:
    """Mean over links of what they moved over what they could have moved in the run."""
    if makespan_s <= 0:
        return 0.0
    able = state.links["bytes_per_s"][links] * makespan_s
    return float((state.links["moved_bytes"][links] / able).mean())


def _moved_bytes(state: State, links: npt.NDArray[np.int64]) -> float:
    return float(state.links["moved_bytes"][links].sum())
