"""The vLLM target: what is started, where, and that it is the plan."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from results.manifests import export, write_manifests
from results.manifests.vllm_engine import check_expressible, engine_arguments
from results.manifests.vllm_flags import assert_legal, flag_table
from spaces import catalog
from spaces.chip import ChipSpec
from spaces.errors import InputError
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, KvTiers, Pool, Precision
from spaces.speculation import Speculation

MakeChip = Callable[..., ChipSpec]
Case = tuple[DeploymentPlan, ModelSpec, dict[str, ChipSpec]]
Service = dict[str, Any]

GOLDEN = Path(__file__).parent / "golden" / "vllm.txt"

# Of `vllm-router` 0.1.17 (its argument parser): flags with one value, and the policies.
ROUTER_FLAGS = {
    "--host",
    "--port",
    "--worker-startup-timeout-secs",
    "--policy",
    "--prefill-policy",
    "--decode-policy",
    "--prefill",
    "--decode",
}
ROUTER_POLICIES = {"random", "round_robin", "cache_aware", "power_of_two", "consistent_hash"}

_TEXTS = {"type": "array", "items": {"type": "string"}}
_SERVICE_KEYS = {
    "image": {"type": "string", "pattern": "^vllm/[a-z-]+:v[0-9.]+$"},
    "entrypoint": _TEXTS,
    "command": _TEXTS,
    "environment": {"type": "object", "additionalProperties": {"type": "string"}},
    "network_mode": {"const": "host"},
    "ipc": {"const": "host"},
    "ulimits": {"type": "object", "additionalProperties": {"type": "integer"}},
    "volumes": _TEXTS,
    "devices": _TEXTS,
    "group_add": _TEXTS,
    "cap_add": _TEXTS,
    "security_opt": _TEXTS,
    "deploy": {"type": "object"},
    "restart": {"enum": ["unless-stopped"]},
    "healthcheck": {
        "type": "object",
        "required": ["test", "interval", "timeout", "retries", "start_period"],
        "additionalProperties": False,
        "properties": {
            "test": _TEXTS,
            "interval": {"type": "string"},
            "timeout": {"type": "string"},
            "retries": {"type": "integer"},
            "start_period": {"type": "string"},
        },
    },
}
COMPOSE_SCHEMA = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "properties": {
        "services": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["image", "command", "network_mode", "restart"],
                "additionalProperties": False,
                "properties": _SERVICE_KEYS,
            },
        }
    },
}


def parsed(text: str) -> Any:
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def engines(files: dict[str, str]) -> list[tuple[str, str, Service]]:
    """File, name and service of every engine in the Compose files."""
    return [
        (file, name, service)
        for file, text in sorted(files.items())
        if file.startswith("compose")
        for name, service in parsed(text)["services"].items()
        if name != "router"
    ]


def router(files: dict[str, str]) -> list[str] | None:
    for file, text in files.items():
        if file.startswith("compose") and "router" in (all_ := parsed(text)["services"]):
            command: list[str] = all_["router"]["command"]
            return command
    return None


def devices(service: Service) -> list[int]:
    """The devices a service may use."""
    if "deploy" in service:
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]
        return [int(i) for i in device["device_ids"]]
    assert service["devices"] == ["/dev/kfd", "/dev/dri"]
    return [int(i) for i in service["environment"]["HIP_VISIBLE_DEVICES"].split(",")]


def flags(service: Service) -> dict[str, str]:
    """Flag to value of an engine's command; switches have an empty value."""
    model, *words = service["command"]
    assert model == "${MODEL:?unset}"
    found: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            assert word not in found
            name = word
            found[name] = ""
        else:
            found[name] = word
    return found


def count(found: dict[str, str], flag: str) -> int:
    return int(found.get(flag, "1"))


