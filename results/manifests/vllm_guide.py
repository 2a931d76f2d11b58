"""`DEPLOY.md` of a vLLM deployment: what runs where, in which order, and what to know."""

from __future__ import annotations

from collections.abc import Mapping

from results.manifests.text import headline, numbered, plan_in_words, section
from results.manifests.vllm_compose import ROUTER_VERSION, compose_name
from results.manifests.vllm_engine import block_size_fits
from results.manifests.vllm_processes import PUBLIC_PORT, Deployment
from spaces.chip import ChipSpec
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan


def guide(deployment: Deployment) -> str:
    """The text of `DEPLOY.md`."""
    plan, nodes = deployment.plan, deployment.nodes
    where = f"{nodes} nodes" if nodes > 1 else "one node"
    rows = [
        f"| {p.name} | {p.node} | {', '.join(map(str, p.devices))} | {p.port or '-'} |"
        for p in deployment.processes
    ]
    return "\n".join(
        [
            f"# {headline(plan, deployment.model)}",
            "",
            f"{plan.chips} chips on {where}, vLLM {deployment.version}:",
            "",
            plan_in_words(plan, deployment.chips),
            "",
            "| process | node | devices | port |",
            "|---|---|---|---|",
            *rows,
            *section("Start", numbered(_steps(deployment))),
            *section("Notes", [f"- {note}" for note in _notes(deployment)]),
            "",
        ]
    )


def engine_notes(
    plan: DeploymentPlan, model: ModelSpec, chips: Mapping[str, ChipSpec]
) -> list[str]:
    """What holds for vLLM's engine wherever it runs and the flags do not show."""
    notes = [
        (
            not block_size_fits(plan, model),
            f"KV blocks of {plan.block_size} tokens would exclude vLLM's fast kernels for the "
            "attention of this model; vLLM chooses the block size.",
        ),
        (
            len(plan.chips_by_kind) > 1,
            "The pools run on different chips. vLLM refuses a transfer between different kernels; "
            "give both pools the same --attention-backend if it does.",
        ),
        (
            plan.max_model_len is None,
            "No context limit is set: the KV cache of a replica must hold one request of "
            f"{model.max_context_tokens} tokens, or vLLM stops and asks for --max-model-len.",
        ),
    ]
    return [text for applies, text in notes if applies]


def _steps(deployment: Deployment) -> list[str]:
    weights, nodes = deployment.weights, deployment.nodes
    model_step = f"set MODEL ({weights.note})" if not weights.name else "check MODEL"
    hosts = f" and set NODE0_HOST to NODE{nodes - 1}_HOST" if nodes > 1 else ""
    router = ", then `bash serve.sh router` on node 0" if deployment.router else ""
    needs = f"vLLM and vllm-router {ROUTER_VERSION}" if deployment.router else "vLLM"
    return [
        f"In `deploy.env` {model_step}{hosts}; copy this folder to every node.",
        "With Docker, start all files at about the same time:",
        *(_compose_step(deployment, node) for node in range(nodes)),
        "Or without Docker, start every process on its node with `bash serve.sh NAME`"
        f"{router} (needs {needs} there).",
        f"Send requests to port {PUBLIC_PORT} of node 0, model name `{deployment.model.name}`.",
    ]


def _compose_step(deployment: Deployment, node: int) -> str:
    command = f"docker compose --env-file deploy.env -f {compose_name(deployment, node)} up -d"
    return f"  node {node}: `{command}`"


def _notes(deployment: Deployment) -> list[str]:
    plan, weights = deployment.plan, deployment.weights
    several = any(pool.replicas > 1 for pool in plan.pools)
    notes = [
        (
            bool(weights.name and weights.note),
            f"Weights: {weights.note}.",
        ),
        (
            plan.router == "least-loaded" and several,
            "The router takes the less loaded of two replicas drawn at random; with two replicas "
            "that is the least loaded one.",
        ),
        (
            plan.kv.host_gb_per_chip > 0,
            f"The host KV tier lies in /dev/shm: {plan.kv.host_gb_per_chip:g} GB for every chip "
            "of each data-parallel rank that a node holds, even in part.",
        ),
        (
            deployment.nodes > 1 and plan.topology == "prefill-decode",
            "KV moves over UCX; name the network cards in UCX_NET_DEVICES if its own choice is "
            "not the fast network.",
        ),
    ]
    own = [text for applies, text in notes if applies]
    return own + engine_notes(plan, deployment.model, deployment.chips)
