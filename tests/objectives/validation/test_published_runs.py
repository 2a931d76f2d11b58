"""Flags of published runs: which setting a row gets."""

from __future__ import annotations

from typing import Any

import pytest

from objectives.validation.published_runs import (
    RunSetting,
    accepted_rates,
    published_runs,
    release_of,
    run_setting,
)
from spaces.catalog import chip, engine, model

INFERENCEX = "random (InferenceX fixed-seq: lengths uniform in [0.8,1.0]x nominal)"


def setting(workload: str = INFERENCEX, **changes: Any) -> RunSetting:
    row: dict[str, Any] = {
        "engine": "sglang",
        "chip": "b200",
        "model": "deepseek-r1",
        "weights": "fp8",
        "tp": 8,
        "attention_dp": False,
        "drafts": False,
        "input_tokens": 8192,
        "output_tokens": 1024,
    }
    return run_setting(workload, **(row | changes))


def test_the_narrower_setting_comes_first() -> None:
    assert setting(tp=4).step_tokens == 8192
    assert setting(tp=8).step_tokens == 32768


@pytest.mark.parametrize(("concurrency", "steps"), [(1, 10), (15, 10), (16, 30), (512, 30)])
def test_sglang_polls_less_often_under_load(concurrency: int, steps: int) -> None:
    assert setting().admission_steps_at(concurrency) == steps


def test_ranks_wait_for_one_another_under_attention_dp_only() -> None:
    assert setting(engine="trtllm", attention_dp=True).admission_together
    assert not setting(engine="trtllm").admission_together


def test_a_step_of_drafting_runs_holds_one_input() -> None:
    """max_num_tokens: (1 + drafts) x requests + input + 127, rounded down to 64."""
    drafting = setting(engine="trtllm", drafts=True)
    assert drafting.drafts == 3
    assert drafting.step_tokens_at(8192, 16, 3) == 8320
    assert setting(engine="trtllm").step_tokens_at(8192, 16, 0) is None


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        ({"weights": "fp8"}, 30),
        ({"weights": "fp4"}, 10),
        ({"chip": "mi355x"}, 1),
        ({"engine": "trtllm", "model": "gpt-oss-120b"}, 20),
        ({"engine": "trtllm", "model": "llama-3.3-70b"}, 10),
        ({"engine": "vllm", "model": "gpt-oss-120b"}, 1),
    ],
)
def test_tokens_are_streamed_as_many_together_as_the_scripts_say(
    row: dict[str, Any], tokens: int
) -> None:
    assert setting(**row).stream_interval == tokens


def test_scripts_that_know_tensor_parallelism_alone_have_one_attention_rank() -> None:
    for name in ("minimax-m2.5", "kimi-k2.5"):
        assert setting(engine="vllm", model=name, attention_dp=True).one_attention_rank
    assert not setting(engine="trtllm", attention_dp=True).one_attention_rank


def test_trtllm_gathers_llamas_short_prompts_on_few_chips() -> None:
    short: dict[str, Any] = {"engine": "trtllm", "model": "llama-3.3-70b", "input_tokens": 1024}
    assert setting(**short, tp=4).admission_steps_at(64) == 20
    assert setting(**short, tp=8).admission_steps_at(64) == 1
    assert setting(**short, tp=4, output_tokens=8192).admission_steps_at(64) == 1


def test_the_share_accepted_is_what_the_runs_show() -> None:
    rates = accepted_rates(INFERENCEX, "deepseek-r1", 2)
    assert rates is not None
    assert 1 + sum(rates[:2]) == pytest.approx(2.27)
    assert accepted_rates(INFERENCEX, "deepseek-r1", 4) is None
    assert accepted_rates("ShareGPT", "deepseek-r1", 2) is None
    assert accepted_rates(INFERENCEX, "kimi-k2", 2) is None


def test_other_benchmarks_and_other_rows_keep_the_defaults() -> None:
    for plain in (setting("random, 150 requests"), setting(chip="h100")):
        assert plain.admission_steps_at(64) == 1
        assert plain.step_tokens is None


def test_every_setting_names_what_the_catalogue_knows() -> None:
    for known in published_runs().settings:
        match = known.match
        assert engine(match.engine).name == match.engine
        assert match.chip is None or chip(match.chip).name == match.chip
        assert match.model is None or model(match.model).name == match.model


@pytest.mark.parametrize(
    ("image", "day", "release"),
    [
        ("lmsysorg/sglang:v0.5.9-rocm700-mi30x", "2026-05-20", "0.5.9"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc14", "", "1.3.0"),
        ("rocm/atom:rocm7.2_pytorch2.9-atom0.1.1-MI350x", "", "0.1.1"),
        ("", "2026-02-12", "0.5.7"),
        ("", "2024-01-01", ""),
        ("", "", ""),
    ],
)
def test_the_release_is_the_images_or_that_of_the_day(image: str, day: str, release: str) -> None:
    assert release_of(image, "sglang", day) == release


def test_undated_images_of_trtllm_are_of_the_release_of_the_day() -> None:
    days = ("2025-12-11", "2026-01-28", "2026-01-29", "2026-05-18")
    told = [release_of("", "trtllm", day) for day in days]
    assert told == ["1.1.0", "1.1.0", "1.2.0", "1.3.0"]
