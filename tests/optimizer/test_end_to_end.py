"""From a job to manifests with the real simulator, and the examples as a user would run them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from objectives.metrics import METRICS
from optimizer.cli import app
from optimizer.job import load_job
from optimizer.problem import prepare
from spaces.documents import dump_yaml
from tests.conftest import REPOSITORY
from tests.optimizer.eviction import evicted_and_replaced
from tests.optimizer.toy import job_data

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    job = folder / "job.yaml"
    job.write_text(
        dump_yaml(
            job_data(
                constraints=["ttft_p95_ms <= 5000"],
                slo={"ttft_ms": 1000, "tpot_ms": 50},
                objectives=[
                    "maximize tokens_per_s_per_user_p50",
                    "maximize output_tokens_per_s_per_chip",
                    "maximize goodput_requests_per_s_per_chip",
                ],
                search={"trials": 12, "seed": 1},
            )
        )
    )
    result = call("optimize", job, "--out", folder / "study")
    assert result.exit_code == 0, result.stderr
    return folder / "study"


def test_every_trial_has_its_metrics_within_their_bands(study: Path) -> None:
    with (study / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(row["same_as"] == "" for row in rows) == 12
    for row in rows:
        assert row["state"] == "complete"
        for name in METRICS:
            if row.get(f"{name}_lo"):
                low, value, high = (float(row[f"{name}{end}"]) for end in ("_lo", "", "_hi"))
                assert low <= value <= high
        assert float(row["usd_per_hour"]) > 0


def test_a_chosen_point_simulates_to_the_metrics_it_was_chosen_for(
    study: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    assert call("choose", study, "--knee", "--out", plan).exit_code == 0
    document = json.loads(call("simulate", study / "job.yaml", "--plan", plan, "--json").stdout)
    points = json.loads((study / "front.json").read_text())["points"]
    chosen = [point for point in points if point["metrics"] == document["metrics"]]
    assert len(chosen) == 1
    bands = {name: list(band) for name, band in chosen[0]["bands"].items()}
    assert {name: document["bands"][name] for name in bands} == bands
    predicted = document["metrics"].keys() - document["without_bands"].keys()
    assert document["bands"].keys() == predicted
    assert document["run"]["simulated_requests"] == 40


def test_the_table_is_the_same_whoever_evaluates(
    study: Path, tmp_path: Path, processes: None
) -> None:
    for workers in (1, 3):
        out = tmp_path / str(workers)
        result = call("optimize", study.parent / "job.yaml", "--out", out, "--workers", workers)
        assert result.exit_code == 0, result.stderr
        assert (out / "trials.csv").read_bytes() == (study / "trials.csv").read_bytes()


def test_an_evicted_pod_exits_130_and_its_replacement_goes_on(tmp_path: Path) -> None:
    evicted_and_replaced(tmp_path, "--workers", "2")


def test_a_chosen_point_can_be_deployed(study: Path, tmp_path: Path) -> None:
    point = json.loads((study / "front.json").read_text())["points"][0]["point_id"]
    result = call("export", f"{study}:{point}", "--target", "dynamo", "--out", tmp_path / "d")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "d" / "dynamo.yaml").is_file()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_poses_a_problem_with_plans(path: Path) -> None:
    problem = prepare(load_job(path))
    assert problem.space.size() > 1000
    assert not any("WARNING" in note or "dropped" in note for note in problem.notes)


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"deepseek-r1-h200", "kimi-k3-gb200"}
