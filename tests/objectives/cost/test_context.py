"""Attention's look at the context."""

from __future__ import annotations

import pytest

from objectives.cost.context import ContextSeconds, context_seconds
from objectives.cost.machine import machine_of
from spaces.chip import ChipSpec
from spaces.model import GqaAttention, KdaAttention, MlaAttention, ModelSpec
from spaces.plan import EngineName
from spaces.precision import KvDtype

GQA = GqaAttention(layers=1, heads=64, kv_heads=8, head_dim=128)


def _mla(models: dict[str, ModelSpec]) -> MlaAttention:
    group = models["deepseek"].attention[0]
    assert isinstance(group, MlaAttention)
    return group


@pytest.mark.parametrize("chip", ["h100", "h200", "b200", "b300", "gb200", "gb300"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "atom"])
@pytest.mark.parametrize("kv", ["bf16", "fp8"])
def test_middle_sizes_come_out_as_measured(
    chips: dict[str, ChipSpec], chip: str, engine: EngineName, kv: KvDtype
) -> None:
    """The share of bandwidth at 32 to 128 MB, which the fixed time must account for."""
    machine = machine_of(chips[chip], engine)
    found = context_seconds(machine, GQA, 1, kv)
    tokens = 64e6 / (GQA.kv_elements_per_token * {"bf16": 2, "fp8": 1}[kv])
    seconds = found.decode_base + tokens * found.decode_token
    share = 64e6 / chips[chip].hbm_bytes_per_s / seconds
    assert share == pytest.approx(machine.decode_attention(kv).middle, rel=0.25)


def test_kv_heads_are_split_down_to_one_a_rank(chips: dict[str, ChipSpec]) -> None:
    machine = machine_of(chips["h100"], "vllm")
    read = {tp: context_seconds(machine, GQA, tp, "bf16").decode_token for tp in (1, 8, 16)}
    assert read[8] == pytest.approx(read[1] / 8)
    assert read[16] == read[8]


def test_reading_a_latent_is_not_split_but_prefill_is(
    chips: dict[str, ChipSpec], models: dict[str, ModelSpec]
) -> None:
    machine, mla = machine_of(chips["b200"], "trtllm"), _mla(models)
    four, eight = (context_seconds(machine, mla, tp, "fp8") for tp in (4, 8))
    assert eight.decode_token == four.decode_token
    assert eight.pair == pytest.approx(four.pair / 2)


def test_many_heads_on_a_chip_make_latent_decode_compute_bound(
    chips: dict[str, ChipSpec], models: dict[str, ModelSpec]
) -> None:
    machine, mla = machine_of(chips["h200"], "trtllm"), _mla(models)
    whole, split = (context_seconds(machine, mla, tp, "bf16") for tp in (1, 8))
    flops = 2 * 128 * (2 * 512 + 64)
    assert whole.decode_token == pytest.approx(flops / (989e12 * 0.613))
    assert split.decode_token == pytest.approx(576 * 2 / (4800e9 * 0.859 * 0.69))


def test_windowed_layers_leave_their_reading_to_the_window(chips: dict[str, ChipSpec]) -> None:
    windowed = GQA.model_copy(update={"window_tokens": 128})
    machine = machine_of(chips["h100"], "vllm")
    found, whole = (context_seconds(machine, group, 1, "bf16") for group in (windowed, GQA))
    assert found.read == 0.0
    assert found.decode_window_token == whole.decode_token
    assert found.decode_base <= whole.decode_base


def test_a_recurrent_state_is_read_and_written_whatever_the_context(
    chips: dict[str, ChipSpec],
) -> None:
    kda = KdaAttention(layers=1, heads=32, head_dim=128, conv_kernel=4)
    found = context_seconds(machine_of(chips["b200"], "sglang"), kda, 2, "bf16")
    state = 32 / 2 * (128 * 128 * 4 + 3 * 128 * 3 * 2)
    assert found.decode_request == pytest.approx(2 * state / (8000e9 * 0.659))
    assert found.decode_token == found.pair == found.read == 0.0
    # Decay, delta, write and read of 16 heads' states, in SGLang's share of the sustained peak.
    flops = 8 * 32 / 2 * 128 * 128
    assert found.chunk_token == pytest.approx(flops / (2250e12 * 0.91 * 0.027))


def test_coefficients_add_up_over_layers() -> None:
    total = ContextSeconds(pair=1.0).plus(ContextSeconds(pair=2.0, read=1.0), 3)
    assert total == ContextSeconds(pair=7.0, read=3.0)
