"""Target `dynamo`: a DynamoGraphDeployment (nvidia.com/v1beta1) for NVIDIA Dynamo on Kubernetes.

Checked against Dynamo 1.6.1, which runs vLLM 0.31.0: the flags of `dynamo.vllm` and
`dynamo.frontend`, its handling of a MultiConnector, and what the operator adds for replicas on
several nodes (ranks, addresses and the head node; the number of nodes and the GPUs of each pod are
the manifest's). Dynamo's own KV block manager is deprecated since 1.5 in favour of the engine's
offloading, so the host tier is vLLM's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from results.manifests.placement import chip_of, equal_shares
from results.manifests.text import headline, numbered, plan_in_words, section, to_yaml
from results.manifests.vllm_engine import (
    check_expressible,
    checkpoint,
    engine_arguments,
    host_tier_bytes,
)
from results.manifests.vllm_flags import assert_legal, flag_table
from results.manifests.vllm_guide import engine_notes
from spaces.chip import ChipSpec
from spaces.errors import InputError
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, Pool, Role, Router

ENGINES = ("vllm",)
DYNAMO_VERSION = "1.6.1"
VLLM_VERSION = "0.31.0"
IMAGE = f"nvcr.io/nvidia/ai-dynamo/vllm-runtime:{DYNAMO_VERSION}"
UNSET_MODEL = "SET_MODEL"
CHIP_LABEL = "servefront/chip"

_COMPONENTS: dict[Role, tuple[str, str]] = {
    "aggregated": ("worker", "worker"),
    "prefill": ("prefill", "prefill"),
    "decode": ("decode", "decode"),
}
_ROUTER_ARGUMENTS: dict[Router, list[str]] = {
    "round-robin": ["--router-mode", "round-robin"],
    "least-loaded": ["--router-mode", "least-loaded"],
    # The router predicts what each worker has cached, so workers need not publish events.
    "prefix-affinity": ["--router-mode", "kv", "--no-router-kv-events"],
}
_USUAL_SHARED_MEMORY_BYTES = 8 * 2**30
_ACCESS_TOKEN = {"secretRef": {"name": "hf-token-secret", "optional": True}}


def export(
    plan: DeploymentPlan, model: ModelSpec, chips: Mapping[str, ChipSpec]
) -> dict[str, str]:
    """The manifest and its guide; `InputError` where Dynamo cannot run the plan."""
    _check_version(plan)
    check_expressible(plan, model)
    for pool in plan.pools:
        _check_chip(chip_of(pool, chips))
        _check_spread(pool, model, chips[pool.chip])
    document = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": deployment_name(plan, model)},
        "spec": {
            "backendFramework": "vllm",
            "components": [
                _frontend(plan),
                *(_worker(plan, pool, model, chips[pool.chip]) for pool in plan.pools),
            ],
        },
    }
    return {
        "DEPLOY.md": _guide(plan, model, chips),
        "dynamo.yaml": to_yaml(document, _comment(plan, model)),
    }


def deployment_name(plan: DeploymentPlan, model: ModelSpec) -> str:
    """A Kubernetes name made of model and plan, short enough for the operator's suffixes."""
    slug = re.sub(r"[^a-z0-9]+", "-", model.name.lower()).strip("-")[:24].strip("-")
    return f"{slug or 'model'}-{plan.plan_id[:6]}"


def _check_version(plan: DeploymentPlan) -> None:
    table = flag_table(VLLM_VERSION)
    minor = ".".join(plan.engine_version.split(".")[:2])
    if minor and not table.version.startswith(f"{minor}."):
        raise InputError(
            f"Dynamo {DYNAMO_VERSION} runs vLLM {VLLM_VERSION}",
            key="engine_version",
            value=plan.engine_version,
            remedy="leave engine_version out, or use --target vllm",
        )


def _check_chip(chip: ChipSpec) -> None:
    if chip.manifest_resource != "nvidia.com/gpu":
        raise InputError(
            f"Dynamo's vLLM image runs on NVIDIA GPUs, not on {chip.name}",
            key="manifest_resource",
            value=chip.manifest_resource,
            remedy="use --target vllm",
        )


def _check_spread(pool: Pool, model: ModelSpec, chip: ChipSpec) -> None:
    """The operator spreads data-parallel ranks over pods by a mode vLLM has for experts only."""
    whole_ranks = pool.tp * pool.pp <= chip.node_size
    if model.moe is None and whole_ranks and len(equal_shares(pool, chip.node_size)) > 1:
        raise InputError(
            f"the data-parallel ranks of a dense model must share a node of {chip.node_size} "
            f"chips in the {pool.role} pool",
            key="dp",
            value=pool.dp,
            remedy="use more replicas and a smaller dp: the ranks are independent anyway",
        )


def _frontend(plan: DeploymentPlan) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["python3", "-m", "dynamo.frontend"],
        "args": _ROUTER_ARGUMENTS[plan.router],
        "envFrom": [_ACCESS_TOKEN],
    }
    return {
        "name": "Frontend",
        "type": "frontend",
        "replicas": 1,
        "podTemplate": {"spec": {"containers": [container]}},
    }


