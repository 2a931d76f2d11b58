"""The Dynamo target: a manifest the operator takes, for exactly the chips of the plan."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from results.manifests import export
from results.manifests.vllm_flags import assert_legal, flag_table
from spaces.chip import ChipSpec
from spaces.errors import InputError
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, KvTiers, Pool, Precision

MakeChip = Callable[..., ChipSpec]
Case = tuple[DeploymentPlan, ModelSpec, dict[str, ChipSpec]]
Component = dict[str, Any]

GOLDEN = Path(__file__).parent / "golden" / "dynamo.txt"

# The parts of the v1beta1 API that manifests use, restated strictly from its Go types
# (deploy/operator/api/v1beta1 of ai-dynamo/dynamo): names, enumerations, bounds.
_NAME = {"type": "string", "maxLength": 63, "pattern": "^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$"}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_QUANTITY = {"type": "string", "pattern": "^[1-9][0-9]*(Gi)?$"}
_ENVIRONMENT = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "valueFrom"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string"},
            "valueFrom": {"const": {"fieldRef": {"fieldPath": "status.podIP"}}},
        },
    },
}
_CONTAINER = {
    "type": "object",
    "required": ["name", "image", "command", "args"],
    "additionalProperties": False,
    "properties": {
        "name": {"const": "main"},
        # The operator reads the version of the runtime from the tag.
        "image": {"type": "string", "pattern": "^nvcr.io/.*:[0-9]+[.][0-9]+[.][0-9]+$"},
        "command": _TEXTS,
        "args": _TEXTS,
        "env": _ENVIRONMENT,
        "envFrom": {"type": "array", "items": {"type": "object", "required": ["secretRef"]}},
        "resources": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "limits": {"type": "object", "additionalProperties": _QUANTITY},
                "requests": {"type": "object", "additionalProperties": _QUANTITY},
            },
        },
    },
}
_COMPONENT = {
    "type": "object",
    "required": ["name", "type", "replicas", "podTemplate"],
    "additionalProperties": False,
    "properties": {
        "name": _NAME,
        "type": {"enum": ["frontend", "worker", "prefill", "decode", "planner", "epp"]},
        "replicas": {"type": "integer", "minimum": 0},
        "multinode": {
            "type": "object",
            "required": ["nodeCount"],
            "additionalProperties": False,
            "properties": {"nodeCount": {"type": "integer", "minimum": 2}},
        },
        "sharedMemorySize": _QUANTITY,
        "podTemplate": {
            "type": "object",
            "required": ["spec"],
            "additionalProperties": False,
            "properties": {
                "spec": {
                    "type": "object",
                    "required": ["containers"],
                    "additionalProperties": False,
                    "properties": {
                        "nodeSelector": {"type": "object"},
                        "containers": {"type": "array", "items": _CONTAINER, "maxItems": 1},
                    },
                }
            },
        },
    },
}
SCHEMA = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "nvidia.com/v1beta1"},
        "kind": {"const": "DynamoGraphDeployment"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "additionalProperties": False,
            "properties": {
                "name": {
                    "type": "string",
                    "maxLength": 40,
                    "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
                }
            },
        },
        "spec": {
            "type": "object",
            "required": ["components", "backendFramework"],
            "additionalProperties": False,
            "properties": {
                "backendFramework": {"enum": ["vllm", "sglang", "trtllm"]},
                "components": {"type": "array", "items": _COMPONENT, "maxItems": 25},
            },
        },
    },
}


def manifest(plan: DeploymentPlan, model: ModelSpec, chips: dict[str, ChipSpec]) -> Any:
    text = export(plan, model, chips, "dynamo")["dynamo.yaml"]
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def workers(document: Any) -> list[Component]:
    return [one for one in document["spec"]["components"] if one["type"] != "frontend"]


def main_container(component: Component) -> dict[str, Any]:
    (container,) = component["podTemplate"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def gpus(component: Component) -> int:
    limit = main_container(component)["resources"]["limits"]["nvidia.com/gpu"]
    assert isinstance(limit, str)
    return int(limit)


def nodes(component: Component) -> int:
    return int(component.get("multinode", {}).get("nodeCount", 1))


def count(arguments: list[str], flag: str) -> int:
    return int(arguments[arguments.index(flag) + 1]) if flag in arguments else 1


def draw_case(data: st.DataObject, cases: st.SearchStrategy[Case], make_chip: MakeChip) -> Case:
    """A legal case on NVIDIA chips, but for dense ranks spread over nodes, which are refused."""
    plan, model, drawn = data.draw(cases)
    chips = {name: make_chip(name, chip.node_size) for name, chip in drawn.items()}
    for pool in plan.pools:
        spread = pool.chips_per_replica > chips[pool.chip].node_size >= pool.tp * pool.pp
        assume(model.moe is not None or not spread)
    return plan, model, chips


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_gpus_of_the_manifest_are_the_plans_chips(
    data: st.DataObject, legal_cases: st.SearchStrategy[Case], make_chip: MakeChip
) -> None:
    plan, model, chips = draw_case(data, legal_cases, make_chip)
    document = manifest(plan, model, chips)
    Draft202012Validator(SCHEMA).validate(document)
    assert sum(gpus(w) * w["replicas"] * nodes(w) for w in workers(document)) == plan.chips
    for worker, pool in zip(workers(document), plan.pools, strict=True):
        assert worker["replicas"] == pool.replicas
        assert gpus(worker) <= chips[pool.chip].node_size
        assert gpus(worker) * nodes(worker) == pool.chips_per_replica


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_operator_spreads_the_flags_over_the_pods_without_a_rest(
    data: st.DataObject, legal_cases: st.SearchStrategy[Case], make_chip: MakeChip
) -> None:
    """The operator's rule: ranks larger than a pod are cut over pods, others shared out whole."""
    plan, model, chips = draw_case(data, legal_cases, make_chip)
    for worker in workers(manifest(plan, model, chips)):
        arguments = main_container(worker)["args"]
        rank = count(arguments, "--tensor-parallel-size") * count(
            arguments, "--pipeline-parallel-size"
        )
        ranks = count(arguments, "--data-parallel-size")
        assert rank * ranks == gpus(worker) * nodes(worker)
        if nodes(worker) > 1 and rank > gpus(worker):
            assert nodes(worker) % ranks == 0
        elif nodes(worker) > 1:
            assert gpus(worker) % rank == 0
            assert gpus(worker) // rank * nodes(worker) == ranks
        added_by_operator = {"--nnodes", "--node-rank", "--data-parallel-size-local", "--headless"}
        assert not added_by_operator & set(arguments)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_worker_flags_are_legal_in_the_vllm_of_the_image(
    data: st.DataObject, legal_cases: st.SearchStrategy[Case], make_chip: MakeChip
) -> None:
    plan, model, chips = draw_case(data, legal_cases, make_chip)
    for worker, pool in zip(workers(manifest(plan, model, chips)), plan.pools, strict=True):
        container = main_container(worker)
        assert container["command"] == ["python3", "-m", "dynamo.vllm"]
        arguments = list(container["args"])
        if plan.topology == "prefill-decode":
            assert arguments[-2:] == ["--disaggregation-mode", pool.role]
            arguments = arguments[:-2]
            assert container["env"][0]["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST"
            transfer = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
            assert "NixlConnector" in json.dumps(transfer)
        assert_legal(arguments, flag_table("0.31.0"))


def test_the_router_of_the_plan_is_the_frontends_mode(moe: ModelSpec, make_chip: MakeChip) -> None:
    modes = {
        "round-robin": ["--router-mode", "round-robin"],
        "least-loaded": ["--router-mode", "least-loaded"],
        "prefix-affinity": ["--router-mode", "kv", "--no-router-kv-events"],
    }
    for router, arguments in modes.items():
        plan = DeploymentPlan.model_validate(
            {
                "model": "toy",
                "topology": "aggregated",
                "pools": [{"role": "aggregated", "chip": "b200", "replicas": 2}],
                "router": router,
            }
        )
        frontend = manifest(plan, moe, {"b200": make_chip("b200")})["spec"]["components"][0]
        assert frontend["type"] == "frontend"
        assert main_container(frontend)["args"] == arguments


def test_a_host_tier_has_its_memory_in_the_pod(moe: ModelSpec, make_chip: MakeChip) -> None:
    plan = DeploymentPlan(
        model="toy",
        topology="aggregated",
        pools=(Pool(role="aggregated", chip="b200", tp=2, dp=4),),
        kv=KvTiers(host_gb_per_chip=100),
    )
    (worker,) = workers(manifest(plan, moe, {"b200": make_chip("b200")}))
    # 8 chips x 100 GB = 745.06 GiB, and the usual 8 GiB of shared memory beside
    assert main_container(worker)["resources"]["requests"] == {"memory": "746Gi"}
    assert worker["sharedMemorySize"] == "754Gi"


def test_a_model_without_the_right_checkpoint_is_left_to_be_set(
    moe: ModelSpec, make_chip: MakeChip
) -> None:
    plan = DeploymentPlan(
        model="toy",
        topology="aggregated",
        pools=(Pool(role="aggregated", chip="b200"),),
        precision=Precision(weights="mxfp4"),
    )
    files = export(plan, moe, {"b200": make_chip("b200")}, "dynamo")
    assert (
        "SET_MODEL must be replaced by a checkpoint of toy-moe with MXFP4" in files["dynamo.yaml"]
    )
    assert "- SET_MODEL\n" in files["dynamo.yaml"]
    assert "sed -i 's|SET_MODEL|" in files["DEPLOY.md"]


def test_pools_of_different_chips_choose_their_nodes(moe: ModelSpec, make_chip: MakeChip) -> None:
    plan = DeploymentPlan(
        model="toy",
        topology="prefill-decode",
        pools=(Pool(role="prefill", chip="b200"), Pool(role="decode", chip="h200")),
    )
    chips = {name: make_chip(name) for name in ("b200", "h200")}
    selectors = [
        one["podTemplate"]["spec"]["nodeSelector"] for one in workers(manifest(plan, moe, chips))
    ]
    assert selectors == [{"servefront/chip": "b200"}, {"servefront/chip": "h200"}]
    assert "`servefront/chip=h200`" in export(plan, moe, chips, "dynamo")["DEPLOY.md"]


def test_what_dynamo_cannot_run_is_refused(
    moe: ModelSpec, dense: ModelSpec, make_chip: MakeChip
) -> None:
    plan = DeploymentPlan(
        model="toy",
        topology="aggregated",
        pools=(Pool(role="aggregated", chip="b200", dp=16),),
    )
    with pytest.raises(InputError, match="runs on NVIDIA GPUs"):
        manifest(plan, moe, {"b200": make_chip("b200", resource="amd.com/gpu")})
    with pytest.raises(InputError, match="ranks of a dense model must share a node"):
        manifest(plan, dense, {"b200": make_chip("b200")})
    newer = plan.model_copy(update={"engine_version": "0.33.0"})
    with pytest.raises(InputError, match=r"runs vLLM 0\.31\.0"):
        manifest(newer, moe, {"b200": make_chip("b200")})
    same = plan.model_copy(update={"engine_version": "0.31"})
    assert workers(manifest(same, moe, {"b200": make_chip("b200")}))


def test_the_files_of_a_known_plan_are_as_reviewed(moe: ModelSpec, make_chip: MakeChip) -> None:
    plan = DeploymentPlan(
        model="toy-moe",
        topology="prefill-decode",
        pools=(
            Pool(role="prefill", chip="gb200", replicas=3, tp=4, ep=4, max_num_seqs=16),
            Pool(role="decode", chip="gb200", dp=16, ep=16, max_num_seqs=64),
        ),
        precision=Precision(weights="fp8", kv="fp8"),
        kv=KvTiers(host_gb_per_chip=100),
        max_model_len=65536,
    )
    files = export(plan, moe, {"gb200": make_chip("gb200", 4)}, "dynamo")
    text = "".join(f"===== {name}\n{body}" for name, body in sorted(files.items()))
    text = text.replace(plan.plan_id, "PLAN_ID").replace(plan.plan_id[:6], "PLAN_ID")
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "after review: UPDATE_GOLDEN=1 pytest"
