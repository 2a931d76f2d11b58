"""The catalogue: figures against published ones, names in every spelling, and faults told."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import spaces
from spaces import catalog
from spaces.documents import parse_yaml, read_yaml
from spaces.errors import InputError
from spaces.model import ModelSpec
from spaces.precision import KvDtype, WeightsName
from spaces.system import HostSpec, LinkSpec, SystemSpec

# Publishers count active parameters differently: all count the LM head but those below.
WITH_INPUT_EMBEDDING = {
    "llama-4-maverick",
    "llama-4-scout",
    "minimax-m3",
    "qwen3.5-122b-a10b",
    "qwen3.5-397b-a17b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "llama-3.3-70b",
    "qwen3-30b-a3b",
    "qwen3-32b",
}
WITHOUT_LM_HEAD = {
    "glm-4.5",
    "glm-4.5-air",
    "glm-4.6",
    "glm-4.7",
    "glm-4.7-flash",
    "glm-5",
    "glm-5.1",
    "glm-5.2",
    "glm-5.3",
    "minimax-m2",
    "minimax-m2.1",
    "minimax-m2.5",
    "minimax-m2.7",
    "qwen3-coder-next",
    "qwen3-next-80b-a3b",
}

# Bytes per token in bf16 that grow with the whole context, by hand: layers x 2 x KV heads x head
# size x 2, or layers x (latent + rotary) x 2, and index keys; then bytes of full windows or states
# of a request.
KV_BYTES = {
    "deepseek-r1": (61 * 576 * 2, 0),
    "deepseek-r1-0528": (61 * 576 * 2, 0),
    "deepseek-v3": (70_272, 0),
    "deepseek-v3-0324": (70_272, 0),
    "deepseek-v3.1": (70_272, 0),
    "deepseek-v3.2": (61 * (576 * 2 + 132), 0),
    "deepseek-v3.2-exp": (78_324, 0),
    # Entries of 1024 bytes: one for 4 tokens with its index key, or one for 128 tokens.
    "deepseek-v4-flash": (21 * (1024 + 132) / 4 + 20 * 1024 / 128, 43 * 128 * 1024),
    "deepseek-v4-pro": (30 * (1024 + 132) / 4 + 31 * 1024 / 128, 61 * 128 * 1024),
    "ernie-4.5-21b-a3b": (28 * 2 * 4 * 128 * 2, 0),
    "glm-4.5": (376_832, 0),
    "glm-4.5-air": (188_416, 0),
    "glm-4.6": (376_832, 0),
    "glm-4.7": (376_832, 0),
    "glm-4.7-flash": (47 * 576 * 2, 0),
    "glm-5": (78 * (576 * 2 + 132), 0),
    "glm-5.1": (100_152, 0),
    "glm-5.2": (78 * 576 * 2 + 21 * 132, 0),
    "glm-5.3": (92_628, 0),
    "gpt-oss-120b": (36_864, 4_718_592),
    "gpt-oss-20b": (24_576, 3_145_728),
    "kimi-k2": (70_272, 0),
    "kimi-k2-0905": (70_272, 0),
    "kimi-k2.5": (70_272, 0),
    "kimi-k2.6": (70_272, 0),
    "kimi-k2.7-code": (70_272, 0),
    "kimi-k3": (27_648, 449_372_160),
    "llama-3.1-405b": (516_096, 0),
    "llama-3.1-70b": (327_680, 0),
    "llama-3.1-8b": (131_072, 0),
    "llama-3.3-70b": (327_680, 0),
    "llama-4-maverick": (12 * 2 * 8 * 128 * 2, 36 * 2 * 8 * 128 * 2 * 8192),
    "llama-4-scout": (49_152, 1_207_959_552),
    "minimax-m2": (253_952, 0),
    "minimax-m2.1": (253_952, 0),
    "minimax-m2.5": (253_952, 0),
    "minimax-m2.7": (253_952, 0),
    "minimax-m3": (60 * 2 * 4 * 128 * 2 + 57 * 128 * 2, 0),
    "mistral-large-3": (70_272, 0),
    "mixtral-8x7b": (131_072, 0),
    "qwen3-235b-a22b": (192_512, 0),
    "qwen3-30b-a3b": (98_304, 0),
    "qwen3-32b": (262_144, 0),
    "qwen3-coder-480b-a35b": (253_952, 0),
    # States: value heads x 128 x 128 in fp32, and 3 inputs of all channels in bf16.
    "qwen3-coder-next": (24_576, 77_266_944),
    "qwen3-next-80b-a3b": (12 * 2 * 2 * 256 * 2, 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)),
    "qwen3.5-122b-a10b": (12 * 2 * 2 * 256 * 2, 36 * (64 * 128 * 128 * 4 + 3 * 12288 * 2)),
    "qwen3.5-35b-a3b": (10 * 2 * 2 * 256 * 2, 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)),
    "qwen3.5-397b-a17b": (15 * 2 * 2 * 256 * 2, 45 * (64 * 128 * 128 * 4 + 3 * 12288 * 2)),
    "step-3.5-flash": (12 * 2 * 8 * 128 * 2, 33 * 2 * 8 * 128 * 2 * 512),
    "qwen3.8-2.4t-a95b": (23 * 2 * 4 * 256 * 2, 69 * (128 * 128 * 128 * 4 + 3 * 20480 * 2)),
}

HBM_BYTES = {
    "a100": 80 * 2**30,
    "b200": 180 * 2**30,
    "b300": 275_040 * 2**20,
    "gaudi3": 128 * 10**9,
    "gb200": 189_471 * 2**20,
    "gb300": 298_013_687_808,
    "groq-lp30": 500_000_000,
    "groq-lpu1": 230_000_000,
    "h100": 80 * 2**30,
    "h200": 141 * 2**30,
    "h800": 80 * 2**30,
    "l40s": 48_305_799_168,
    "mi300x": 192 * 2**30,
    "mi325x": 256 * 2**30,
    "mi350x": 288 * 2**30,
    "mi355x": 288 * 2**30,
    "mi455x": 432 * 10**9,
    "rtx-4090": 24 * 2**30,
    "rtx-pro-6000-server": 102_641_958_912,
    "sn40l": 64 * 10**9,
    "sn50": 64 * 10**9,
    "tpu-v5e": 16 * 10**9,
    "tpu-v6e": 32 * 10**9,
    "tpu-v7": 192 * 2**30,
    "vr200": 288 * 2**30,
    "wse3": 44 * 10**9,
}

# Chips whose fp8 is not twice as fast as bf16.
OTHER_FP8 = {"gaudi3": 1.0, "tpu-v6e": 1.0, "vr200": 4.375}
RESOURCES = {
    "AMD": "amd.com/gpu",
    "Google": "google.com/tpu",
    "Intel": "habana.ai/gaudi",
    "NVIDIA": "nvidia.com/gpu",
}


@pytest.mark.parametrize("name", catalog.model_names())
def test_total_parameters_are_those_published(name: str) -> None:
    model = catalog.model(name)
    assert model.published_source
    assert model.total_parameters / 1e9 == pytest.approx(
        model.published_total_parameters_b, rel=0.02
    )


@pytest.mark.parametrize("name", catalog.model_names())
def test_active_parameters_are_those_published(name: str) -> None:
    model = catalog.model(name)
    matrix = model.vocab_size * model.hidden_size
    counted = model.active_parameters + matrix * (
        (name in WITH_INPUT_EMBEDDING) - (name in WITHOUT_LM_HEAD)
    )
    published = model.published_active_parameters_b
    assert published is not None
    # Whole numbers are rounded: half a unit is no error.
    rounding = 0.5 if published == round(published) else 0.0
    assert abs(counted / 1e9 - published) <= max(0.02 * published, rounding)


def test_kv_bytes_of_every_model_are_those_counted_by_hand() -> None:
    found = {}
    for name in catalog.model_names():
        model = catalog.model(name)
        windows = model.windowed_kv_bytes_per_token("bf16") * model.window_tokens
        found[name] = (
            model.kv_bytes_per_token("bf16"),
            windows + model.fixed_bytes_per_request("bf16"),
        )
    assert found == KV_BYTES


KV_DTYPES: tuple[KvDtype, ...] = ("bf16", "fp8")


def test_every_model_of_the_collected_facts_has_their_sizes(data_dir: Path) -> None:
    facts = read_yaml(data_dir / "facts" / "models.yaml")["models"]
    assert len(facts) == 32
    for fact in facts:
        model, kv, check = catalog.model(fact["id"]), fact["kv"], fact["check"]
        for dtype in KV_DTYPES:
            per_token = kv[f"bytes_per_token_{dtype}"]  # one decimal
            assert model.kv_bytes_per_token(dtype) == pytest.approx(per_token, abs=0.0501)
            constant = model.windowed_kv_bytes_per_token(dtype) * model.window_tokens
            constant += model.fixed_bytes_per_request(dtype)
            assert constant == kv[f"constant_bytes_per_request_{dtype}"]
        assert model.total_parameters / 1e9 == pytest.approx(check["computed_total_b"], rel=5e-4)
        assert model.active_parameters / 1e9 == pytest.approx(
            check["computed_active_b"], rel=5e-4, abs=0.01
        )
        served = {"mistral-large-3": 262144}  # its declared positions are more
        context = served.get(model.name, fact["shape"]["max_context"])
        assert model.max_context_tokens == context


def test_every_chip_system_host_and_link_of_the_collected_facts_is_there(data_dir: Path) -> None:
    facts = read_yaml(data_dir / "facts" / "hardware.yaml")
    chips = [catalog.chip(fact["id"]) for fact in facts["chips"]]
    assert len({chip.name for chip in chips}) == 23
    systems = {fact["id"] for fact in facts["systems"]}
    assert (systems, len(systems)) == (set(catalog.system_names()), 7)
    assert {fact["id"] for fact in facts["hosts"]} == set(catalog.host_names())
    assert {fact["id"] for fact in facts["links"]} == set(catalog.link_names())


# A figure of the collected facts, the catalogue's, and what to multiply by.
CHIP_FIGURES = [
    ("bf16_tflops", "bf16_tflops", 1),
    ("fp8_tflops", "fp8_tflops", 1),
    ("fp4_tflops", "fp4_tflops", 1),
    ("mem_bytes", "hbm_gb", 1e-9),
    ("mem_bw_GBps", "hbm_gb_per_s", 1),
    ("scaleup.bw_each_dir_GBps", "scaleup_gb_per_s", 1),
    ("scaleup.domain", "scaleup_chips", 1),
    ("scaleout_GBps", "scaleout_gb_per_s", 1),
    ("host_link_each_dir_GBps", "host_link_gb_per_s", 1),
    ("host_dram_bytes_per_chip", "host_dram_gb", 1e-9),
    ("host_dram_bw_GBps_per_chip", "host_dram_gb_per_s", 1),
    ("nvme_read_GBps_per_chip", "nvme_gb_per_s", 1),
    ("tdp_w", "tdp_w", 1),
    ("all_in_w", "all_in_w", 1),
]
BUILT_FIGURES = [
    ("chips_per_node", "chips_per_node", 1),
    ("nodes_per_scaleup", "nodes_per_scaleup", 1),
    ("rack_kw", "rack_kw", 1),
    ("rack_price_usd", "rack_usd", 1),
    ("cores", "cores", 1),
    ("mem_bytes", "mem_gb", 1e-9),
    ("mem_bw_GBps", "mem_gb_per_s", 1),
    ("mem_channels", "mem_channels", 1),
    ("c2c_each_dir_GBps", "chip_link_gb_per_s", 1),
    ("tdp_w", "tdp_w", 1),
    ("each_dir_GBps", "gb_per_s", 1),
    ("read_GBps", "gb_per_s", 1),
]


def test_every_figure_of_the_collected_facts_is_the_catalogues(data_dir: Path) -> None:
    facts = read_yaml(data_dir / "facts" / "hardware.yaml")
    sections: list[tuple[str, Callable[[str], Any], list[tuple[str, str, float]]]] = [
        ("chips", catalog.chip, CHIP_FIGURES),
        ("systems", catalog.system, BUILT_FIGURES),
        ("hosts", catalog.host, BUILT_FIGURES),
        ("links", catalog.link, BUILT_FIGURES),
    ]
    compared = 0
    for section, find, figures in sections:
        for fact in facts[section]:
            ours = find(fact["id"]).facts()
            for theirs, key, unit in figures:
                figure: Any = fact
                for part in theirs.split("."):
                    figure = (figure or {}).get(part)
                value = figure.get("v") if isinstance(figure, dict) else figure
                if value is None:
                    continue
                stated = value if isinstance(value, list) else [value]
                place = (section, fact["id"], key)
                assert any(ours[key].value == pytest.approx(one * unit) for one in stated), place
                if section == "chips":
                    assert ours[key].status == figure["st"], place
                compared += 1
    assert compared > 300


@pytest.mark.parametrize("name", catalog.model_names())
def test_every_model_says_where_it_is_from(name: str) -> None:
    model = catalog.model(name)
    assert model.name == name
    assert model.source
    assert model.checked in {"2026-11-30", "2026-12-01"}
    assert "/" in model.hugging_face_id
    native = model.native_weights
    main = native.routed_experts if model.moe else native.linear
    assert main in model.released_weights
    assert set(model.released_weights) <= set(get_args(WeightsName)) - {"native"}


@pytest.mark.parametrize("name", catalog.chip_names())
def test_every_figure_of_a_chip_names_sources_that_are_described(name: str) -> None:
    chip = catalog.chip(name)
    assert chip.name == name
    assert chip.checked in {"2026-11-30", "2026-12-01"}
    cited = {key.strip() for fact in chip.facts().values() for key in fact.source.split(",")}
    assert cited == set(chip.sources)


def test_memory_comes_out_exact_to_the_byte() -> None:
    assert {name: catalog.chip(name).hbm_bytes for name in catalog.chip_names()} == HBM_BYTES


@pytest.mark.parametrize("name", catalog.chip_names())
def test_contradicted_and_estimated_figures_say_why_or_what_else_is_said(name: str) -> None:
    chip = catalog.chip(name)
    facts = chip.facts()
    for key in chip.estimates():
        assert facts[key].note or facts[key].alternatives, key
    for key, fact in facts.items():
        if fact.status == "derived":
            assert fact.note, key


@pytest.mark.parametrize("name", catalog.chip_names())
def test_a_chips_figures_are_plausible_beside_each_other(name: str) -> None:
    chip = catalog.chip(name)
    if chip.chips_per_node:
        assert chip.scaleup_size == 1 or chip.scaleup_size % chip.node_size == 0
    if chip.bf16_tflops and chip.fp8_tflops:
        gain = chip.fp8_tflops.value / chip.bf16_tflops.value
        assert gain == pytest.approx(OTHER_FP8.get(name, 2.0), rel=0.02)
    if chip.scaleup_gb_per_s:
        assert chip.scaleup_bytes_per_s < chip.hbm_bytes_per_s
        assert not chip.scaleout_gb_per_s or (
            chip.scaleout_bytes_per_s <= 2 * chip.scaleup_bytes_per_s
        )
    if chip.tdp_w:
        assert chip.power_w is not None
        assert chip.tdp_w.value <= chip.power_w
        assert not chip.idle_w or chip.idle_w.value < chip.tdp_w.value / 2
    assert chip.efficiency in (name, "generic")
    assert chip.manifest_resource == RESOURCES.get(chip.vendor, "unknown")


@pytest.mark.parametrize("name", ["sn40l", "sn50"])
def test_a_dataflow_chip_has_three_memories_of_which_one_takes_offloaded_kv(name: str) -> None:
    chip = catalog.chip(name)
    assert [level.level for level in chip.memory_levels] == ["sram", "hbm", "ddr"]
    sram, hbm, ddr = chip.memory_levels
    assert sram.gb.value < hbm.gb.value < ddr.gb.value
    assert (hbm.gb.value, chip.offload_gb) == (chip.hbm_gb.value, ddr.gb.value)
    assert sram.gb_per_s is None  # only orders of magnitude are published
    assert "memory_levels.ddr.gb" in chip.facts()


@pytest.mark.parametrize("name", ["groq-lp30", "groq-lpu1", "wse3"])
def test_memory_without_hbm_says_what_it_is(name: str) -> None:
    assert "SRAM" in catalog.chip(name).hbm_gb.note


DESCRIBED: list[SystemSpec | HostSpec | LinkSpec] = [
    *map(catalog.system, catalog.system_names()),
    *map(catalog.host, catalog.host_names()),
    *map(catalog.link, catalog.link_names()),
]


@pytest.mark.parametrize("entry", DESCRIBED, ids=lambda entry: entry.name)
def test_every_figure_of_a_system_host_or_link_names_its_source(
    entry: SystemSpec | HostSpec | LinkSpec,
) -> None:
    facts = entry.facts()
    assert facts
    cited = {key.strip() for fact in facts.values() for key in fact.source.split(",")}
    assert cited == set(entry.sources)
    for key in entry.estimates():
        assert facts[key].note, key


def test_every_chip_with_a_system_agrees_with_it() -> None:
    built = [name for system in catalog.system_names() for name in catalog.system(system).chips]
    assert len(built) == len(set(built))
    alone = {"groq-lp30", "groq-lpu1", "mi455x"}  # no figures of their systems were found
    assert set(built) | alone == set(catalog.chip_names())
    for name in catalog.system_names():
        system = catalog.system(name)
        assert set(system.hosts) <= set(catalog.host_names())
        nodes = {system.nodes_per_scaleup.value, *system.nodes_per_scaleup.alternatives}
        for chip in map(catalog.chip, system.chips):
            assert chip.node_size == system.chips_per_node.value or name == "pcie-8"
            joined = {node * system.chips_per_node.value for node in nodes}
            assert chip.scaleup_size in joined or name == "pcie-8"


def test_the_links_of_the_chips_are_in_the_catalogue() -> None:
    fabrics = {"h100": "nvlink4", "b200": "nvlink5", "gb300": "nvlink5", "vr200": "nvlink6"}
    for chip, name in fabrics.items():
        assert catalog.chip(chip).known("scaleup_gb_per_s") == catalog.link(name).gb_per_s.value
    for chip, name in {"gb200": "grace", "vr200": "vera"}.items():
        shared = catalog.host(name).chip_link_gb_per_s
        assert shared is not None
        assert catalog.chip(chip).known("host_link_gb_per_s") == shared.value / 2


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Vera Rubin NVL72", "nvl72-rubin"),
        ("NVL72-Blackwell", "nvl72-blackwell"),
        ("HGX", "hgx-8"),
    ],
)
def test_systems_are_found_in_usual_spellings(written: str, name: str) -> None:
    assert catalog.system(written) is catalog.system(name)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H200", "h200"),
        ("VR200", "vr200"),
        ("TPU7x", "tpu-v7"),
        ("Gaudi 3", "gaudi3"),
        ("SambaNova SN50", "sn50"),
        ("h200-sxm", "h200"),
        ("h200_sxm", "h200"),
        ("GB200", "gb200"),
        ("gb200-nvl72", "gb200"),
        ("gb200_NVL72", "gb200"),
        ("b200_sxm", "b200"),
        ("MI355X", "mi355x"),
        ("MI350X", "mi350x"),
        ("H800", "h800"),
        ("RTX4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("RTXPRO6000", "rtx-pro-6000-server"),
        ("rtx_pro_6000_server", "rtx-pro-6000-server"),
        ("RTX PRO 6000", "rtx-pro-6000-server"),
        ("a100_sxm", "a100"),
    ],
)
def test_chips_are_found_in_the_spellings_of_public_data(written: str, name: str) -> None:
    assert catalog.chip(written) is catalog.chip(name)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("DeepSeek-R1", "deepseek-r1"),
        ("DeepSeek-V3.2-Exp", "deepseek-v3.2-exp"),
        ("Qwen3.5-397B-A17B", "qwen3.5-397b-a17b"),
        ("Qwen3-Next-80B-A3B", "qwen3-next-80b-a3b"),
        ("Llama-4-Scout", "llama-4-scout"),
        ("DeepSeek-V4-Pro", "deepseek-v4-pro"),
        ("GLM-5.2", "glm-5.2"),
        ("Ernie-4.5-21B-A3B", "ernie-4.5-21b-a3b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1-0528"),
        ("DeepSeek-V3.1", "deepseek-v3.1"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("gpt_oss_120b", "gpt-oss-120b"),
        ("Qwen3-Coder-480B", "qwen3-coder-480b-a35b"),
        ("MiniMax-M2.5", "minimax-m2.5"),
        ("Kimi-K2-Instruct", "kimi-k2"),
        ("moonshotai/Kimi-K2.7-Code", "kimi-k2.7-code"),
    ],
)
def test_models_are_found_by_hugging_face_id_and_by_the_spellings_of_public_data(
    written: str, name: str
) -> None:
    assert catalog.model(written) is catalog.model(name)


def test_an_engine_is_found_by_its_full_name() -> None:
    assert catalog.engine("TensorRT-LLM") is catalog.engine("trtllm")


def test_no_alias_is_the_name_of_another_entry() -> None:
    by_section: list[tuple[Callable[[str], object], tuple[str, ...]]] = [
        (catalog.model, catalog.model_names()),
        (catalog.chip, catalog.chip_names()),
        (catalog.engine, catalog.engine_names()),
        (catalog.system, catalog.system_names()),
        (catalog.host, catalog.host_names()),
        (catalog.link, catalog.link_names()),
    ]
    for find, names in by_section:
        for name in names:
            entry = find(name)
            for alias in getattr(entry, "aliases", ()):
                assert find(alias) is entry, alias


def test_a_release_of_known_shapes_keeps_its_own_name_and_id() -> None:
    r1, v3 = catalog.model("deepseek-r1"), catalog.model("deepseek-v3")
    assert r1.name == "deepseek-r1"
    assert r1.hugging_face_id == "deepseek-ai/DeepSeek-R1"
    assert (r1.attention, r1.ffn, r1.vocab_size) == (v3.attention, v3.ffn, v3.vocab_size)
    assert r1.native_weights == v3.native_weights
    assert "nvfp4" in r1.released_weights
    assert "nvfp4" not in v3.released_weights


def test_a_release_of_known_shapes_may_differ_in_context_and_format() -> None:
    k2, k25 = catalog.model("kimi-k2"), catalog.model("kimi-k2.5")
    assert (k2.max_context_tokens, k25.max_context_tokens) == (131072, 262144)
    assert (k2.native_weights.routed_experts, k25.native_weights.routed_experts) == ("fp8", "int4")
    assert not any("vision" in note for note in k2.notes)


def test_an_unknown_name_gets_a_near_one_or_the_list() -> None:
    with pytest.raises(InputError, match="'h20'; did you mean h200"):
        catalog.chip("h20")
    with pytest.raises(InputError, match="known are atom, cerebras, groq, sambanova, "):
        catalog.engine("zzz")
    with pytest.raises(InputError, match="did you mean deepseek-r1 or"):
        catalog.model("deepsek-r1")


def test_finding_by_name_parses_that_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def watched(text: str, where: str) -> dict[str, Any]:
        parsed.append(where)
        return parse_yaml(text, where)

    monkeypatch.setattr(catalog, "parse_yaml", watched)
    catalog._catalogue_chip.cache_clear()
    first = catalog.chip("gb200")
    assert [Path(where).name for where in parsed] == ["gb200.yaml"]
    assert catalog.chip("GB200") is first
    assert len(parsed) == 1


def test_the_catalogue_works_from_a_zip(tmp_path: Path) -> None:
    root = Path(spaces.__file__).parent.parent
    shutil.copytree(root / "spaces", tmp_path / "src" / "spaces")
    archive = shutil.make_archive(str(tmp_path / "wheel"), "zip", tmp_path / "src")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import spaces; from spaces import catalog; "
        "print(spaces.__file__); print(catalog.model('DeepSeek-R1').total_parameters)"
    )
    run = [sys.executable, "-I", "-c", code, archive]
    out = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    place, parameters = out.splitlines()
    assert place.startswith(archive)
    assert int(parameters) == catalog.model("deepseek-r1").total_parameters


@pytest.fixture
def models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder that the catalogue takes for its models."""

    def files(section: str) -> dict[str, Path]:
        return {path.stem: path for path in sorted(tmp_path.glob("*.yaml"))}

    monkeypatch.setattr(catalog, "_files", files)
    for cached in (catalog._catalogue_model, catalog._aliases):
        cached.cache_clear()
    yield tmp_path
    for cached in (catalog._catalogue_model, catalog._aliases):
        cached.cache_clear()