def _worker(plan: DeploymentPlan, pool: Pool, model: ModelSpec, chip: ChipSpec) -> dict[str, Any]:
    name, kind = _COMPONENTS[pool.role]
    shares = equal_shares(pool, chip.node_size)
    selector = {"nodeSelector": {CHIP_LABEL: pool.chip}} if len(plan.chips_by_kind) > 1 else {}
    tier = plan.kv.host_gb_per_chip > 0
    shared = {"sharedMemorySize": _shared_memory(plan, pool, shares[0])} if tier else {}
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["python3", "-m", "dynamo.vllm"],
        "args": _worker_arguments(plan, pool, model),
        **({"env": _transfer_environment()} if plan.topology == "prefill-decode" else {}),
        "envFrom": [_ACCESS_TOKEN],
        "resources": _resources(plan, chip, shares[0]),
    }
    return {
        "name": name,
        "type": kind,
        "replicas": pool.replicas,
        **({"multinode": {"nodeCount": len(shares)}} if len(shares) > 1 else {}),
        **shared,
        "podTemplate": {"spec": {**selector, "containers": [container]}},
    }


def _worker_arguments(plan: DeploymentPlan, pool: Pool, model: ModelSpec) -> list[str]:
    engine = engine_arguments(plan, pool, model)
    assert_legal(engine, flag_table(VLLM_VERSION))
    split = plan.topology == "prefill-decode"
    mode = ["--disaggregation-mode", pool.role] if split else []
    return ["--model", checkpoint(plan, model).name or UNSET_MODEL, *engine, *mode]


def _transfer_environment() -> list[dict[str, Any]]:
    """Where the other pool reaches this pod; Dynamo itself looks at a bare NixlConnector only."""
    pod_ip = {"fieldRef": {"fieldPath": "status.podIP"}}
    return [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": pod_ip}]


def _resources(plan: DeploymentPlan, chip: ChipSpec, gpus: int) -> dict[str, Any]:
    """GPUs as text, as Kubernetes wants quantities; the host tier counts as the pod's memory."""
    limits = {"limits": {chip.manifest_resource: str(gpus)}}
    tier_bytes = plan.kv.host_gb_per_chip * 1e9 * gpus
    return limits | ({"requests": {"memory": _gibibytes(tier_bytes)}} if tier_bytes else {})


def _shared_memory(plan: DeploymentPlan, pool: Pool, gpus: int) -> str:
    """Size of /dev/shm in a pod, where vLLM keeps the host tier, beside the usual size.

    A rank that is cut across pods has a file of its full size in each, filled in part.
    """
    ranks = max(1, gpus // (pool.tp * pool.pp))
    return _gibibytes(host_tier_bytes(plan, pool) * ranks + _USUAL_SHARED_MEMORY_BYTES)


def _gibibytes(size: float) -> str:
    return f"{math.ceil(size / 2**30)}Gi"


def _comment(plan: DeploymentPlan, model: ModelSpec) -> str:
    weights = checkpoint(plan, model)
    lines = [headline(plan, model), f"Dynamo {DYNAMO_VERSION}, vLLM {VLLM_VERSION}"]
    if not weights.name:
        lines.append(f"{UNSET_MODEL} must be replaced by {weights.note} (id or path).")
    elif weights.note:
        lines.append(f"Weights: {weights.note}.")
    return "\n".join(lines)


def _guide(plan: DeploymentPlan, model: ModelSpec, chips: Mapping[str, ChipSpec]) -> str:
    return "\n".join(
        [
            f"# {headline(plan, model)}",
            "",
            f"{plan.chips} chips, Dynamo {DYNAMO_VERSION} with vLLM {VLLM_VERSION}:",
            "",
            plan_in_words(plan, chips),
            *section("Start", numbered(_steps(plan, model, chips))),
            *section("Notes", [f"- {note}" for note in engine_notes(plan, model, chips)]),
            "",
        ]
    )


def _steps(plan: DeploymentPlan, model: ModelSpec, chips: Mapping[str, ChipSpec]) -> list[str]:
    weights = checkpoint(plan, model)
    spread = any(len(equal_shares(pool, chips[pool.chip].node_size)) > 1 for pool in plan.pools)
    steps = [
        (
            True,
            f"Install the Dynamo platform {DYNAMO_VERSION} on the cluster"
            + (" with Grove, which starts replicas on several nodes." if spread else "."),
        ),
        (
            True,
            "For gated weights: `kubectl create secret generic hf-token-secret "
            "--from-literal=HF_TOKEN=...`.",
        ),
        (
            not weights.name,
            f"Replace `{UNSET_MODEL}` by {weights.note}: "
            f"`sed -i 's|{UNSET_MODEL}|ORG/NAME|' dynamo.yaml`.",
        ),
        (
            len(plan.chips_by_kind) > 1,
            "Label the nodes of each chip kind: "
            + ", ".join(f"`{CHIP_LABEL}={kind}`" for kind in plan.chips_by_kind)
            + ".",
        ),
        (True, "`kubectl apply -f dynamo.yaml`, then wait for `kubectl get dgd` to say ready."),
        (
            True,
            f"`kubectl port-forward svc/{deployment_name(plan, model)}-frontend 8000`; send "
            f"requests to port 8000, model name `{model.name}`.",
        ),
    ]
    return [text for applies, text in steps if applies]
