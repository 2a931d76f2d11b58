"""Results of load generators: told by their content, with the plan they were measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from objectives.validation import predict_all
from objectives.validation.bench_results import read_results
from objectives.validation.files import read_files
from objectives.validation.points import THROUGHPUT
from spaces.errors import InputError
from spaces.plan import Hosts, Load
from tests.objectives.validation.rows import AGGREGATED, write_rows
from tests.spaces.worlds import plan_of

PLAN = plan_of("llama-3.3-70b", "h200", tp=4)
# The names that vLLM's `bench serve --save-result` writes.
VLLM: dict[str, Any] = {
    "date": "20261130-101500",
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.3-70B-Instruct",
    "num_prompts": 80,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 8,
    "duration": 40.0,
    "completed": 80,
    "total_input_tokens": 80000,
    "total_output_tokens": 16000,
    "request_throughput": 2.0,
    "output_throughput": 400.0,
    "total_token_throughput": 2400.0,
    "mean_ttft_ms": 300.0,
    "median_ttft_ms": 120.0,
    "mean_tpot_ms": 19.0,
    "median_tpot_ms": 18.0,
}
# Those of SGLang's `bench_serving --output-file`, one object a line.
SGLANG: dict[str, Any] = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": 4.0,
    "max_concurrency": None,
    "random_input_len": 1000,
    "random_output_len": 200,
    "duration": 25.0,
    "completed": 100,
    "total_input_tokens": 50000,
    "total_output_tokens": 10000,
    "total_output_tokens_retokenized": 9990,
    "output_throughput": 400.0,
    "mean_ttft_ms": 90.0,
    "median_ttft_ms": 80.0,
    "mean_tpot_ms": 16.0,
    "median_tpot_ms": 15.0,
    "accept_length": None,
}
# AIPerf's profile export: statistics by metric.
AIPERF: dict[str, Any] = {
    "schema_version": "1.3",
    "aiperf_version": "0.10.0",
    "input_config": {"loadgen": {"concurrency": 8, "request_count": 80}},
    "time_to_first_token": {"unit": "ms", "avg": 300.0, "p50": 120.0, "p99": 900.0},
    "inter_token_latency": {"unit": "ms", "avg": 19.0, "p50": 18.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 400.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1000.0},
    "output_sequence_length": {"unit": "tokens", "avg": 200.0},
    "request_count": {"unit": "requests", "avg": 80.0},
}


def written(folder: Path, *results: dict[str, Any], name: str = "r.json") -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(result) for result in results))
    return path


@pytest.mark.parametrize("result", [VLLM, AIPERF])
def test_a_closed_loop_of_eight(tmp_path: Path, result: dict[str, Any]) -> None:
    (point,) = read_results(written(tmp_path, result), PLAN)
    assert point.setup.load == Load(concurrency=8)
    assert (point.setup.input_tokens, point.setup.output_tokens) == (1000.0, 200.0)
    assert point.setup.requests == 80
    assert point.measured["tpot"] == 18.0
    assert point.measured["ttft"] == 120.0
    assert point.measured[THROUGHPUT] == 100.0  # of four chips


def test_each_line_of_a_file_is_a_point_of_its_own_rate(tmp_path: Path) -> None:
    path = written(tmp_path, SGLANG, SGLANG | {"request_rate": 8.0}, name="r.jsonl")
    points = read_results(path, PLAN)
    assert [point.setup.load.request_rate for point in points] == [4.0, 8.0]
    assert points[0].measured == {"tpot": 15.0, "ttft": 80.0, THROUGHPUT: 100.0}


def test_a_long_run_is_simulated_like_any_other(tmp_path: Path) -> None:
    long = VLLM | {"completed": 80_000, "total_input_tokens": 8e7, "total_output_tokens": 1.6e7}
    (point,) = read_results(written(tmp_path, long), PLAN)
    assert point.setup.requests is None


def test_seconds_are_told_by_their_unit(tmp_path: Path) -> None:
    own = AIPERF | {"time_to_first_token": {"unit": "s", "p50": 0.12}}
    (point,) = read_results(written(tmp_path, own), PLAN)
    assert point.measured["ttft"] == pytest.approx(120.0)


def test_a_result_of_means_alone_is_told_apart(tmp_path: Path) -> None:
    means = {key: value for key, value in VLLM.items() if not key.startswith("median")}
    (point,) = read_results(written(tmp_path, means), PLAN)
    assert point.measured == {"tpot_mean": 19.0, "ttft_mean": 300.0, THROUGHPUT: 100.0}


def test_a_load_that_the_result_does_not_tell_is_the_plans(tmp_path: Path) -> None:
    quiet = AIPERF | {"input_config": {}}
    path = written(tmp_path, quiet)
    (point,) = read_results(path, PLAN.at(Load(concurrency=32)))
    assert point.setup.load == Load(concurrency=32)
    with pytest.raises(InputError, match="neither does the plan"):
        read_results(path, PLAN.model_copy(update={"load": None}))


def test_a_result_is_predicted_on_its_own_plan(tmp_path: Path) -> None:
    points = read_results(written(tmp_path, VLLM), PLAN)
    (found,) = predict_all(points).predicted
    assert found.plan == PLAN.at(Load(concurrency=8))
    assert found.values["tpot"] > 0


def test_a_plan_is_predicted_on_hosts_of_its_own(tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"hosts": Hosts(kind="xeon6-6980p", count=1)})
    (found,) = predict_all(read_results(written(tmp_path, VLLM), plan)).predicted
    assert found.plan.hosts == plan.hosts
    unknown = PLAN.model_copy(update={"hosts": Hosts(kind="z80", count=1)})
    (refused,) = predict_all(read_results(written(tmp_path, VLLM), unknown)).refused
    assert "host" in refused.reason
    assert "z80" in refused.reason


def test_a_list_of_results_is_no_table_of_points(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("[1]")
    with pytest.raises(InputError, match="must hold a JSON object"):
        read_files([path], ("A",), PLAN)


def test_files_of_both_kinds_are_read_together(tmp_path: Path) -> None:
    paths = [written(tmp_path, VLLM), write_rows(tmp_path / "p.csv", [AGGREGATED])]
    file = read_files(paths, ("A",), PLAN)
    assert (file.rows, len(file.points), file.name) == (2, 2, "r.json, p.csv")
    assert file.sha256 != read_files(paths[:1], ("A",), PLAN).sha256
    with pytest.raises(InputError, match="--plan"):
        read_files(paths, ("A",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", r"r\.json:1: the text must be JSON"),
        ("[1]", "must hold a JSON object"),
        ('{"hello": 1}', "the result must be one of"),
        (json.dumps(VLLM | {"completed": 0}), "completed: the result must hold a positive"),
        (json.dumps(AIPERF | {"output_token_throughput": 3}), "output_token_throughput"),
        (
            json.dumps(AIPERF | {"time_to_first_token": {"unit": "fortnight", "p50": 1}}),
            "must be a unit of time",
        ),
    ],
)
def test_a_bad_file_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_results(path, PLAN)


def phases(*told: dict[str, Any]) -> dict[str, Any]:
    """An export of a version whose configuration has phases."""
    return AIPERF | {"input_config": {"phases": list(told)}}


WARM_UP = {"name": "warmup", "kind": "warmup", "type": "concurrency", "concurrency": 2}
OTHER_MODEL = {"concurrency": 8, "models": {"items": [{"name": "qwen3-32b"}]}}


def test_the_load_of_a_configuration_with_phases_is_the_measured_ones(tmp_path: Path) -> None:
    closed = {"name": "profiling", "type": "concurrency", "concurrency": 8}
    rate = {"name": "peak", "kind": "profiling", "type": "poisson", "rate": 4.0}
    (point,) = read_results(written(tmp_path, phases(WARM_UP, closed)), PLAN)
    assert point.setup.load == Load(concurrency=8)
    (point,) = read_results(written(tmp_path, phases(WARM_UP, rate)), PLAN)
    assert point.setup.load == Load(request_rate=4.0)
    with pytest.raises(InputError, match="does not tell its load"):
        read_results(written(tmp_path, phases(closed, rate)), PLAN)


@pytest.mark.parametrize(
    ("result", "rule"),
    [
        (VLLM | {"model_id": "deepseek-ai/DeepSeek-R1"}, "is of deepseek-r1, the plan of llama"),
        (AIPERF | {"input_config": OTHER_MODEL}, "is of qwen3-32b, the plan of llama"),
        (AIPERF | {"was_cancelled": True}, "was cancelled"),
        (VLLM | {"failed": 10}, "may have failed"),
        (AIPERF | {"error_request_count": {"unit": "requests", "avg": 20.0}}, "may have failed"),
        (VLLM | {"median_tpot_ms": 0.018}, "TPOT is no time in ms"),
        (VLLM | {"median_ttft_ms": 0.12}, "TTFT is no time in ms"),
        (VLLM | {"median_tpot_ms": 18_000.0}, "TPOT is no time in ms"),
        (VLLM | {"output_throughput": 1600.0}, "more requests than there are users"),
    ],
)
def test_runs_that_teach_nothing_are_refused(
    tmp_path: Path, result: dict[str, Any], rule: str
) -> None:
    with pytest.raises(InputError, match=rule):
        read_results(written(tmp_path, result), PLAN)


def test_weights_of_ones_own_and_few_failures_are_taken(tmp_path: Path) -> None:
    own = VLLM | {"model_id": "/weights/mine", "failed": 2}
    (point,) = read_results(written(tmp_path, own), PLAN)
    assert point.measured["tpot"] == 18.0