SMALL = """\
hugging_face_id: someone/Small
source: made up
hidden_size: 64
vocab_size: 100
max_context_tokens: 1000
attention: [{kind: gqa, layers: 2, heads: 8, kv_heads: 2, head_dim: 8}]
ffn: [{kind: dense, layers: 2, intermediate_size: 128}]
native_weights: {routed_experts: bf16, linear: bf16}
notes: [of small]
"""
TWIN = "same_shape_as: small\nhugging_face_id: someone/Twin\nsource: made up\n"


def test_a_model_is_added_by_one_file(models_folder: Path) -> None:
    (models_folder / "small.yaml").write_text(SMALL + "aliases:\n  - The_Small\n  - tiny")
    for written in ("small", "SMALL", "the-small", "tiny", "someone/small"):
        assert catalog.model(written).name == "small"


def test_a_wrong_key_is_told_with_file_and_key(models_folder: Path) -> None:
    (models_folder / "small.yaml").write_text(SMALL.replace("kv_heads", "kvheads"))
    with pytest.raises(InputError) as caught:
        catalog.model("small")
    assert str(caught.value) == (
        f"{models_folder / 'small.yaml'}: attention.0.kvheads: unknown key; did you mean kv_heads"
        " or heads?"
    )


def test_shapes_are_taken_over_and_the_rest_may_be_said_anew(models_folder: Path) -> None:
    (models_folder / "small.yaml").write_text(SMALL)
    (models_folder / "twin.yaml").write_text(TWIN + "max_context_tokens: 2000\n")
    small, twin = catalog.model("small"), catalog.model("twin")
    changed = {"name", "hugging_face_id", "max_context_tokens", "notes"}
    assert small.model_dump(exclude=changed) == twin.model_dump(exclude=changed)
    assert (twin.max_context_tokens, twin.hugging_face_id) == (2000, "someone/Twin")
    assert twin.notes == ()


