"""Plans: what a file must hold, what identifies a plan, and that YAML keeps it as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spaces.documents import parse_yaml, validated
from spaces.errors import InputError
from spaces.plan import (
    TOPOLOGY_ROLES,
    DeploymentPlan,
    Hosts,
    KvTiers,
    Load,
    Pool,
    Precision,
    Role,
    Topology,
    load_plan,
)
from spaces.speculation import Speculation

PLAN = """\
model: deepseek-r1
topology: prefill-decode
pools:
  - {role: prefill, chip: h200, replicas: 3, tp: 4, ep: 4}
  - {role: decode, chip: b200, replicas: 2, dp: 8, ep: 8, max_num_seqs: 64}
load: {concurrency: 128}
"""

counts = st.integers(1, 512)
awkward = st.sampled_from(
    ["1e3", "on", "010", "12:30", "null", "~", "- a", "{b: c}", "a: b", "#x"]
)
words = awkward | st.text(max_size=12)
loads = st.builds(Load, concurrency=counts) | st.builds(
    Load, request_rate=st.floats(1e-3, 1e6, allow_nan=False)
)


@st.composite
def _pools(draw: st.DrawFn, role: Role, paired: int) -> Pool:
    """A pool; those of a split decode have `paired` replicas, and experts no batch limits."""
    limits = (
        {}
        if role == "decode-experts"
        else {
            "dp": draw(counts),
            "max_num_seqs": draw(counts),
            "max_num_batched_tokens": draw(counts),
        }
    )
    return Pool(
        role=role,
        chip=draw(words),
        replicas=paired if role.startswith("decode-") else draw(counts),
        tp=draw(counts),
        pp=draw(counts),
        ep=draw(counts),
        **limits,
    )


@st.composite
def plans(draw: st.DrawFn) -> DeploymentPlan:
    topology: Topology = draw(st.sampled_from(sorted(TOPOLOGY_ROLES)))
    paired = draw(counts)
    pools = [
        draw(_pools(role, paired)) for role in draw(st.permutations(TOPOLOGY_ROLES[topology]))
    ]
    return DeploymentPlan(
        model=draw(words),
        engine=draw(st.sampled_from(["vllm", "sglang", "trtllm", "atom"])),
        engine_version=draw(words),
        topology=topology,
        pools=tuple(pools),
        precision=Precision(
            weights=draw(st.sampled_from(["native", "bf16", "fp8", "mxfp4", "nvfp4", "int4"])),
            kv=draw(st.sampled_from(["bf16", "fp8"])),
        ),
        kv=KvTiers(host_gb_per_chip=draw(st.floats(0, 1e4))),
        load=draw(st.none() | loads),
        max_model_len=draw(st.none() | counts),
        hbm_fraction=draw(st.floats(0.01, 1.0)),
        block_size=draw(counts),
        prefix_caching=draw(st.booleans()),
        router=draw(st.sampled_from(["round-robin", "least-loaded", "prefix-affinity"])),
    )


def read(text: str) -> DeploymentPlan:
    return validated(DeploymentPlan, parse_yaml(text, "plan.yaml"), "plan.yaml")


@given(plans())
@settings(deadline=None)
def test_a_plan_survives_the_way_through_yaml(plan: DeploymentPlan) -> None:
    again = read(plan.to_yaml())
    assert again == plan
    assert hash(again) == hash(plan)
    assert (again.plan_id, again.point_id) == (plan.plan_id, plan.point_id)


@given(plans(), loads, loads)
@settings(deadline=None)
def test_the_plan_id_ignores_the_load_and_the_point_id_does_not(
    plan: DeploymentPlan, one: Load, other: Load
) -> None:
    assert plan.at(one).plan_id == plan.at(other).plan_id == plan.plan_id
    assert (plan.at(one).point_id == plan.at(other).point_id) == (one == other)


@given(plans(), plans())
@settings(deadline=None)
def test_plans_have_the_same_point_id_exactly_when_they_are_equal(
    one: DeploymentPlan, other: DeploymentPlan
) -> None:
    assert (one.point_id == other.point_id) == (one == other)


def test_a_file_reads_as_the_plan_it_says(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    plan = load_plan(path)
    decode = plan.pool("decode")
    assert (decode.chips_per_replica, decode.chips) == (8, 16)
    assert plan.pool("prefill").chips == 12
    assert plan.chips == 28
    assert plan.chips_by_kind == {"h200": 12, "b200": 16}
    assert plan.load == Load(concurrency=128)
    assert decode.layout == "tp1-pp1-dp8-ep8"


def test_the_order_of_the_pools_in_a_file_does_not_matter() -> None:
    head, prefill, decode, load = (
        PLAN[: PLAN.index("  - ")],
        *[line + "\n" for line in PLAN.splitlines() if line.startswith("  - ")],
        PLAN.splitlines()[-1],
    )
    swapped = read(head + decode + prefill + load)
    assert swapped == read(PLAN)
    assert swapped.plan_id == read(PLAN).plan_id


def test_every_part_of_a_plan_takes_part_in_its_id() -> None:
    plan = read(PLAN)
    changed = {
        "model": "deepseek-v3",
        "engine": "sglang",
        "engine_version": "1",
        "precision": Precision(kv="fp8"),
        "kv": KvTiers(host_gb_per_chip=1),
        "max_model_len": 4096,
        "hbm_fraction": 0.8,
        "block_size": 32,
        "prefix_caching": False,
        "router": "round-robin",
        "max_queued_requests": 8,
        "when_full": "reject",
        "hosts": Hosts(kind="xeon6-6980p", count=1),
        "topology": "aggregated",
        "midfill_threshold_tokens": 99,
        "speculation": Speculation(depth=1),
        "micro_batches": 2,
        "pools": (plan.pools[0], plan.pools[1].model_copy(update={"max_num_seqs": 65})),
    }
    assert changed.keys() == DeploymentPlan.model_fields.keys() - {"load"}
    ids = {plan.model_copy(update={key: value}).plan_id for key, value in changed.items()}
    assert len(ids | {plan.plan_id}) == len(changed) + 1


def test_every_part_of_a_pool_takes_part_in_the_id() -> None:
    plan = read(PLAN)
    pool = plan.pools[0]
    words = {"chip": "x", "engine": "atom", "engine_version": "7", "kv_dtype": "bf16"}
    changed = {key: 7 for key in Pool.model_fields if key != "role"} | words
    ids = {
        plan.model_copy(
            update={"pools": (pool.model_copy(update={key: value}), plan.pools[1])}
        ).plan_id
        for key, value in changed.items()
    }
    assert len(ids | {plan.plan_id}) == len(changed) + 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("model: deepseek-r1\n", "", "plan.yaml: model: this key is required"),
        ("model: d", "modle: d", "plan.yaml: modle: unknown key; did you mean model"),
        ("prefill-decode", "prefil-decode", "topology: the topology must be a known one"),
        (
            "prefill-decode",
            "prefil-decode",
            "did you mean prefill-decode or prefill-decode+afd?",
        ),
        ("topology: prefill-decode", "topology: aggregated", "plan.yaml: pools: topology aggreg"),
        ("role: prefill", "role: decode", "plan.yaml: pools: topology prefill-decode needs one"),
        ("role: prefill", "role: prefil", "plan.yaml: pools.0.role: "),
        ("tp: 4", "tp: 0", "plan.yaml: pools.0.tp: "),
        ("tp: 4", "tp: four", "plan.yaml: pools.0.tp: "),
        ("tp: 4", "tp: on", "plan.yaml: pools.0.tp: "),
        ("tp: 4", "tpp: 4", "plan.yaml: pools.0.tpp: unknown key; did you mean"),
        ("replicas: 2", "replicas: 2.5", "plan.yaml: pools.1.replicas: "),
        ("concurrency: 128", "concurrency: -1", "plan.yaml: load.concurrency: "),
        ("concurrency: 128", "request_rate: .inf", "plan.yaml: load.request_rate: "),
        ("{concurrency: 128}", "{}", "plan.yaml: load: a load is exactly one of"),
        ("{c", "{request_rate: 2, c", "plan.yaml: load: a load is exactly one of"),
        ("load:", "engine: vlm\nload:", "plan.yaml: engine: "),
        ("load:", "hbm_fraction: 1.1\nload:", "plan.yaml: hbm_fraction: "),
        ("load:", "precision: {kv: int8}\nload:", "plan.yaml: precision.kv: "),
        ("load:", "kv: {host_gb_per_chip: -1}\nload:", "plan.yaml: kv.host_gb_per_chip: "),
    ],
)
def test_a_wrong_plan_is_told_with_the_key_at_fault(old: str, new: str, said: str) -> None:
    assert old in PLAN
    with pytest.raises(InputError) as caught:
        read(PLAN.replace(old, new, 1))
    assert said in str(caught.value)


def test_a_load_reads_as_people_write_it() -> None:
    assert str(Load(concurrency=64)) == "concurrency 64"
    assert str(Load(request_rate=2.5)) == "2.5 requests/s"