def by_replica(files: dict[str, str]) -> dict[str, list[Service]]:
    """The services of each replica, in the order of their parts."""
    groups: dict[str, dict[int, Service]] = {}
    for _, name, service in engines(files):
        replica, _, part = name.partition("-part")
        groups.setdefault(replica, {})[int(part or 0)] = service
    return {name: [parts[i] for i in range(len(parts))] for name, parts in groups.items()}


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_reserved_devices_are_the_plans_chips_and_none_is_reserved_twice(
    data: st.DataObject, legal_cases: st.SearchStrategy[Case]
) -> None:
    plan, model, chips = data.draw(legal_cases)
    reserved = [
        (file, device)
        for file, _, service in engines(export(plan, model, chips, "vllm"))
        for device in devices(service)
    ]
    assert len(reserved) == plan.chips
    assert len(set(reserved)) == len(reserved)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_flags_of_a_replica_start_exactly_its_chips(
    data: st.DataObject, legal_cases: st.SearchStrategy[Case]
) -> None:
    """vLLM's launch rules, restated: who leads, which ranks a part runs, how they add up."""
    plan, model, chips = data.draw(legal_cases)
    replicas = by_replica(export(plan, model, chips, "vllm"))
    assert len(replicas) == sum(pool.replicas for pool in plan.pools)
    for name, parts in replicas.items():
        pool = next(pool for pool in plan.pools if name.startswith(pool.role))
        started = [flags(part) for part in parts]
        rank = count(started[0], "--tensor-parallel-size") * count(
            started[0], "--pipeline-parallel-size"
        )
        ranks = count(started[0], "--data-parallel-size")
        assert rank * ranks == pool.chips_per_replica
        assert ["--headless" in one for one in started] == [False] + [True] * (len(parts) - 1)
        if "--nnodes" in started[0]:
            assert all(count(one, "--nnodes") == len(parts) for one in started)
            assert [int(one["--node-rank"]) for one in started] == list(range(len(parts)))
            assert len({one["--master-addr"] + one["--master-port"] for one in started}) == 1
            assert len(parts) % ranks == 0
            assert all(len(devices(part)) * len(parts) == rank * ranks for part in parts)
        else:
            local = [int(one.get("--data-parallel-size-local", ranks)) for one in started]
            starts = [int(one.get("--data-parallel-start-rank", 0)) for one in started]
            assert sum(local) == ranks
            assert starts == [sum(local[:i]) for i in range(len(local))]
            assert [len(devices(part)) for part in parts] == [rank * n for n in local]
            assert "--data-parallel-start-rank" not in started[0]  # would change its balancing
            if len(parts) > 1:
                assert len({one["--data-parallel-address"] for one in started}) == 1
                assert len({one["--data-parallel-rpc-port"] for one in started}) == 1


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_files_parse_and_every_flag_is_legal_in_the_version(
    data: st.DataObject, legal_cases: st.SearchStrategy[Case]
) -> None:
    plan, model, chips = data.draw(legal_cases)
    files = export(plan, model, chips, "vllm")
    table = flag_table("0.33.0")
    for file, text in files.items():
        if file.startswith("compose"):
            Draft202012Validator(COMPOSE_SCHEMA).validate(parsed(text))
    for _, _, service in engines(files):
        assert_legal(service["command"][1:], table)
        transfer = flags(service).get("--kv-transfer-config")
        if transfer:
            assert set(_connectors(json.loads(transfer))) <= table.connectors
            assert "--kv-offloading-size" not in flags(service)  # would replace the connector


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_no_port_is_given_twice(data: st.DataObject, legal_cases: st.SearchStrategy[Case]) -> None:
    plan, model, chips = data.draw(legal_cases)
    files = export(plan, model, chips, "vllm")
    ports: list[int] = [] if router(files) is None else [8000]
    for parts in by_replica(files).values():
        leader = flags(parts[0])
        ports += [
            int(leader[flag])
            for flag in ("--port", "--master-port", "--data-parallel-rpc-port")
            if flag in leader
        ]
        base = parts[0]["environment"].get("VLLM_NIXL_SIDE_CHANNEL_PORT")
        if base is not None:  # vLLM adds the number of the data-parallel rank
            ports += [int(base) + n for n in range(count(leader, "--data-parallel-size"))]
        health = parts[0]["healthcheck"]["test"][-1]
        assert f":{leader['--port']}/health" in health
        assert all("healthcheck" not in part for part in parts[1:])
    assert len(set(ports)) == len(ports)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_router_reaches_every_serving_process_in_its_role(
    data: st.DataObject, legal_cases: st.SearchStrategy[Case]
) -> None:
    plan, model, chips = data.draw(legal_cases)
    files = export(plan, model, chips, "vllm")
    command = router(files)
    serving = {
        (name.split("-")[0], flags(service)["--port"])
        for _, name, service in engines(files)
        if "--headless" not in flags(service)
    }
    if len(serving) == 1:
        assert command is None
        assert {port for _, port in serving} == {"8000"}
        return
    assert command is not None and command[0] == "vllm-router"
    reached = set()
    words = iter(command[1:])
    for word in words:
        if word == "--worker-urls":
            reached |= {("aggregated", url.rpartition(":")[2]) for url in words}
        elif word != "--vllm-pd-disaggregation":
            assert word in ROUTER_FLAGS
            value = next(words)
            if word in ("--prefill", "--decode"):
                reached.add((word[2:], value.rpartition(":")[2]))
            if word.endswith("policy"):
                assert value in ROUTER_POLICIES
    assert reached == serving
    for role in ("prefill", "decode"):
        if f"--{role}-policy" in command and command.count(f"--{role}") == 1:
            assert command[command.index(f"--{role}-policy") + 1] != "power_of_two"


