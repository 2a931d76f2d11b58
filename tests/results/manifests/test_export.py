"""The one door to all targets: what it refuses, and how files are written."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from results.manifests import TARGETS, export, write_manifests
from results.manifests.text import to_yaml
from spaces.chip import ChipSpec
from spaces.errors import InputError
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, Pool

MakeChip = Callable[..., ChipSpec]


def _plan(**pool: Any) -> DeploymentPlan:
    return DeploymentPlan(
        model="toy",
        topology="aggregated",
        pools=(Pool.model_validate({"role": "aggregated", "chip": "b200", **pool}),),
    )


def _split(prefill: dict[str, Any], decode: dict[str, Any]) -> DeploymentPlan:
    pools = [{"role": "prefill", **prefill}, {"role": "decode", **decode}]
    return DeploymentPlan.model_validate(
        {"model": "toy", "topology": "prefill-decode", "pools": pools}
    )


def test_the_targets_are_named() -> None:
    assert TARGETS == ("dynamo", "vllm")


def test_an_unknown_target_is_told_with_the_nearest(moe: ModelSpec, make_chip: MakeChip) -> None:
    with pytest.raises(InputError, match="did you mean vllm"):
        export(_plan(), moe, {"b200": make_chip("b200")}, "vlm")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("engine", ["sglang", "trtllm", "atom"])
def test_an_engine_the_target_cannot_run_is_refused(
    target: str, engine: str, moe: ModelSpec, make_chip: MakeChip
) -> None:
    plan = _plan().model_copy(update={"engine": engine})
    with pytest.raises(InputError, match=f"target {target} runs vllm, but got '{engine}'"):
        export(plan, moe, {"b200": make_chip("b200")}, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"engine": "sambanova"}, "runs vllm, but got 'sambanova'"),
        ({"kv_dtype": "fp8"}, "one KV format in all pools, but got 'vllm  bf16 KV; vllm  fp8 KV'"),
        ({"engine": "vllm", "engine_version": "0.31"}, "one release of one engine"),
    ],
)
def test_pools_that_are_unlike_are_refused_with_the_reason(
    target: str, own: dict[str, str], reason: str, moe: ModelSpec, make_chip: MakeChip
) -> None:
    pools = (Pool(role="prefill", chip="b200"), Pool(role="decode", chip="b200", **own))
    plan = DeploymentPlan(model="m", topology="prefill-decode", pools=pools)
    with pytest.raises(InputError, match=reason):
        export(plan, moe, {"b200": make_chip("b200")}, target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_plan_the_flags_cannot_describe_is_refused(
    target: str, moe: ModelSpec, dense: ModelSpec, make_chip: MakeChip
) -> None:
    chips = {"b200": make_chip("b200")}
    with pytest.raises(InputError, match=r"all tp x dp ranks or over none.*ep = 8.*got 4"):
        export(_plan(tp=4, dp=2, ep=4), moe, chips, target)
    with pytest.raises(InputError, match="toy-dense has no experts to spread"):
        export(_plan(tp=4, ep=4), dense, chips, target)
    with pytest.raises(InputError, match="max_num_batched_tokens >= max_num_seqs"):
        export(_plan(max_num_seqs=300, max_num_batched_tokens=256), moe, chips, target)
    stages = _split({"chip": "b200", "pp": 2}, {"chip": "b200"})
    with pytest.raises(InputError, match="prefill needs pp = 1"):
        export(stages, moe, chips, target)
    with pytest.raises(InputError, match="did you mean b200"):
        export(_plan(chip="b20"), moe, chips, target)


@pytest.mark.parametrize("target", TARGETS)
def test_pools_that_could_not_exchange_kv_are_refused(
    target: str, moe: ModelSpec, latent: ModelSpec, make_chip: MakeChip
) -> None:
    chips = {"b200": make_chip("b200")}

    def files(prefill_tp: int, decode_tp: int, model: ModelSpec) -> dict[str, str]:
        pools = [{"chip": "b200", "tp": tp} for tp in (prefill_tp, decode_tp)]
        return export(_split(*pools), model, chips, target)

    with pytest.raises(InputError, match=r"multiple of the other's.*prefill 6, decode 4"):
        files(6, 4, moe)
    with pytest.raises(InputError, match=r"tp <= 8 here.*prefill 16, decode 4, KV heads 8"):
        files(16, 4, moe)  # two prefill ranks would hold the same head
    assert files(16, 16, moe) and files(8, 4, moe) and files(4, 16, moe)
    assert files(16, 4, latent)  # a latent is whole on every rank


def test_chips_without_a_vllm_image_are_refused(moe: ModelSpec, make_chip: MakeChip) -> None:
    with pytest.raises(InputError, match=r"vLLM image must be known.*google\.com/tpu"):
        export(_plan(), moe, {"b200": make_chip("b200", resource="google.com/tpu")}, "vllm")
    mixed = _split({"chip": "b200"}, {"chip": "mi355x"})
    chips = {
        "b200": make_chip("b200"),
        "mi355x": make_chip("mi355x", resource="amd.com/gpu"),
    }
    with pytest.raises(InputError, match="one vendor only"):
        export(mixed, moe, chips, "vllm")


def test_a_version_without_a_flag_table_is_refused(moe: ModelSpec, make_chip: MakeChip) -> None:
    plan = _plan().model_copy(update={"engine_version": "0.9.1"})
    with pytest.raises(InputError, match=r"engine_version.*'0\.9\.1'; known are 0\.31, 0\.33"):
        export(plan, moe, {"b200": make_chip("b200")}, "vllm")


def test_the_same_plan_gives_the_same_files(moe: ModelSpec, make_chip: MakeChip) -> None:
    chips = {"b200": make_chip("b200")}
    for target in TARGETS:
        first, second = (export(_plan(tp=2), moe, chips, target) for _ in range(2))
        assert first == second
        assert all(text.endswith("\n") for text in first.values())


def test_files_are_written_whole_and_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "place"
    write_manifests({"serve.sh": "old\n", "a.yaml": "a: 1\n"}, folder)
    write_manifests({"serve.sh": "new\n"}, folder)
    assert (folder / "serve.sh").read_text() == "new\n"
    assert sorted(path.name for path in folder.iterdir()) == ["a.yaml", "serve.sh"]
    assert stat.S_IMODE((folder / "serve.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / "a.yaml").stat().st_mode) == 0o644


def test_a_directory_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_manifests({"a": ""}, tmp_path / "taken")


def test_yaml_text_stays_text_and_numbers_stay_numbers() -> None:
    document = {
        "text": ["y", "no", "on", "1", "1e3", "0x1f", "1_000", "null", "~", "v1", "a: b"],
        "number": 2,
        "truth": True,
    }
    text = to_yaml(document, "first\nsecond")
    assert text.startswith("# first\n# second\n")
    assert yaml.safe_load(text) == document
    for word in ("y", "no", "on", "1", "1e3", "0x1f", "1_000", "null", "~"):
        assert f"- '{word}'\n" in text  # other readers take the bare word for something else
    assert "- v1\n" in text and "number: 2\n" in text
