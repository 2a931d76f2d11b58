"""Docker Compose files of a vLLM deployment, one for each node."""

from __future__ import annotations

from typing import Any

from results.manifests.text import headline, to_yaml
from results.manifests.vllm_processes import MODEL, PUBLIC_PORT, Deployment, Process

ROUTER_VERSION = "0.1.17"

# Both images are tagged with the version of vLLM and hold the library that moves KV between pools.
IMAGES = {"nvidia.com/gpu": "vllm/vllm-openai", "amd.com/gpu": "vllm/vllm-openai-rocm"}


def compose_files(deployment: Deployment) -> dict[str, str]:
    """File name to text; the router is on the first node."""
    return {
        compose_name(deployment, node): _compose_file(deployment, node)
        for node in range(deployment.nodes)
    }


def compose_name(deployment: Deployment, node: int) -> str:
    """The Compose file of a node."""
    return "compose.yaml" if deployment.nodes == 1 else f"compose.node{node}.yaml"


def _compose_file(deployment: Deployment, node: int) -> str:
    services: dict[str, Any] = {
        process.name: _service(deployment, process)
        for process in deployment.processes
        if process.node == node
    }
    if deployment.router and node == 0:
        services["router"] = _router_service(deployment.router)
    title = headline(deployment.plan, deployment.model)
    comment = f"{title}\nnode {node} of {deployment.nodes}"
    return to_yaml({"services": services}, comment)


def _service(deployment: Deployment, process: Process) -> dict[str, Any]:
    resource = deployment.chips[process.pool.chip].manifest_resource
    rocm = resource == "amd.com/gpu"
    visible = {"HIP_VISIBLE_DEVICES": ",".join(map(str, process.devices))} if rocm else {}
    return {
        "image": f"{IMAGES[resource]}:v{deployment.version}",
        "entrypoint": ["vllm", "serve"],
        "command": [MODEL, *process.arguments],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **visible, **process.environment},
        "network_mode": "host",
        "ipc": "host",
        "ulimits": {"memlock": -1},
        "volumes": ["${HOME}/.cache/huggingface:/root/.cache/huggingface"],
        **(_rocm_access() if rocm else _reservation(process)),
        **({"healthcheck": _health(process.port)} if process.port else {}),
        "restart": "unless-stopped",
    }


def _reservation(process: Process) -> dict[str, Any]:
    device = {
        "driver": "nvidia",
        "device_ids": [str(device) for device in process.devices],
        "capabilities": ["gpu"],
    }
    return {"deploy": {"resources": {"reservations": {"devices": [device]}}}}


def _rocm_access() -> dict[str, Any]:
    """ROCm containers see all devices; HIP_VISIBLE_DEVICES says which are theirs."""
    return {
        "devices": ["/dev/kfd", "/dev/dri"],
        "group_add": ["video"],
        "cap_add": ["SYS_PTRACE"],
        "security_opt": ["seccomp:unconfined"],
    }


def _health(port: int) -> dict[str, Any]:
    """Asks the server itself; loading the weights may take long."""
    ask = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/health', timeout=5)"
    return {
        "test": ["CMD", "python3", "-c", ask],
        "interval": "15s",
        "timeout": "10s",
        "retries": 4,
        "start_period": "2h",
    }


def _router_service(command: tuple[str, ...]) -> dict[str, Any]:
    return {
        "image": f"vllm/vllm-router:v{ROUTER_VERSION}",
        "command": list(command),
        "network_mode": "host",
        "healthcheck": _health(PUBLIC_PORT),
        "restart": "unless-stopped",
    }
