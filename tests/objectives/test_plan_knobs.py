"""Whatever a plan can say reaches the simulator, or is refused: a key without its case here fails.

That what reaches the simulator changes what happens is shown in `simulator/test_knobs.py`.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from objectives.deployment import scenario_of
from objectives.workload.offering import offered
from spaces import catalog
from spaces.errors import InputError
from spaces.feasibility import infeasible
from spaces.plan import DeploymentPlan, KvTiers, Load, Pool, Precision
from spaces.site import Site
from spaces.speculation import Speculation
from tests.objectives.workload.forests import forest
from tests.spaces.worlds import unlike_site

MODEL, CHIP = "glm-4.5-air", "h200"
Changes = dict[str, Any]

ONE: Changes = {"topology": "aggregated", "pools": ({"role": "aggregated"},)}
TWO: Changes = {
    "topology": "prefill-decode",
    "pools": ({"role": "prefill"}, {"role": "decode"}),
}
THREE: Changes = {
    "topology": "prefill-midfill-decode",
    "pools": ({"role": "prefill"}, {"role": "midfill"}, {"role": "decode"}),
    "kv": {"shared_gb": 1000, "retention": "write-through"},
}
SPLIT: Changes = {
    "topology": "prefill-decode+afd",
    "pools": ({"role": "prefill"}, {"role": "decode-attention"}, {"role": "decode-experts"}),
}
# Kernels that were slower before a release.
SLOW_ONCE: Changes = {
    "engine": "sglang",
    "pools": ({"role": "aggregated", "chip": "mi300x"},),
}
DRAFTS: Changes = {"speculation": {"depth": 1, "acceptance": [0.8, 0.6]}}
STORE: Changes = {"shared_gb": 1000}


def outcome(changes: Changes) -> bytes | str:
    """What the simulator is told of a plan and its load, or why the plan is refused."""
    site = _site()
    try:
        plan = DeploymentPlan.model_validate({"model": MODEL, **_with_chips(ONE | changes)})
        site = replace(site, model=catalog.model(plan.model))
        refusal = infeasible(plan, site)
        if refusal is not None:
            return refusal.reason
        return pickle.dumps((scenario_of(plan, site), offered(forest(), plan.load)[1]))
    except InputError as error:
        return str(error)


def _site() -> Site:
    site = unlike_site({CHIP: 64, "b200": 64, "mi300x": 64}, "vllm", "sglang", model=MODEL)
    return replace(site, hosts={"xeon6-6980p": catalog.host("xeon6-6980p")})


def _with_chips(changes: Changes) -> Changes:
    return changes | {"pools": [{"chip": CHIP, "tp": 4} | pool for pool in changes["pools"]]}


# By key: what the plan has beside it, and two values of it.
PLAN: dict[str, tuple[Changes, Any, Any]] = {
    "model": ({}, MODEL, "glm-4.5"),
    "engine": ({}, "vllm", "sglang"),
    "engine_version": (SLOW_ONCE, "0.5.5", "0.5.23"),
    "precision": ({}, {"kv": "bf16"}, {"kv": "fp8"}),
    "kv": ({}, {}, {"host_gb_per_chip": 100}),
    "load": ({}, {"concurrency": 1}, {"concurrency": 2}),
    "max_model_len": ({}, None, 4096),
    "hbm_fraction": ({}, 0.9, 0.8),
    "block_size": ({}, 16, 32),
    "prefix_caching": ({}, True, False),
    "router": ({}, "least-loaded", "round-robin"),
    "midfill_threshold_tokens": (THREE, 1000, 2000),
    "speculation": ({}, None, DRAFTS["speculation"]),
    "micro_batches": (SPLIT, 1, 3),
    "max_queued_requests": ({}, None, 4),
    "when_full": ({"max_queued_requests": 4}, "reject", "try-others"),
    "hosts": ({}, None, {"kind": "xeon6-6980p", "count": 1}),
}
POOL: dict[str, tuple[Changes, Any, Any]] = {
    "chip": ({}, CHIP, "b200"),
    "replicas": ({}, 1, 2),
    "tp": ({}, 4, 8),
    "pp": ({}, 1, 2),
    "ep": ({}, 1, 4),
    "dp": ({"ep": 8}, 1, 2),
    "max_num_seqs": ({}, 256, 128),
    "max_num_batched_tokens": ({}, 8192, 4096),
    "engine": ({}, "vllm", "sglang"),
    "engine_version": ({"engine": "sglang", "chip": "mi300x"}, "0.5.5", "0.5.23"),
    "kv_dtype": ({}, "bf16", "fp8"),
    "hbm_fraction": ({}, 0.9, 0.8),
}
KV: dict[str, tuple[Changes, Any, Any]] = {
    "retention": ({}, "lru", "write-through"),
    "idle_limit_s": ({"retention": "drop-after-idle"}, 10.0, 20.0),
    "host_gb_per_chip": ({}, 0.0, 100.0),
    "swap_gb_per_chip": ({}, 0.0, 10.0),
    "ssd_gb_per_chip": ({}, 0.0, 1000.0),
    "shared_gb": ({}, 0.0, 1000.0),
    "shared_gb_per_s": (STORE, 10.0, 20.0),
    "fetch": ({}, "always", "when-faster"),
    "layerwise": ({}, False, True),
    "prefetch": ({}, False, True),
    "handoff": ({}, "after-prefill", "by-layer"),
}
LOAD: dict[str, tuple[Any, Any]] = {
    "concurrency": (1, 2),
    "request_rate": (1.0, 2.0),
    "session_rate": (1.0, 2.0),
    "time_scale": (1.0, 2.0),
}
PRECISION: dict[str, tuple[Any, Any]] = {"weights": ("native", "fp8"), "kv": ("bf16", "fp8")}
SPECULATION: dict[str, tuple[Any, Any]] = {"depth": (1, 2), "acceptance": ([0.8, 0.6], [0.7, 0.6])}


def assert_differ(*plans: Changes) -> None:
    """Plans are not told alike, and at most one of them is refused."""
    outcomes = [outcome(plan) for plan in plans]
    assert len(set(outcomes)) == len(plans)
    assert sum(isinstance(told, str) for told in outcomes) <= 1, outcomes


@pytest.mark.parametrize("key", PLAN)
def test_every_key_of_a_plan_counts(key: str) -> None:
    beside, *values = PLAN[key]
    assert_differ(*(beside | {key: value} for value in values))


@pytest.mark.parametrize("key", POOL)
def test_every_key_of_a_pool_counts(key: str) -> None:
    beside, *values = POOL[key]
    pools = [{"role": "aggregated"} | beside | {key: value} for value in values]
    assert_differ(*({"pools": (pool,)} for pool in pools))


@pytest.mark.parametrize("key", KV)
def test_every_key_of_the_tiers_counts(key: str) -> None:
    beside, *values = KV[key]
    pools = TWO if key == "handoff" else ONE
    assert_differ(*(pools | {"kv": beside | {key: value}} for value in values))


@pytest.mark.parametrize("key", LOAD)
def test_every_kind_of_load_counts(key: str) -> None:
    assert_differ(*({"load": {key: value}} for value in LOAD[key]))


@pytest.mark.parametrize("key", PRECISION)
def test_every_format_counts(key: str) -> None:
    assert_differ(*({"precision": {key: value}} for value in PRECISION[key]))


@pytest.mark.parametrize("key", SPECULATION)
def test_every_key_of_speculation_counts(key: str) -> None:
    drafts = DRAFTS["speculation"]
    assert_differ(*({"speculation": drafts | {key: value}} for value in SPECULATION[key]))


def test_topologies_differ() -> None:
    assert_differ(ONE, TWO, THREE, SPLIT)


def test_no_key_is_forgotten() -> None:
    """Roles and pools make the topologies."""
    assert set(PLAN) == set(DeploymentPlan.model_fields) - {"topology", "pools"}
    assert set(POOL) == set(Pool.model_fields) - {"role"}
    assert set(KV) == set(KvTiers.model_fields)
    assert set(LOAD) == set(Load.model_fields)
    assert set(PRECISION) == set(Precision.model_fields)
    assert set(SPECULATION) == set(Speculation.model_fields)
