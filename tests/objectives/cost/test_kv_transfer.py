"""How much KV moves, over which link."""

from __future__ import annotations

import pytest

from objectives.cost import host_link, kv_bytes_per_request, rank_link
from spaces import catalog
from spaces.chip import ChipSpec
from spaces.errors import InputError
from spaces.model import ModelSpec
from spaces.plan import Pool, Precision


def _pool(chip: str, tp: int, replicas: int = 1) -> Pool:
    return Pool(role="prefill", chip=chip, tp=tp, replicas=replicas)


def test_one_copy_of_the_cache_is_counted(models: dict[str, ModelSpec]) -> None:
    assert kv_bytes_per_request(models["deepseek"], Precision(), 1000) == 1000 * 70_272
    assert kv_bytes_per_request(models["deepseek"], Precision(kv="fp8"), 1000) == 1000 * 35_136
    assert kv_bytes_per_request(models["llama"], Precision(), 10) == 10 * 327_680


def test_windows_fill_and_states_are_fixed(models: dict[str, ModelSpec]) -> None:
    """gpt-oss-120b: 36,864 bytes a token and 4,718,592 for full windows of 128."""
    long = kv_bytes_per_request(models["gpt-oss"], Precision(), 5000)
    assert long == 5000 * 36_864 + 4_718_592
    assert kv_bytes_per_request(models["gpt-oss"], Precision(), 64) == 64 * 2 * 36_864
    state = models["linear"].fixed_bytes_per_request("bf16")
    assert kv_bytes_per_request(models["linear"], Precision(), 0) == state > 0


def test_a_rank_uses_the_network_cards_of_its_own_chips(chips: dict[str, ChipSpec]) -> None:
    h200, b200 = _pool("h200", 8), _pool("b200", 4)
    link = rank_link(h200, chips["h200"], b200, chips["b200"])
    assert link.bytes_per_s == pytest.approx(8 * 50e9 * 0.75)
    assert link.seconds(3e9) == pytest.approx(0.01 + link.latency_s)
    assert link.latency_s > 0
    spread = h200.model_copy(update={"tp": 2, "dp": 4})
    assert rank_link(spread, chips["h200"], b200, chips["b200"]).bytes_per_s == pytest.approx(
        2 * 50e9 * 0.75
    )


def test_one_rack_uses_its_fabric(chips: dict[str, ChipSpec]) -> None:
    chip = chips["gb200"]
    decode = _pool("gb200", 8, replicas=7)
    inside = rank_link(_pool("gb200", 4, replicas=4), chip, decode, chip)
    assert inside.bytes_per_s == pytest.approx(4 * 900e9 * 0.75)
    too_many = rank_link(_pool("gb200", 4, replicas=5), chip, decode, chip)
    assert too_many.bytes_per_s == pytest.approx(4 * 50e9 * 0.75)


def test_a_node_or_another_kind_of_chip_does_not_share_a_fabric(
    chips: dict[str, ChipSpec],
) -> None:
    node = rank_link(_pool("h200", 2), chips["h200"], _pool("h200", 2), chips["h200"])
    assert node.bytes_per_s == pytest.approx(2 * 50e9 * 0.75)
    mixed = rank_link(_pool("gb200", 2), chips["gb200"], _pool("gb300", 2), chips["gb300"])
    assert mixed.bytes_per_s == pytest.approx(2 * 50e9 * 0.75)


def test_host_links_reach_what_was_measured(chips: dict[str, ChipSpec]) -> None:
    """PCIe 5.0 x16: 55.6 GB/s; Grace C2C: 170 to 184 GB/s with all GPUs at once."""
    assert host_link(_pool("h100", 1), chips["h100"]).bytes_per_s == pytest.approx(
        55.6e9, rel=0.01
    )
    assert 170e9 < host_link(_pool("gb200", 1), chips["gb200"]).bytes_per_s < 184e9
    eight, one = (host_link(_pool("h100", tp), chips["h100"]).bytes_per_s for tp in (8, 1))
    assert eight == pytest.approx(8 * one)


def test_a_chips_own_dram_takes_the_place_of_host_memory() -> None:
    link = host_link(_pool("sn40l", 1), catalog.chip("sn40l"))
    assert link.bytes_per_s == pytest.approx(100e9 * 0.8825)
    with pytest.raises(InputError, match=r"memory_levels\.ddr\.gb_per_s: the answer needs"):
        host_link(_pool("sn50", 1), catalog.chip("sn50"))


def test_full_windows_of_entries_move_with_a_request() -> None:
    model = catalog.model("deepseek-v4-pro")
    assert kv_bytes_per_request(model, Precision(), 1000) == 1000 * 8918 + 7_995_392
    assert kv_bytes_per_request(model, Precision(kv="fp8"), 0) == 4_559_872
