"""The processes of a vLLM deployment: one `vllm serve` for each replica and node it lies on.

Nodes use host networking, so every port is given once in the whole deployment. The address of a
node is `${NODE0_HOST:?unset}`, the weights are `${MODEL:?unset}`: the shell and Docker Compose
read this form alike and stop where the variable is empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from results.manifests.placement import Placement, Replica
from results.manifests.vllm_engine import Checkpoint, engine_arguments
from spaces.chip import ChipSpec
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, Pool, Router

MODEL = "${MODEL:?unset}"
PUBLIC_PORT = 8000
HTTP_PORT = 8100
RPC_PORT = 13500
MASTER_PORT = 29600
TRANSFER_PORT = 20000

# vllm-router compares two workers drawn at random and takes the less loaded one.
_POLICIES: dict[Router, str] = {
    "round-robin": "round_robin",
    "least-loaded": "power_of_two",
    "prefix-affinity": "cache_aware",
}


@dataclass(frozen=True, slots=True)
class Process:
    """One `vllm serve`: where it runs, what it sees and how it is started.

    `port` is None where the process serves no requests itself but works for the first node of
    its replica.
    """

    name: str
    pool: Pool
    node: int
    devices: tuple[int, ...]
    port: int | None
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Deployment:
    """All that the files of a deployment are written from; `router` is empty without one."""

    plan: DeploymentPlan
    model: ModelSpec
    chips: Mapping[str, ChipSpec]
    placement: Placement
    processes: tuple[Process, ...]
    router: tuple[str, ...]
    weights: Checkpoint
    version: str

    @property
    def nodes(self) -> int:
        """How many nodes the deployment uses."""
        return len(self.placement.node_chips)


def start_processes(
    plan: DeploymentPlan, model: ModelSpec, placement: Placement
) -> tuple[Process, ...]:
    """Every process, replica by replica, the serving one of a replica first."""
    replicas = placement.replicas
    ranks_before = itertools.accumulate((replica.pool.dp for replica in replicas), initial=0)
    starts = [
        _Start(
            replica=replica,
            serial=serial,
            http_port=PUBLIC_PORT if len(replicas) == 1 else HTTP_PORT + serial,
            transfer_port=TRANSFER_PORT + before,
            several_nodes=len(placement.node_chips) > 1,
        )
        for serial, (replica, before) in enumerate(zip(replicas, ranks_before, strict=False))
    ]
    return tuple(
        _process(plan, model, start, part)
        for start in starts
        for part in range(len(start.replica.slices))
    )


def router_command(plan: DeploymentPlan, processes: tuple[Process, ...]) -> tuple[str, ...]:
    """The command line of vllm-router in front of the serving processes; empty for a sole one.

    Loading large weights takes longer than the router waits by itself, hence the long start-up
    time.
    """
    serving = [process for process in processes if process.port is not None]
    if len(serving) == 1:
        return ()
    several_nodes = len({process.node for process in processes}) > 1
    urls = {p.name: f"http://{address(p.node, several_nodes)}:{p.port}" for p in serving}
    if plan.topology == "aggregated":
        routes = ["--policy", _POLICIES[plan.router], "--worker-urls", *urls.values()]
    else:
        routes = ["--vllm-pd-disaggregation"]
        for role in ("prefill", "decode"):
            mine = [urls[process.name] for process in serving if process.pool.role == role]
            routes += [word for url in mine for word in (f"--{role}", url)]
            routes += [f"--{role}-policy", _stage_policy(plan.router, role, len(mine))]
    listen = ("vllm-router", "--host", "0.0.0.0", "--port", str(PUBLIC_PORT))
    return (*listen, "--worker-startup-timeout-secs", "7200", *routes)


def address(node: int, several_nodes: bool) -> str:
    """How the processes of the deployment reach a node."""
    return f"${{NODE{node}_HOST:?unset}}" if several_nodes else "127.0.0.1"


def _stage_policy(router: Router, role: str, workers: int) -> str:
    """The policy of one stage; prefix affinity is a matter of where prefill runs.

    A comparison of two needs two workers, so a sole worker is served in turn.
    """
    if workers == 1:
        return "round_robin"
    if router == "prefix-affinity" and role == "decode":
        return _POLICIES["least-loaded"]
    return _POLICIES[router]


@dataclass(frozen=True, slots=True)
class _Start:
    """A replica with the ports that are its own."""

    replica: Replica
    serial: int
    http_port: int
    transfer_port: int
    several_nodes: bool


def _process(plan: DeploymentPlan, model: ModelSpec, start: _Start, part: int) -> Process:
    replica = start.replica
    own = replica.slices[part]
    spread = len(replica.slices) > 1
    here = address(own.node, start.several_nodes)
    environment = {"VLLM_HOST_IP": here} if spread else {}
    if plan.topology == "prefill-decode":
        environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] = here
        environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(start.transfer_port)
    serves = part == 0
    http = ("--host", "0.0.0.0", "--port", str(start.http_port)) if serves else ("--headless",)
    spreading = _spreading_arguments(start, part) if spread else ()
    return Process(
        name=f"{replica.name}-part{part}" if spread else replica.name,
        pool=replica.pool,
        node=own.node,
        devices=own.devices,
        port=start.http_port if serves else None,
        arguments=(*engine_arguments(plan, replica.pool, model), *spreading, *http),
        environment=environment,
    )


def _spreading_arguments(start: _Start, part: int) -> tuple[str, ...]:
    """How the parts of a replica that lies on several nodes find each other.

    Whole data-parallel ranks on each node are spread by vLLM's data-parallel flags; ranks larger
    than a node by its multi-node executor, which numbers the nodes of all ranks in a row.
    """
    pool, slices = start.replica.pool, start.replica.slices
    head = address(slices[0].node, start.several_nodes)
    rpc = ("--data-parallel-rpc-port", str(RPC_PORT + start.serial))
    rank = pool.tp * pool.pp
    if rank > len(slices[0].devices):
        return (
            *("--nnodes", str(len(slices)), "--node-rank", str(part)),
            *("--master-addr", head, "--master-port", str(MASTER_PORT + start.serial)),
            *(rpc if pool.dp > 1 else ()),
        )
    before = sum(len(piece.devices) for piece in slices[:part])
    return (
        *("--data-parallel-size-local", str(len(slices[part].devices) // rank)),
        *(("--data-parallel-start-rank", str(before // rank)) if part else ()),
        *("--data-parallel-address", head),
        *rpc,
    )
