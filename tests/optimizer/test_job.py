"""Job files: what is canonical, what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optimizer.job import Job, load_job
from spaces.documents import dump_yaml
from spaces.errors import InputError
from tests.optimizer.toy import job_data

TRACE = '{"timestamp": 0, "input_length": 10, "output_length": 2}\n'


def written(folder: Path, **keys: Any) -> Path:
    path = folder / "job.yaml"
    data = {key: value for key, value in job_data(**keys).items() if value is not None}
    path.write_text(dump_yaml(data))
    return path


def loaded(folder: Path, **keys: Any) -> Job:
    return load_job(written(folder, **keys))


# What is wrong, the key that is named, and a part of the rule or of the remedy.
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown model": ({"model": "kimi-k33"}, "model", "did you mean kimi-k"),
    "no model": ({"model": None}, "model", "this key is required"),
    "unknown key": ({"chip": {"h100": 8}}, "chip", "did you mean chips"),
    "key of a later version": ({"deadline": "noon"}, "deadline", "unknown key"),
    "unknown chip": ({"chips": {"h1000": 8}}, "chips", "did you mean h100"),
    "no chips": ({"chips": {}}, "chips", "at least 1 item"),
    "budget of none": ({"chips": {"h100": 0}}, "chips.h100", "at least 1"),
    "negative budget": ({"chips": {"h100": -8}}, "chips.h100", "at least 1"),
    "budget in words": ({"chips": {"h100": "many"}}, "chips.h100", "{min: N, max: N}"),
    "least above most": ({"chips": {"h100": {"min": 9, "max": 8}}}, "chips.h100", "min must not"),
    "one chip twice": ({"chips": {"gb200": 4, "GB200_NVL72": 4}}, "chips", "only once"),
    "unknown engine": ({"engine": "vlm"}, "engine", "did you mean vllm"),
    "no engine": ({"engine": []}, "engine", "at least 1 item"),
    "unknown format": ({"precision": {"weights": "fp6"}}, "precision.weights", "fp8"),
    "no workload": ({"workload": {}}, "workload", "exactly one of"),
    "two workloads": (
        {"workload": {"preset": "fixed-1k1k", "trace": "t.jsonl"}},
        "workload",
        "exactly one of",
    ),
    "unknown preset": ({"workload": {"preset": "fixed-1k2k"}}, "workload.preset", "did you mean"),
    "no such trace": ({"workload": {"trace": "x.jsonl"}}, "workload.trace", "relative to the job"),
    "requests of a synthetic workload": (
        {
            "workload": {
                "synthetic": {"requests": 9, "input_tokens": 10, "output_tokens": 5},
                "requests": 9,
            }
        },
        "workload.requests",
        "within `synthetic`",
    ),
    "low above high": ({"load": {"concurrency": [64, 1]}}, "load.concurrency", "[1, 64]?"),
    "load of zero": ({"load": {"request_rate": 0}}, "load.request_rate", "positive number"),
    "a list of loads": ({"load": {"concurrency": [1, 8, 64]}}, "load.concurrency", "{values: ["),
    "no single load": (
        {"load": {"concurrency": {"values": []}}},
        "load.concurrency.values",
        "list",
    ),
    "half a user of some": (
        {"load": {"concurrency": {"values": [1, 1.5]}}},
        "load.concurrency.values",
        "integer",
    ),
    "two loads": ({"load": {"concurrency": 1, "request_rate": 1}}, "load", "exactly one of"),
    "half a user": ({"load": {"concurrency": [1.5, 8]}}, "load.concurrency", "integer"),
    "unknown metric": (
        {"objectives": ["maximize tokens_per_s_per_user_p51"]},
        "objectives.0",
        "did you mean",
    ),
    "no objective": ({"objectives": []}, "objectives", "at least 1 item"),
    "five objectives": (
        {"objectives": [f"minimize ttft_{s}_ms" for s in ("mean", "p50", "p90", "p95", "p99")]},
        "objectives",
        "at most 4",
    ),
    "the wrong way": ({"objectives": "maximize ttft_p95_ms"}, "objectives.0", "minimize ttft"),
    "one objective twice": (
        {"objectives": ["minimize chips", "minimize chips"]},
        "objectives.1",
        "only once",
    ),
    "no direction": ({"objectives": ["ttft_p95_ms"]}, "objectives.0", "minimize METRIC"),
    "no bound": ({"constraints": ["chips < 4"]}, "constraints.0", "METRIC <= NUMBER"),
    "an objective of a pool that some plans lack": (
        {"objectives": ["minimize prefill_queue_p95_ms"]},
        "space.topology",
        "every plan must have",
    ),
    "a bound on a pool that no plan has": (
        {"constraints": ["midfill_queue_p95_ms <= 10"]},
        "space.topology",
        "prefill-midfill-decode",
    ),
    "goodput without an SLO": (
        {"objectives": ["maximize goodput_requests_per_s_per_chip"]},
        "slo",
        "ttft_ms: 2000",
    ),
    "attainment without an SLO": ({"constraints": ["slo_attainment >= 0.9"]}, "slo", "needs an"),
    "an SLO of nothing": ({"slo": {}}, "slo", "ttft_ms, tpot_ms"),
    "a negative SLO": ({"slo": {"ttft_ms": -1}}, "slo.ttft_ms", "greater than 0"),
    "chips of the space beyond the budget": (
        {"space": {"pools": {"decode": {"chips": ["h200"]}}}},
        "space.pools.decode.chips",
        "choose among h100",
    ),
    "unknown chips of the space": (
        {"space": {"pools": {"prefill": {"chips": "h2000"}}}},
        "space.pools.prefill.chips",
        "did you mean h200",
    ),
    "unknown topology": ({"space": {"topology": "diagonal"}}, "space.topology", "aggregated"),
    "unknown sampler": ({"search": {"sampler": "tpr"}}, "search.sampler", "did you mean tpe"),
    "no trials": ({"search": {"trials": 0}}, "search.trials", "greater than 0"),
    "memory share of two": ({"hbm_fraction": 2}, "hbm_fraction", "less than or equal to 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_job_is_told_with_file_key_rule_and_remedy(tmp_path: Path, case: str) -> None:
    keys, key, words = WRONG[case]
    with pytest.raises(InputError) as caught:
        loaded(tmp_path, **keys)
    error = caught.value
    assert error.where == str(tmp_path / "job.yaml")
    assert error.key.startswith(key)
    assert words in str(error)
    assert error.remedy


def test_pools_may_be_bounded_where_some_plan_has_them(tmp_path: Path) -> None:
    assert loaded(tmp_path, constraints=["decode_utilization <= 0.9"]).bounds
    split = {"topology": ["prefill-decode", "prefill-midfill-decode"]}
    assert loaded(tmp_path, objectives=["minimize prefill_queue_p95_ms"], space=split).goals


def test_price_objectives_need_a_price_for_each_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spaces import catalog

    free = catalog.chip("h100").model_copy(update={"usd_per_hour": None})
    asked = {"objectives": ["minimize usd_per_hour"]}
    assert loaded(tmp_path, **asked)
    monkeypatch.setattr("optimizer.job_checks.catalog.chip", lambda name: free)
    with pytest.raises(InputError, match=r"prices: .* but got 'none for h100'; add .*h100: 3.5"):
        loaded(tmp_path, **asked)
    assert loaded(tmp_path, prices={"h100": 2}, **asked).prices == {"h100": 2.0}


def test_yaml_that_is_none_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: [\n")
    with pytest.raises(InputError, match=r"job.yaml:2: the text must be valid YAML"):
        load_job(path)
    with pytest.raises(InputError, match="the file must exist"):
        load_job(tmp_path / "other.yaml")


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: kimi-k3\nchips: {gb200: 64}\nworkload: {preset: long-context}\n")
    job = load_job(path)
    assert job.engine == ("vllm",)
    assert job.objectives == (
        "maximize tokens_per_s_per_user_p50",
        "maximize output_tokens_per_s_per_chip",
    )
    assert (job.search.trials, job.search.seed, job.search.sampler) == (300, 1, "auto")
    assert job.load is None and job.slo is None


def test_aliases_scalars_and_spellings_become_canonical(tmp_path: Path) -> None:
    job = loaded(
        tmp_path,
        model="deepseek-ai/DeepSeek-R1",
        chips={"GB200_NVL72": {"min": 8, "max": 64}},
        engine="TensorRT-LLM",
        precision={"weights": "nvfp4", "kv": "fp8"},
        load={"concurrency": 16},
        objectives="minimize  usd_per_m_output_tokens",
        constraints=["ttft_p95_ms<=2000.50", "chips >= 4"],
        prices={"gb200-nvl72": 3},
        space={"pools": {"decode": {"chips": "GB200"}}},
    )
    assert (job.model, list(job.chips), job.engine) == ("deepseek-r1", ["gb200"], ("trtllm",))
    assert (job.chips["gb200"].min, job.chips["gb200"].max) == (8, 64)
    assert (job.precision.weights, job.precision.kv) == (("nvfp4",), ("fp8",))
    assert job.load is not None and job.load.concurrency == (16, 16)
    assert job.objectives == ("minimize usd_per_m_output_tokens",)
    assert job.constraints == ("ttft_p95_ms <= 2000.5", "chips >= 4")
    assert job.prices == {"gb200": 3.0}
    assert job.space.pools["decode"].chips == ("gb200",)


def test_the_resolved_job_reads_back_equal_from_another_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "trace.jsonl").write_text(TRACE)
    job = loaded(
        tmp_path / "here",
        workload={"trace": "trace.jsonl"},
        slo={"ttft_ms": 2000},
        search={"trials": 7, "timeout_s": 9.5},
    )
    copy = tmp_path / "there" / "copy.yaml"
    copy.write_text(job.to_yaml())
    assert load_job(copy) == job
    assert job.workload[0].trace == str(tmp_path / "here" / "trace.jsonl")


def test_a_model_may_be_a_config_beside_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024,'
        ' "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,'
        ' "intermediate_size": 4096, "vocab_size": 32000, "max_position_embeddings": 4096,'
        ' "torch_dtype": "bfloat16"}'
    )
    for name in ("tiny", "tiny/config.json"):
        assert loaded(tmp_path, model=name).model.startswith(str(folder))


def test_settings_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    job = loaded(tmp_path)
    assert job.with_search(trials=9, seed=None).search.trials == 9
    assert job.with_search(trials=9).search.seed == job.search.seed
    with pytest.raises(InputError, match="command line: trials"):
        job.with_search(trials=0)