@pytest.mark.parametrize(
    ("twin", "said"),
    [
        (TWIN.replace("small", "smal"), "same_shape_as: must name a catalogue file"),
        (TWIN.replace("small", "smal"), "did you mean small?"),
        (TWIN.replace("small", "twin"), "same_shape_as: must name a catalogue file"),
        (
            TWIN + "hidden_size: 32\n",
            "twin.yaml: hidden_size: a file with `same_shape_as` may not",
        ),
        (TWIN.replace("source: made up\n", ""), "twin.yaml: source: this key is required"),
    ],
)
def test_a_wrong_twin_is_refused(models_folder: Path, twin: str, said: str) -> None:
    (models_folder / "small.yaml").write_text(SMALL)
    (models_folder / "twin.yaml").write_text(twin)
    with pytest.raises(InputError) as caught:
        catalog.model("twin")
    assert said in str(caught.value)


def test_an_alias_of_two_files_is_refused(models_folder: Path) -> None:
    (models_folder / "small.yaml").write_text(SMALL + "aliases: [tiny]\n")
    (models_folder / "twin.yaml").write_text(TWIN + "aliases: [Tiny]\n")
    with pytest.raises(InputError, match="an alias may name one file only, small"):
        catalog.model("tiny")


def test_a_catalogue_name_wins_over_a_folder_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deepseek-r1").mkdir()
    (tmp_path / "deepseek-r1" / "config.json").write_text("{}")
    found: ModelSpec = catalog.model("deepseek-r1")
    assert found.hugging_face_id == "deepseek-ai/DeepSeek-R1"


def test_public_names_are_sorted_and_there() -> None:
    for module in (spaces, catalog):
        assert list(module.__all__) == sorted(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)
