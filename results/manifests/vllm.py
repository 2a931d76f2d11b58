"""Target `vllm`: plain `vllm serve` processes, started by a script or by Docker Compose.

In front of several replicas stands vLLM's own router (github.com/vllm-project/router), which also
leads a request from its prefill to its decode replica and hands over the transfer parameters.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from results.manifests.placement import place
from results.manifests.text import headline
from results.manifests.vllm_compose import IMAGES, compose_files
from results.manifests.vllm_engine import check_expressible, checkpoint
from results.manifests.vllm_flags import assert_legal, flag_table
from results.manifests.vllm_guide import guide
from results.manifests.vllm_processes import (
    MODEL,
    Deployment,
    Process,
    router_command,
    start_processes,
)
from spaces.chip import ChipSpec
from spaces.errors import InputError
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan

ENGINES = ("vllm",)

_VISIBLE = {"nvidia.com/gpu": "CUDA_VISIBLE_DEVICES", "amd.com/gpu": "HIP_VISIBLE_DEVICES"}


def export(
    plan: DeploymentPlan, model: ModelSpec, chips: Mapping[str, ChipSpec]
) -> dict[str, str]:
    """The files of the deployment; `InputError` where vLLM or its images cannot do it."""
    deployment = _deployment(plan, model, chips)
    return {
        "DEPLOY.md": guide(deployment),
        "deploy.env": _settings(deployment),
        "serve.sh": _script(deployment),
        **compose_files(deployment),
    }


def _deployment(
    plan: DeploymentPlan, model: ModelSpec, chips: Mapping[str, ChipSpec]
) -> Deployment:
    table = flag_table(plan.engine_version)
    check_expressible(plan, model)
    placement = place(plan, chips)
    _check_images(plan, chips)
    processes = start_processes(plan, model, placement)
    for process in processes:
        assert_legal(process.arguments, table)
    exact = plan.engine_version.count(".") == 2
    return Deployment(
        plan=plan,
        model=model,
        chips=chips,
        placement=placement,
        processes=processes,
        router=router_command(plan, processes),
        weights=checkpoint(plan, model),
        version=plan.engine_version if exact else table.version,
    )


def _check_images(plan: DeploymentPlan, chips: Mapping[str, ChipSpec]) -> None:
    """An image for each chip, and one kind of image: KV blocks have the layout of its kernels."""
    resources = sorted({chips[pool.chip].manifest_resource for pool in plan.pools})
    for resource in resources:
        if resource not in IMAGES:
            raise InputError(
                "a vLLM image must be known for the chip",
                key="manifest_resource",
                value=resource,
                remedy=f"known are images for {', '.join(IMAGES)}",
            )
    if len(resources) > 1:
        raise InputError(
            "vLLM moves KV between chips of one vendor only",
            key="pools",
            value=resources,
            remedy="run both pools on chips of one vendor",
        )


def _settings(deployment: Deployment) -> str:
    """`deploy.env`, read by the script and by Docker Compose."""
    weights = deployment.weights
    lines = ["# Settings of this deployment, read by serve.sh and by docker compose."]
    if weights.note:
        lines.append(f"# MODEL: {weights.note}.")
    if not weights.name:
        lines.append("# It must be set: a Hugging Face id, or a path that every node can read.")
    lines.append(f"MODEL={weights.name}")
    if deployment.nodes > 1:
        lines.append("# The IP address of each node, reachable from all others.")
        lines += [f"NODE{node}_HOST=" for node in range(deployment.nodes)]
    return "\n".join(lines) + "\n"


def _script(deployment: Deployment) -> str:
    """`serve.sh`: one branch for each process, to be run on its node."""
    branches = [_branch(process, deployment.chips) for process in deployment.processes]
    names = [process.name for process in deployment.processes]
    if deployment.router:
        branches.append(f"router)\n  exec {_shell_lines(deployment.router)}\n  ;;")
        names.append("router")
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# {headline(deployment.plan, deployment.model)}",
            "# Starts one process of the deployment on its node: bash serve.sh NAME",
            "set -euo pipefail",
            "set -a",
            '. "$(dirname "$0")/deploy.env"',
            "set +a",
            'case "${1:-}" in',
            *branches,
            "*)",
            f'  echo "usage: $0 {" | ".join(names)}" >&2',
            "  exit 2",
            "  ;;",
            "esac",
            "",
        ]
    )


def _branch(process: Process, chips: Mapping[str, ChipSpec]) -> str:
    visible = _VISIBLE[chips[process.pool.chip].manifest_resource]
    exports = {visible: ",".join(map(str, process.devices)), **process.environment}
    return "\n".join(
        [
            f"{process.name})  # node {process.node}",
            *(f"  export {name}={_shell_word(value)}" for name, value in exports.items()),
            f"  exec {_shell_lines(('vllm', 'serve', MODEL, *process.arguments))}",
            "  ;;",
        ]
    )


def _shell_lines(words: Sequence[str]) -> str:
    """The command with each flag on a line of its own."""
    return " ".join(
        f"\\\n    {_shell_word(word)}" if word.startswith("--") else _shell_word(word)
        for word in words
    )


def _shell_word(word: str) -> str:
    return f'"{word}"' if "${" in word else shlex.quote(word)