@pytest.mark.parametrize(
    "pools",
    [
        (Pool(role="aggregated", chip="b200", tp=2, replicas=2),),
        (Pool(role="aggregated", chip="b200", tp=8, pp=2),),
        (Pool(role="prefill", chip="b200", tp=4), Pool(role="decode", chip="b200", dp=12)),
    ],
)
def test_the_script_starts_what_docker_compose_starts(
    pools: tuple[Pool, ...], moe: ModelSpec, make_chip: MakeChip, tmp_path: Path
) -> None:
    """Run by the shell, with stand-ins for the two programs that print their words."""
    plan = DeploymentPlan(
        model="toy",
        topology="aggregated" if len(pools) == 1 else "prefill-decode",
        pools=pools,
        kv=KvTiers(host_gb_per_chip=10),
    )
    files = export(plan, moe, {"b200": make_chip("b200")}, "vllm")
    folder = tmp_path
    values = {"MODEL": "org/chosen", **{f"NODE{n}_HOST": f"10.0.0.{n}" for n in range(3)}}
    files["deploy.env"] = "".join(f"{name}={value}\n" for name, value in values.items())
    write_manifests(files, folder)
    for program in ("vllm", "vllm-router"):
        stand_in = folder / program
        stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$(basename "$0")" "$@"\n')
        stand_in.chmod(0o755)
    services = {name: service for _, name, service in engines(files)}
    wanted = {name: ["vllm", "serve", *one["command"]] for name, one in services.items()}
    if (command := router(files)) is not None:
        wanted["router"] = command
    for name, words in wanted.items():
        result = subprocess.run(
            ["bash", str(folder / "serve.sh"), name],
            env={"PATH": f"{folder}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.splitlines() == [_interpolated(word, values) for word in words]


def test_the_script_stops_without_a_model_or_a_known_name(
    moe: ModelSpec, make_chip: MakeChip, tmp_path: Path
) -> None:
    plan = _plan(Pool(role="aggregated", chip="b200"), weights="int4")
    write_manifests(export(plan, moe, {"b200": make_chip("b200")}, "vllm"), tmp_path)
    script = str(tmp_path / "serve.sh")
    unset = subprocess.run([script, "aggregated-0"], capture_output=True, text=True, check=False)
    assert unset.returncode != 0 and "MODEL: unset" in unset.stderr
    unknown = subprocess.run([script, "prefill-0"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 2 and "aggregated-0" in unknown.stderr


def test_a_host_tier_becomes_gibibytes_over_the_ranks_of_one_engine(
    moe: ModelSpec, make_chip: MakeChip
) -> None:
    plan = _plan(Pool(role="aggregated", chip="b200", tp=2, pp=2, dp=2), host_gb=100.0)
    ((_, _, service),) = engines(export(plan, moe, {"b200": make_chip("b200")}, "vllm"))
    size = flags(service)["--kv-offloading-size"]
    assert int(float(size) * 2**30) == 400_000_000_000  # 100 GB x tp 2 x pp 2, not x dp
    assert float(size) == pytest.approx(372.529, abs=1e-3)
    assert flags(service)["--kv-offloading-backend"] == "native"


def test_transfer_and_host_tier_are_joined_with_the_transfer_first(
    moe: ModelSpec, make_chip: MakeChip
) -> None:
    plan = DeploymentPlan(
        model="toy-moe",
        topology="prefill-decode",
        pools=(
            Pool(role="prefill", chip="b200", tp=4),
            Pool(role="decode", chip="b200", dp=4),
        ),
        kv=KvTiers(host_gb_per_chip=50),
    )
    services = by_replica(export(plan, moe, {"b200": make_chip("b200")}, "vllm"))
    for name, role, host_bytes in (
        ("prefill-0", "kv_producer", 200_000_000_000),
        ("decode-0", "kv_consumer", 50_000_000_000),
    ):
        transfer = json.loads(flags(services[name][0])["--kv-transfer-config"])
        nixl, offloading = transfer["kv_connector_extra_config"]["connectors"]
        assert (transfer["kv_connector"], transfer["kv_role"]) == ("MultiConnector", "kv_both")
        assert nixl == {"kv_connector": "NixlConnector", "kv_role": role}
        assert offloading["kv_connector"] == "OffloadingConnector"
        assert offloading["kv_connector_extra_config"] == {"cpu_bytes_to_use": host_bytes}


def test_weights_are_converted_only_where_vllm_can(moe: ModelSpec, make_chip: MakeChip) -> None:
    def exported(weights: str) -> tuple[dict[str, str], dict[str, str]]:
        plan = _plan(Pool(role="aggregated", chip="b200"), weights=weights)
        files = export(plan, moe, {"b200": make_chip("b200")}, "vllm")
        ((_, _, service),) = engines(files)
        return files, flags(service)

    native, native_flags = exported("native")
    assert "MODEL=org/toy-moe\n" in native["deploy.env"]
    assert "--quantization" not in native_flags
    converted, converted_flags = exported("fp8")
    assert "MODEL=org/toy-moe\n" in converted["deploy.env"]
    assert converted_flags["--quantization"] == "fp8_per_block"
    other, other_flags = exported("nvfp4")
    assert "MODEL=\n" in other["deploy.env"] and "NVFP4 weights" in other["deploy.env"]
    assert "--quantization" not in other_flags


def test_a_bf16_cache_is_asked_for_by_name(moe: ModelSpec, make_chip: MakeChip) -> None:
    """With `auto` vLLM would follow a checkpoint that asks for an fp8 cache."""
    plan = _plan(Pool(role="aggregated", chip="b200"))
    ((_, _, service),) = engines(export(plan, moe, {"b200": make_chip("b200")}, "vllm"))
    assert flags(service)["--kv-cache-dtype"] == "bfloat16"


def test_latent_attention_keeps_its_fast_kernels(
    latent: ModelSpec, moe: ModelSpec, make_chip: MakeChip
) -> None:
    def block(model: ModelSpec, size: int) -> str | None:
        plan = _plan(Pool(role="aggregated", chip="b200"), block_size=size)
        files = export(plan, model, {"b200": make_chip("b200")}, "vllm")
        ((_, _, service),) = engines(files)
        assert ("vLLM chooses the block size" in files["DEPLOY.md"]) == (
            "--block-size" not in flags(service)
        )
        return flags(service).get("--block-size")

    assert block(moe, 16) == "16"
    assert block(latent, 64) == "64"
    assert block(latent, 16) is None


def test_every_knob_of_the_plan_reaches_the_command(moe: ModelSpec, make_chip: MakeChip) -> None:
    plan = DeploymentPlan(
        model="toy-moe",
        topology="aggregated",
        pools=(
            Pool(
                role="aggregated",
                chip="b200",
                tp=2,
                dp=2,
                ep=4,
                max_num_seqs=48,
                max_num_batched_tokens=4096,
            ),
        ),
        precision=Precision(kv="fp8"),
        max_model_len=40000,
        hbm_fraction=0.87,
        block_size=32,
        prefix_caching=False,
    )
    ((_, _, service),) = engines(export(plan, moe, {"b200": make_chip("b200")}, "vllm"))
    assert flags(service) == {
        "--served-model-name": "toy-moe",
        "--tensor-parallel-size": "2",
        "--pipeline-parallel-size": "1",
        "--data-parallel-size": "2",
        "--enable-expert-parallel": "",
        "--max-num-seqs": "48",
        "--max-num-batched-tokens": "4096",
        "--max-model-len": "40000",
        "--gpu-memory-utilization": "0.87",
        "--kv-cache-dtype": "fp8",
        "--block-size": "32",
        "--no-enable-prefix-caching": "",
        "--host": "0.0.0.0",
        "--port": "8000",
    }


def test_drafts_are_asked_for_in_both_pools() -> None:
    model = catalog.model("deepseek-r1")
    plan = DeploymentPlan(
        model=model.name,
        topology="prefill-decode",
        pools=(
            Pool(role="prefill", chip="h200", tp=8),
            Pool(role="decode", chip="h200", tp=8, max_num_seqs=64),
        ),
        speculation=Speculation(depth=3),
    )
    for pool in plan.pools:
        arguments = engine_arguments(plan, pool, model)
        told = json.loads(arguments[arguments.index("--speculative-config") + 1])
        assert told == {"method": "mtp", "num_speculative_tokens": 3}


def test_a_depth_without_known_acceptance_is_refused(moe: ModelSpec) -> None:
    plan = DeploymentPlan(
        model=moe.name,
        topology="aggregated",
        pools=(Pool(role="aggregated", chip="h200"),),
        speculation=Speculation(depth=3),
    )
    with pytest.raises(InputError, match="no draft head"):
        check_expressible(plan, moe)


def test_amd_chips_get_the_rocm_image_and_see_their_own_devices(
    moe: ModelSpec, make_chip: MakeChip
) -> None:
    plan = _plan(Pool(role="aggregated", chip="mi355x", tp=2, replicas=2))
    files = export(plan, moe, {"mi355x": make_chip("mi355x", resource="amd.com/gpu")}, "vllm")
    services = [service for _, _, service in engines(files)]
    assert {service["image"] for service in services} == {"vllm/vllm-openai-rocm:v0.33.0"}
    assert [devices(service) for service in services] == [[0, 1], [2, 3]]
    assert "export HIP_VISIBLE_DEVICES=2,3" in files["serve.sh"]


def test_the_version_of_the_plan_chooses_image_and_flags(
    moe: ModelSpec, make_chip: MakeChip
) -> None:
    for asked, image in (("", "v0.33.0"), ("0.31", "v0.31.0"), ("0.33.2", "v0.33.2")):
        plan = _plan(Pool(role="aggregated", chip="b200")).model_copy(
            update={"engine_version": asked}
        )
        ((_, _, service),) = engines(export(plan, moe, {"b200": make_chip("b200")}, "vllm"))
        assert service["image"] == f"vllm/vllm-openai:{image}"


def test_the_guide_names_every_process_and_the_order_of_the_commands(
    moe: ModelSpec, make_chip: MakeChip
) -> None:
    plan = _plan(Pool(role="aggregated", chip="b200", tp=8, pp=2, replicas=2))
    files = export(plan, moe, {"b200": make_chip("b200")}, "vllm")
    guide = files["DEPLOY.md"]
    assert "32 chips on 4 nodes, vLLM 0.33.0" in guide
    assert all(f"| {name} |" in guide for _, name, _ in engines(files))
    steps = ["deploy.env", "compose.node0.yaml", "compose.node3.yaml", "serve.sh router"]
    assert [guide.index(step) for step in steps] == sorted(guide.index(step) for step in steps)


def test_the_files_of_a_known_plan_are_as_reviewed(latent: ModelSpec, make_chip: MakeChip) -> None:
    plan = DeploymentPlan(
        model="toy-latent",
        topology="prefill-decode",
        pools=(
            Pool(role="prefill", chip="b200", replicas=2, tp=4, ep=4, max_num_seqs=16),
            Pool(role="decode", chip="b200", dp=16, ep=16, max_num_seqs=64),
        ),
        precision=Precision(weights="nvfp4", kv="fp8"),
        kv=KvTiers(host_gb_per_chip=100),
        max_model_len=65536,
        router="prefix-affinity",
    )
    files = export(plan, latent, {"b200": make_chip("b200")}, "vllm")
    text = "".join(f"===== {name}\n{body}" for name, body in sorted(files.items()))
    text = text.replace(plan.plan_id, "PLAN_ID").replace(plan.plan_id[:6], "PLAN_ID")
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "after review: UPDATE_GOLDEN=1 pytest"


def _plan(
    pool: Pool, *, weights: str = "native", host_gb: float = 0.0, block_size: int = 16
) -> DeploymentPlan:
    return DeploymentPlan(
        model="toy",
        topology="aggregated",
        pools=(pool,),
        precision=Precision.model_validate({"weights": weights}),
        kv=KvTiers(host_gb_per_chip=host_gb),
        block_size=block_size,
    )


def _connectors(config: dict[str, Any]) -> list[str]:
    inner = config.get("kv_connector_extra_config", {}).get("connectors", [])
    return [config["kv_connector"], *(name for one in inner for name in _connectors(one))]


def _interpolated(word: str, values: dict[str, str]) -> str:
    """`${NAME:?unset}` replaced, as Docker Compose does it."""
    return re.sub(r"\$\{(\w+):\?unset\}", lambda match: values[match[1]], word)
