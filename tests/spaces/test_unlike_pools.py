"""Pools of one plan with different engines, KV formats and memory shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from spaces.draw import RandomDraw
from spaces.enumeration import enumerated
from spaces.errors import InputError, NothingFeasible
from spaces.feasibility import engines_take_over, infeasible
from spaces.memory import hbm_ledger
from spaces.options import SpaceOptions
from spaces.plan import DeploymentPlan, Pool, Precision, load_plan
from spaces.space import SearchSpace
from tests.spaces.worlds import space_of, unlike_site

CHIPS = {"h200": 8, "sn50": 16}
SITE = unlike_site(CHIPS, "vllm", "sglang", "trtllm", "sambanova", "cerebras")
SPLIT = """
model: minimax-m2.5
topology: prefill-decode
pools:
- {role: prefill, chip: h200, tp: 4}
- {role: decode, chip: sn50, tp: 8}
"""


def read(tmp_path: Path, text: str) -> DeploymentPlan:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    return load_plan(path)


def gpu_and_rdu(
    prefill: str = "vllm", decode: str = "sambanova", kv: str = "bf16"
) -> DeploymentPlan:
    return DeploymentPlan.model_validate(
        {
            "model": "minimax-m2.5",
            "topology": "prefill-decode",
            "pools": [
                {"role": "prefill", "chip": "h200", "tp": 4, "engine": prefill},
                {"role": "decode", "chip": "sn50", "tp": 8, "ep": 8}
                | {"engine": decode, "kv_dtype": kv},
            ],
        }
    )


SAME_DEPLOYMENT = [
    "engine: vllm\n" + SPLIT.replace("tp: 8", "tp: 8, engine: sambanova"),
    "engine: sambanova\n" + SPLIT.replace("tp: 4", "tp: 4, engine: vllm"),
    "engine: trtllm\n"
    + SPLIT.replace("tp: 4", "tp: 4, engine: vllm").replace("tp: 8", "tp: 8, engine: sambanova"),
]


@pytest.mark.parametrize("text", SAME_DEPLOYMENT)
def test_the_same_deployment_is_the_same_plan_however_its_engines_are_told(
    text: str, tmp_path: Path
) -> None:
    plan = read(tmp_path, text)
    assert plan == read(tmp_path, SAME_DEPLOYMENT[0])
    assert plan.engines == ("vllm", "sambanova")
    assert read(tmp_path, plan.to_yaml()) == plan


def test_what_pools_leave_out_is_the_plans_and_what_they_set_is_theirs() -> None:
    plan = DeploymentPlan(
        model="m",
        engine="vllm",
        engine_version="0.31",
        topology="prefill-decode",
        hbm_fraction=0.8,
        precision=Precision(kv="fp8"),
        pools=(
            Pool(role="prefill", chip="h200"),
            Pool(role="decode", chip="h200", engine="sglang", kv_dtype="bf16", hbm_fraction=0.7),
        ),
    )
    first, second = (plan.settings(pool) for pool in plan.pools)
    assert (first.engine, first.engine_version, first.precision.kv) == ("vllm", "0.31", "fp8")
    assert (second.engine, second.engine_version, second.precision.kv) == ("sglang", "", "bf16")
    assert (first.hbm_fraction, second.hbm_fraction) == (0.8, 0.7)


def test_a_version_without_an_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="goes with its `engine`"):
        Pool(role="prefill", chip="h200", engine_version="1.0")


def test_a_narrower_format_leaves_room_for_twice_the_tokens_in_its_own_pool_alone() -> None:
    wide, narrow = gpu_and_rdu(), gpu_and_rdu(kv="fp8")
    for role, ratio in (("prefill", 1.0), ("decode", 2.0)):
        sizes = []
        for plan in (wide, narrow):
            pool = plan.pool(role)  # type: ignore[arg-type]
            sizes.append(hbm_ledger(SITE.model, SITE.chips[pool.chip], pool, plan))
        assert sizes[0].kv_bytes_per_token / sizes[1].kv_bytes_per_token == ratio


def test_rdus_decode_on_the_kv_of_gpus() -> None:
    assert infeasible(gpu_and_rdu(), SITE) is None
    assert infeasible(gpu_and_rdu(kv="fp8"), SITE) is None


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (gpu_and_rdu("sglang"), "not known to take over KV from SGLang"),
        (gpu_and_rdu("sambanova", "vllm"), "vLLM is not known to take over KV from SambaNova"),
        (gpu_and_rdu("vllm", "vllm", kv="fp8"), "in its own format only, not bf16 for fp8"),
        (gpu_and_rdu("vllm", "sglang"), "SGLang is not known to take over KV from vLLM"),
    ],
)
def test_engines_that_cannot_hand_kv_to_one_another_are_refused_with_the_reason(
    plan: DeploymentPlan, reason: str
) -> None:
    refusal = engines_take_over(plan, SITE)
    assert refusal is not None and reason in refusal.reason


def test_pools_that_share_what_is_cached_have_one_engine() -> None:
    plan = DeploymentPlan(
        model="minimax-m2.5",
        topology="prefill-midfill-decode",
        pools=(
            Pool(role="prefill", chip="h200"),
            Pool(role="midfill", chip="h200", engine="sglang"),
            Pool(role="decode", chip="h200"),
        ),
    )
    refusal = engines_take_over(plan, SITE)
    assert refusal is not None and "share KV" in refusal.reason


def unlike_space(**engines: tuple[str, ...]) -> SearchSpace:
    return space_of(
        SITE,
        SpaceOptions(
            topology=("prefill-decode",),
            tensor_parallel=(4, 8),
            pipeline_parallel=(1,),
            data_parallel=(1,),
            max_num_seqs=(16,),
            max_num_batched_tokens=(4096, 8192),
        ),
        engines=engines,  # type: ignore[arg-type]
        kv={"prefill": ("bf16",), "decode": ("bf16", "fp8")},
    )


def test_every_plan_of_a_space_of_unlike_engines_is_legal_and_found_again() -> None:
    space = unlike_space(prefill=("vllm", "sglang"), decode=("vllm", "sambanova"))
    branches = {(branch.engines, branch.kv_dtypes, branch.chips) for branch in space.legal}
    assert branches == {
        (("vllm", "vllm"), ("bf16", "bf16"), ("h200", "h200")),
        (("vllm", "sambanova"), ("bf16", "bf16"), ("h200", "sn50")),
        (("vllm", "sambanova"), ("bf16", "fp8"), ("h200", "sn50")),
    }
    tables = enumerated(space)
    assert sum(map(len, tables)) == space.size()
    for table in tables:
        for number in range(0, len(table), 7):
            plan = table.plan(number)
            assert infeasible(plan, SITE) is None
            assert table.number_of(plan) == number
            assert DeploymentPlan.model_validate(plan.model_dump()) == plan  # in its one form
    for seed in range(20):
        assert infeasible(space.plan(RandomDraw(seed)), SITE) is None


def test_a_space_of_engines_that_share_nothing_says_so() -> None:
    with pytest.raises(NothingFeasible, match="Cerebras' software is not known to take over KV"):
        _ = unlike_space(prefill=("vllm",), decode=("cerebras",)).legal


def test_each_engine_has_its_own_memory_share_and_block_size_where_the_job_sets_none() -> None:
    space = unlike_space(prefill=("vllm",), decode=("sambanova",))
    own = SearchSpace(**{**vars(space), "engine_sets": ("hbm_fraction", "block_size")})
    plan = own.plan(RandomDraw(1))
    shares = [plan.settings(pool).hbm_fraction for pool in plan.pools]
    assert shares == [SITE.engines[name].hbm_fraction for name in plan.engines]
    assert plan.block_size == SITE.engines["vllm"].block_size


def test_an_unknown_engine_of_a_pool_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pools\.1\.engine"):
        read(tmp_path, SPLIT.replace("tp: 8", "tp: 8, engine: sambanva"))
