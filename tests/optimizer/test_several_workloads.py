"""A plan that must serve several workloads: the worst of them counts, each is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from objectives.metrics import METRICS, split_name
from objectives.weighted import combined, mean_over
from optimizer.cli import app
from optimizer.evaluate import Evaluation, Evaluator
from optimizer.fork import _of_budget
from optimizer.grounds import changed_grounds, grounds_of
from optimizer.identity import Identity
from optimizer.job import Job, load_job
from optimizer.problem import Problem, prepare
from optimizer.proposing.candidates import Candidates, why_not_estimated
from results.tables import trials_frame
from results.trials import TrialRecord
from spaces.documents import dump_yaml
from spaces.errors import InputError
from spaces.plan import DeploymentPlan, Load, Pool
from tests.optimizer.toy import CHIP, MODEL, job_data, job_of, small_space

LONG = {"preset": "fixed-8k1k", "requests": 24, "weight": 3}
SHORT = {"preset": "fixed-1k1k", "requests": 32}
PLAN = DeploymentPlan(
    model=MODEL,
    topology="aggregated",
    pools=(Pool(role="aggregated", chip=CHIP, tp=2),),
    load=Load(concurrency=8),
)


def found(*workloads: dict[str, Any], **keys: Any) -> Evaluation:
    return Evaluator.of(prepare(job_of(workload=list(workloads), **keys)))(PLAN)


@pytest.fixture(scope="module")
def both() -> Evaluation:
    return found(LONG, SHORT, constraints=["ttft_p95_ms <= 1", "tpot_p95_ms@fixed-1k1k <= 1e6"])


def same(metrics: Any) -> str:
    return json.dumps(dict(metrics), sort_keys=True)


def test_one_workload_of_any_weight_is_the_plain_job_byte_for_byte() -> None:
    plain = Evaluator.of(prepare(job_of(workload=SHORT)))(PLAN)
    for weight in (1, 0.2):
        alone = found(SHORT | {"weight": weight, "name": "alone"})
        assert same(alone.metrics) == same(plain.metrics)
        assert same(alone.bands) == same(plain.bands)
    assert job_of(workload=[SHORT | {"weight": 2}]).resolved() == job_of(workload=SHORT).resolved()
    assert isinstance(job_of(workload=SHORT).resolved()["workload"], dict)


def test_two_equal_workloads_are_worth_what_one_is() -> None:
    one = found(SHORT)
    two = found(SHORT | {"name": "a", "weight": 0.7}, SHORT | {"name": "b", "weight": 0.3})
    for name, value in one.metrics.items():
        assert two.metrics[f"{name}@a"] == two.metrics[f"{name}@b"] == value
        if METRICS[name].better != "neither":
            assert two.metrics[name] == value
        if mean_over(name) is not None:
            assert two.metrics[f"{name}@mean"] == value
    for name, band in one.bands.items():
        assert two.bands[f"{name}@a"] == two.bands[f"{name}@b"] == band
        assert METRICS[name].better == "neither" or two.bands[name] == band
        assert mean_over(name) is None or two.bands[f"{name}@mean"] == pytest.approx(band)
    assert two.simulated_requests == 2 * one.simulated_requests


def test_the_worst_is_the_largest_or_smallest_of_the_parts(both: Evaluation) -> None:
    apart = {"fixed-8k1k": found(LONG), "fixed-1k1k": found(SHORT)}
    assert apart["fixed-8k1k"].metrics["ttft_p95_ms"] > apart["fixed-1k1k"].metrics["ttft_p95_ms"]
    for name, metric in METRICS.items():
        parts = [one.metrics[name] for one in apart.values() if name in one.metrics]
        for workload, one in apart.items():
            assert both.metrics.get(f"{name}@{workload}") == one.metrics.get(name)
        if len(parts) < 2 or metric.better == "neither":
            assert name not in both.metrics
        else:
            worst = max if metric.better == "lower" else min
            assert both.metrics[name] == worst(parts)


def test_a_constraint_holds_only_where_it_holds_in_every_workload(both: Evaluation) -> None:
    assert both.violations["ttft_p95_ms <= 1"] == both.metrics["ttft_p95_ms@fixed-8k1k"] - 1
    assert both.violations["tpot_p95_ms@fixed-1k1k <= 1e+06"] < 0


def test_means_are_what_a_meter_over_the_whole_time_would_show(both: Evaluation) -> None:
    of = both.metrics
    long, short = of["output_tokens_per_s@fixed-8k1k"], of["output_tokens_per_s@fixed-1k1k"]
    rate = (3 * long + short) / 4
    assert of["output_tokens_per_s@mean"] == pytest.approx(rate)
    assert of["usd_per_m_output_tokens@mean"] == pytest.approx(
        of["usd_per_hour"] / (rate * 3600) * 1e6
    )
    requests = [3 * of["requests_per_s@fixed-8k1k"], of["requests_per_s@fixed-1k1k"]]
    waits = [of["ttft_mean_ms@fixed-8k1k"], of["ttft_mean_ms@fixed-1k1k"]]
    assert of["ttft_mean_ms@mean"] == pytest.approx(np.average(waits, weights=requests))


def test_no_percentile_deviation_or_peak_is_averaged(both: Evaluation) -> None:
    averaged = {split_name(name)[0] for name in both.metrics if name.endswith("@mean")}
    assert not [name for name in averaged if "_p" in name.replace("_per_", "") or "peak" in name]
    assert not [name for name in averaged if name.endswith(("_std", "_std_ms"))]


def test_the_band_of_the_worst_holds_it_and_spans_those_of_the_parts(both: Evaluation) -> None:
    assert "ttft_p95_ms" in both.bands
    for name, (low, high) in both.bands.items():
        assert low <= both.metrics[name] <= high
    ends = [both.bands[f"tpot_p95_ms@{part}"] for part in ("fixed-8k1k", "fixed-1k1k")]
    assert both.bands["tpot_p95_ms"] == tuple(map(max, zip(*ends, strict=True)))


def test_a_metric_that_one_workload_lacks_has_no_worst() -> None:
    parts = prepare(job_of(workload=[LONG, SHORT])).workloads
    known = [{"ttft_p95_ms": 5.0}, {}]
    assert combined("ttft_p95_ms", parts, known) is None
    assert combined("ttft_p95_ms@fixed-8k1k", parts, known) == 5.0
    assert combined("ttft_p95_ms@fixed-1k1k", parts, known) is None
    assert combined("slo_attainment@mean", parts, [{"slo_attainment": 1.0}] * 2) is None


def test_tables_have_columns_of_each_workload_behind_the_others(both: Evaluation) -> None:
    trial = TrialRecord(
        trial=0, plan=PLAN, state="complete", metrics=both.metrics, bands=both.bands, violations={}
    )
    frame = trials_frame([trial])
    plain = list(trials_frame([]).columns)
    assert list(frame.columns[: len(plain)]) == plain
    for name, value in both.metrics.items():
        assert frame[name][0] == value
    assert frame["ttft_p95_ms_lo@fixed-1k1k"][0] == both.bands["ttft_p95_ms@fixed-1k1k"][0]
    assert all(str(frame[name].dtype) == "float64" for name in frame.columns if "@" in name)


def space(*workloads: dict[str, Any], **keys: Any) -> Problem:
    return prepare(job_of(workload=list(workloads), space=small_space(), **keys))


def test_the_estimate_takes_the_worst_and_the_means_as_the_simulator_does() -> None:
    goals = [
        "minimize tpot_p95_ms",
        "maximize output_tokens_per_s_per_chip@mean",
        "maximize tokens_per_s_per_user_p50@fixed-1k1k",
    ]
    together = Candidates.of(space(LONG, SHORT, objectives=goals)).estimates
    apart = [
        Candidates.of(space(one, objectives=[goal.partition("@")[0] for goal in goals])).estimates
        for one in (LONG, SHORT)
    ]
    assert together.shape == apart[0].shape
    assert np.array_equal(together[:, 0], np.maximum(apart[0][:, 0], apart[1][:, 0]))
    assert together[:, 1] == pytest.approx((3 * apart[0][:, 1] + apart[1][:, 1]) / 4)
    assert np.array_equal(together[:, 2], apart[1][:, 2])


def test_the_estimate_declines_a_mean_of_what_it_does_not_know() -> None:
    problem = space(
        LONG, SHORT, objectives=["maximize prefix_hit_fraction@mean", "minimize chips"]
    )
    assert why_not_estimated(problem) == "no estimate knows prefix_hit_fraction@mean"


def test_weights_names_and_requests_are_part_of_what_a_study_is() -> None:
    first = job_of(workload=[LONG, SHORT])
    keys = Identity.of(first, prepare(first)).without_budget()
    assert keys["workload.0.weight"] == 3 and keys["workload.1.name"] == "fixed-1k1k"
    grounds = grounds_of(prepare(first))
    for other in ([LONG | {"weight": 2}, SHORT], [LONG, SHORT | {"name": "x"}], [SHORT], [LONG]):
        changed = changed_grounds(grounds, grounds_of(prepare(job_of(workload=other))))
        assert "the requests" in changed


def test_a_fork_to_another_budget_renews_that_of_every_workload() -> None:
    old = found(LONG, SHORT)
    problem = prepare(job_of(workload=[LONG, SHORT], chips={CHIP: 4}))
    forked = _of_budget(old, PLAN, problem.site)
    fresh = Evaluator.of(problem)(PLAN)
    assert forked.metrics == pytest.approx(dict(fresh.metrics), rel=1e-12)
    assert forked.bands.keys() == fresh.bands.keys()


def job_file(folder: Path, **keys: Any) -> Path:
    file = folder / "job.yaml"
    file.write_text(dump_yaml(job_data(**keys)))
    return file


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"workload": [SHORT, SHORT]}, ("workload.1.name", "different names")),
        ({"workload": [SHORT, LONG | {"name": "mean"}]}, ("workload.1.name", "mean")),
        ({"workload": [SHORT, LONG | {"weight": 0}]}, ("workload.1.weight", "greater than 0")),
        ({"workload": [SHORT | {"wieght": 1}, LONG]}, ("workload.0.wieght", "weight")),
        ({"workload": SHORT | {"wieght": 1}}, ("workload.wieght", "weight")),
        ({"workload": []}, ("workload", "at least 1")),
        ({"constraints": "ttft_p95_ms@chat <= 5"}, ("one of several workloads", "ttft_p95_ms")),
        (
            {"workload": [SHORT, LONG], "constraints": "ttft_p95_ms@chat <= 5"},
            ("one of several workloads", "fixed-8k1k, mean"),
        ),
        (
            {"workload": [SHORT, LONG], "constraints": "ttft_p95_ms@mean <= 5"},
            ("ttft_p95_ms of several workloads has no mean", "ask for ttft_p95_ms"),
        ),
        (
            {"workload": [SHORT, LONG], "constraints": "input_tokens_p95 <= 5"},
            ("none is the worst", "input_tokens_p95@fixed-1k1k"),
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, keys: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as error:
        load_job(job_file(tmp_path, **keys))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_each_workload_must_fit_and_notes_name_it() -> None:
    with pytest.raises(InputError) as error:
        prepare(job_of(workload=[SHORT, LONG | {"parameters": {"input_tokens": 200_000}}]))
    assert error.value.key == "workload.1"
    notes = prepare(job_of(workload=[SHORT, LONG], load={"concurrency": 16})).notes
    assert any(note.startswith("each plan serves fixed-1k1k (weight 1) and ") for note in notes)
    assert any(note.startswith("fixed-8k1k: the workload has 24 requests") for note in notes)


def test_a_resolved_job_of_several_reads_back_equal(tmp_path: Path) -> None:
    job = load_job(job_file(tmp_path, workload=[LONG, SHORT]))
    copy = tmp_path / "copy.yaml"
    copy.write_text(job.to_yaml())
    again: Job = load_job(copy)
    assert again == job
    assert [(one.name, one.weight) for one in again.workload] == [
        ("fixed-8k1k", 3),
        ("fixed-1k1k", 1),
    ]


def test_simulate_shows_the_worst_and_each_workload(tmp_path: Path, both: Evaluation) -> None:
    job, plan = job_file(tmp_path, workload=[LONG, SHORT]), tmp_path / "plan.yaml"
    plan.write_text(dump_yaml(PLAN.model_dump(mode="json", exclude_none=True)))
    result = CliRunner().invoke(app, ["simulate", str(job), "--plan", str(plan), "--json"])
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert same(document["metrics"]) == same(both.metrics)
    assert list(document["workloads"]) == ["fixed-8k1k", "fixed-1k1k"]
    short = document["workloads"]["fixed-1k1k"]
    assert short["metrics"]["ttft_p95_ms"] == both.metrics["ttft_p95_ms@fixed-1k1k"]
    assert short["pools"] and short["binds"]
    shown = CliRunner().invoke(app, ["simulate", str(job), "--plan", str(plan)])
    assert shown.exit_code == 0, shown.stderr
    assert "fixed-8k1k, weight 3" in shown.stdout and "worst" in shown.stdout


def test_a_search_and_its_report_carry_the_workloads(tmp_path: Path, review: None) -> None:
    goals = ["minimize tpot_p95_ms", "maximize output_tokens_per_s_per_chip@mean"]
    job = job_file(
        tmp_path,
        workload=[LONG, SHORT],
        space=small_space(),
        load={"concurrency": [4, 8]},
        objectives=goals,
        constraints="ttft_p95_ms@fixed-1k1k <= 4000",
        search={"trials": 6, "batch_size": 3},
    )
    out = tmp_path / "study"
    arguments = ["optimize", str(job), "--out", str(out), "--workers", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    head, *rows = (out / "front.csv").read_text().splitlines()
    assert rows and "tpot_p95_ms@fixed-8k1k" in head.split(",")
    assert "output_tokens_per_s_per_chip@mean" in head.split(",")
    assert "@mean" in (out / "report.html").read_text()
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.stderr
    job.write_text(job.read_text().replace("weight: 3", "weight: 2"))
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2 and "workload.0.weight: 3.0 -> 2.0" in refused.stderr
