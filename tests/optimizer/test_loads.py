"""Every kind of load, from the job file down to the metrics of a real simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from objectives.assess import Assessment, assess
from optimizer.job import LoadRange
from optimizer.problem import load_grid, posed
from spaces.documents import dump_yaml
from spaces.errors import InputError
from spaces.plan import DeploymentPlan, Load, Pool
from tests.optimizer.cli.test_cli import call

PLAN = DeploymentPlan(
    model="qwen3-32b",
    topology="aggregated",
    pools=(Pool(role="aggregated", chip="h200", replicas=4, tp=2),),
)
CHAT = {"preset": "chat", "requests": 400}


def job_file(folder: Path, load: dict[str, Any] | None, **keys: Any) -> Path:
    data = {"model": "qwen3-32b", "chips": {"h200": 8}, "workload": CHAT} | keys
    path = folder / "job.yaml"
    path.write_text(dump_yaml(data | ({"load": load} if load else {})))
    return path


def served(folder: Path, load: dict[str, Any] | None, at: Load | None, **keys: Any) -> Assessment:
    _, problem = posed(job_file(folder, load, **keys))
    plan = PLAN if at is None else PLAN.at(at)
    return assess(
        plan, problem.site, problem.workloads[0].workload, slo=problem.slo, rules=problem.rules
    )


@pytest.mark.parametrize(
    "arrivals",
    [
        "constant",
        "poisson",
        {"gamma": {"cv": 3}},
        {"weibull": {"shape": 0.7}},
        {"markov_modulated": {"rates": [1, 5], "mean_s": [30, 10]}},
        {"curve": {"rates": [1, 3, 2], "step_s": 20}},
    ],
    ids=str,
)
def test_processes_of_arrivals_reach_the_simulator(tmp_path: Path, arrivals: Any) -> None:
    load = {"request_rate": 4, "arrivals": arrivals}
    single = {"preset": "fixed-1k1k", "requests": 400}
    metrics = served(tmp_path, load, Load(request_rate=4), workload=single).metrics
    assert metrics["requests_per_s"] == pytest.approx(4, rel=0.3)
    steady = served(
        tmp_path, load | {"arrivals": "constant"}, Load(request_rate=4), workload=single
    ).metrics
    if arrivals == "constant":
        assert metrics == steady
    else:
        assert metrics["qps_std"] > steady["qps_std"]


def test_rates_of_sessions_and_requests_differ_by_the_turns_of_a_session(tmp_path: Path) -> None:
    rules = {"arrivals": "poisson"}
    slow = served(tmp_path, {"session_rate": 0.5} | rules, Load(session_rate=0.5))
    fast = served(tmp_path, {"session_rate": 4} | rules, Load(session_rate=4))
    assert slow.metrics["phase_output_tokens_per_s"] < fast.metrics["phase_output_tokens_per_s"]
    assert slow.simulated_requests == fast.simulated_requests == 400


def test_recorded_times_are_scaled(tmp_path: Path) -> None:
    load = {"time_scale": [0.25, 1], "replay_turns": True}
    recorded = served(tmp_path, load, Load(time_scale=1)).metrics
    faster = served(tmp_path, load, Load(time_scale=0.25)).metrics
    assert faster["qps_mean"] == pytest.approx(4 * recorded["qps_mean"], rel=0.05)


def test_a_run_stops_after_its_time_and_does_not_measure_the_warm_up(tmp_path: Path) -> None:
    load = {"request_rate": 4, "arrivals": "constant", "duration_s": 50}
    single = {"preset": "fixed-1k1k", "requests": 400}
    at = Load(request_rate=4)
    run = served(tmp_path, load, at, workload=single)
    assert run.simulated_requests == 201
    late = served(tmp_path, load | {"warm_up_s": 25}, at, workload=single)
    assert late.simulated_requests == 201
    assert late.classes[0].requests == 101
    few = served(tmp_path, load | {"requests": 60, "warm_up_requests": 20}, at, workload=single)
    assert (few.simulated_requests, few.classes[0].requests) == (60, 40)


def test_agentx_fills_its_time_with_as_many_rounds_as_it_takes(tmp_path: Path) -> None:
    load = {"concurrency": 4, "rules": "agentx", "duration_s": 1500}
    agents = {
        "preset": "agentic-coding",
        "requests": 60,
        "parameters": {"context_limit_tokens": 30_000},
    }
    run = served(tmp_path, load, Load(concurrency=4), workload=agents)
    assert run.simulated_requests > 60
    # The first turn of each of the four lanes that begins inside is a warm-up.
    assert run.classes[0].requests in range(run.simulated_requests - 4, run.simulated_requests)
    assert "e2e_tokens_per_s_per_user_p90" in run.metrics
    again = served(tmp_path, load, Load(concurrency=4), workload=agents)
    assert again.metrics == run.metrics


def test_named_rules_are_spelled_out_and_single_ones_replaced(tmp_path: Path) -> None:
    job, _ = posed(job_file(tmp_path, {"concurrency": 4, "rules": "agentx", "duration_s": 900}))
    assert job.load is not None
    assert job.load.rules_of_run.start == (0.25, 0.75)
    assert (job.load.tree_idle_cap_s, job.load.system_idle_cap_s) == (300, 10)
    assert (job.load.recycle, job.load.duration_s) == (True, 900)
    again, _ = posed(job_file(tmp_path, job.resolved()["load"]))
    assert again.load == job.load


@pytest.mark.parametrize(
    ("load", "key"),
    [
        ({"concurrency": 4, "rules": "agentxx"}, "load.rules"),
        ({"concurrency": 4, "arrivals": "poisson"}, "load.arrivals"),
        ({"session_rate": 4, "recycle": True, "requests": 5}, "load.recycle"),
        ({"session_rate": 4, "request_rate": 5}, "load"),
        ({"duration_s": 60}, "load"),
        ({"time_scale": [2, 1]}, "load.time_scale"),
    ],
)
def test_wrong_loads_are_refused_with_their_key(
    tmp_path: Path, load: dict[str, Any], key: str
) -> None:
    with pytest.raises(InputError) as caught:
        posed(job_file(tmp_path, load))
    assert caught.value.key == key
    assert caught.value.where == str(tmp_path / "job.yaml")


def test_a_load_of_the_plan_that_the_rules_do_not_fit_is_refused(tmp_path: Path) -> None:
    job = job_file(tmp_path, {"concurrency": 4, "rules": "agentx"})
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN.at(Load(request_rate=2)).to_yaml())
    result = call("simulate", job, "--plan", plan)
    assert result.exit_code == 2
    assert "needs a concurrency" in result.stderr


def test_larger_loads_come_later_whatever_the_kind() -> None:
    scales = load_grid(LoadRange(time_scale=(0.5, 2.0)))
    assert [scales[0], scales[-1]] == [Load(time_scale=2.0), Load(time_scale=0.5)]
    assert load_grid(LoadRange(session_rate=(2.0, 2.0))) == (Load(session_rate=2.0),)


def test_simulate_tells_how_each_class_fares(tmp_path: Path) -> None:
    mix = {"preset": "mix", "requests": 120, "parameters": {"mix": {"chat": 1, "reasoning": 1}}}
    job = job_file(
        tmp_path,
        {"concurrency": 8},
        workload=mix,
        slo={"ttft_ms": 5000, "classes": {"chat": {"ttft_ms": 0.001}}},
        constraints=["slo_attainment_worst_class >= 0.9"],
    )
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN.to_yaml())
    document = json.loads(call("simulate", job, "--plan", plan, "--json").stdout)
    found = {each["tenant"]: each["metrics"]["slo_attainment"] for each in document["classes"]}
    assert found == {"chat": 0.0, "reasoning": 1.0}
    assert document["metrics"]["slo_attainment_worst_class"] == 0.0
    told = call("simulate", job, "--plan", plan).stdout
    assert "reasoning" in told and "priority" in told


def test_metrics_of_sessions_need_a_closed_loop(tmp_path: Path) -> None:
    job = job_file(tmp_path, {"session_rate": 2}, objectives=["maximize sessions_per_chip"])
    with pytest.raises(InputError, match="needs a closed loop"):
        posed(job)
