"""A study's directory: what is in it, who may go on with it, how it is forked."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from optimizer.directory import read_results
from optimizer.job import Job, load_job
from optimizer.problem import prepare
from optimizer.session import Outcome
from results.tables import read_front
from spaces.documents import dump_yaml
from spaces.draw import RandomDraw
from spaces.errors import InputError
from tests.optimizer.toy import TRIALS, Silent, job_data, job_of, run

FEW = {"trials": 10, "batch_size": 4}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def trace_job(folder: Path, **keys: Any) -> Job:
    trace = folder / "trace.jsonl"
    if not trace.exists():
        trace.write_text('{"timestamp": 0, "input_length": 9, "output_length": 2}\n' * 3)
    return job_of(workload={"trace": str(trace)}, load={"concurrency": 2}, search=FEW, **keys)


def test_a_run_leaves_every_file_of_the_contract(tmp_path: Path, review: None) -> None:
    outcome = run(job_of(), tmp_path / "runs" / "a")
    directory = tmp_path / "runs" / "a"
    names = {path.name for path in directory.iterdir() if not path.name.startswith(".")}
    assert names == {
        "study.journal",
        "job.yaml",
        "trials.csv",
        "front.csv",
        "front.json",
        "front.png",
        "report.html",
        "history.csv",
        "timings.csv",
        "run.json",
    }
    trials = rows(directory / "trials.csv")
    assert next(iter(trials[0])) == "trial"
    assert [int(row["trial"]) for row in trials] == list(range(len(outcome.results.records)))
    assert [row["trial"] for row in rows(directory / "timings.csv")] == [
        row["trial"] for row in trials
    ]
    history = [float(row["hypervolume"]) for row in rows(directory / "history.csv")]
    assert history == sorted(history)
    assert history[-1] == pytest.approx(outcome.results.front.hypervolume)
    assert load_job(directory / "job.yaml") == job_of()
    assert read_front(directory) == outcome.results.front
    page = (directory / "report.html").read_text()
    assert "llama-3.1-8b on 8 h100" in page


def test_a_baseline_is_simulated_first_and_stands_beside_the_front(tmp_path: Path) -> None:
    space = prepare(job_of()).space
    known = space.plan(RandomDraw(4)).model_copy(update={"load": None})
    (tmp_path / "known.yaml").write_text(known.to_yaml())
    job = job_of(baseline=str(tmp_path / "known.yaml"), search=FEW)
    outcome = run(job, tmp_path / "study")
    loads = [load for load in space.loads if load is not None]
    assert [one.plan for one in outcome.results.baseline] == [known.at(load) for load in loads]
    assert all(one.metrics["ttft_p95_ms"] > 0 for one in outcome.results.baseline)
    first = [record.plan.plan_id for record in outcome.results.records[: len(loads)]]
    assert first == [known.plan_id] * len(loads)
    assert len(rows(tmp_path / "study" / "baseline.csv")) == len(loads)
    assert json.loads((tmp_path / "study" / "run.json").read_text())["sampler"]["name"]
    assert read_results(tmp_path / "study").baseline == outcome.results.baseline


def test_a_baseline_outside_the_space_is_simulated_all_the_same(tmp_path: Path) -> None:
    plan = prepare(job_of()).space.plan(RandomDraw(4))
    elsewhere = plan.model_copy(update={"engine": "sglang"})
    (tmp_path / "known.yaml").write_text(elsewhere.to_yaml())
    watch = Silent()
    job = job_of(baseline=str(tmp_path / "known.yaml"), search=FEW)
    outcome = run(job, tmp_path / "study", watch=watch)
    (only,) = outcome.results.baseline
    assert only.plan == elsewhere and only.state == "complete"
    assert elsewhere.plan_id not in {record.plan.plan_id for record in outcome.results.records}
    assert any("is not in the space of this job" in note for note in watch.notes)


def test_run_json_counts_the_study(tmp_path: Path) -> None:
    space = {"max_num_seqs": [256, 512], "topology": "aggregated", "pipeline_parallel": 1}
    job = job_of(space=space, search={"trials": 40, "seed": 2, "sampler": "tpe"})
    outcome = run(job, tmp_path)
    data = json.loads((tmp_path / "run.json").read_text())
    records = outcome.results.records
    unique = [record for record in records if record.same_as is None]
    assert data["trials"] == len(records)
    assert (data["unique"], data["cached"]) == (40, len(records) - 40)
    assert data["feasible"] == sum(record.feasible for record in unique)
    assert data["infeasible"] == sum(record.state == "infeasible" for record in unique) > 0
    assert data["failed"] == sum(record.state == "failed" for record in unique) > 0
    complete = sum(record.state == "complete" for record in unique)
    assert data["simulated_requests"] == 40 * complete
    assert data["hypervolume"] == outcome.results.front.hypervolume > 0
    assert data["reference_point"] == [0.0, 0.0]
    assert data["stop_reason"] == "the budget of 40 trials is used"
    assert data["seed"] == 2 and data["seconds"] > 0
    assert {"servefront", "optuna", "numpy", "python"} <= data["versions"].keys()


def test_results_are_made_again_from_the_storage_alone(tmp_path: Path) -> None:
    outcome = run(job_of(search=FEW), tmp_path)
    files = {
        name: (tmp_path / name).read_bytes() for name in ("trials.csv", "front.csv", "front.json")
    }
    for name in (*files, "job.yaml", "run.json", "timings.csv"):
        (tmp_path / name).unlink()
    again = read_results(tmp_path)
    assert again.records == outcome.results.records
    assert again.front == outcome.results.front
    assert again.job == job_of(search=FEW)


def test_a_second_run_of_a_finished_study_changes_nothing(tmp_path: Path) -> None:
    run(job_of(search=FEW), tmp_path)
    table = (tmp_path / "trials.csv").read_bytes()
    run(job_of(search=FEW), tmp_path)
    assert (tmp_path / "trials.csv").read_bytes() == table


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        ({"search": FEW | {"seed": 5}}, "search.seed: 1 -> 5"),
        ({"search": FEW | {"batch_size": 2}}, "search.batch_size: 4 -> 2"),
        ({"chips": {"h100": 4}}, "chips.h100.max: 8 -> 4"),
        ({"constraints": []}, "constraints: ['ttft_p95_ms <= 400'] -> []"),
        ({"load": {"concurrency": 3}}, "load.concurrency: [1, 10] -> [3, 3]"),
        ({"slo": {"ttft_ms": 9}}, "slo.ttft_ms: nothing -> 9.0"),
    ],
)
def test_a_changed_job_is_refused_with_its_old_and_new_values(
    tmp_path: Path, keys: dict[str, Any], change: str
) -> None:
    run(job_of(search=FEW), tmp_path)
    before = (tmp_path / "trials.csv").read_bytes()
    with pytest.raises(InputError) as caught:
        run(job_of(**({"search": FEW} | keys)), tmp_path)
    assert change in str(caught.value)
    assert "--fork NEWDIR" in caught.value.remedy
    assert caught.value.where == str(tmp_path)
    assert (tmp_path / "trials.csv").read_bytes() == before


def test_budget_and_time_limit_may_change(tmp_path: Path) -> None:
    run(job_of(search=FEW), tmp_path)
    outcome = run(job_of(search=FEW | {"trials": 14, "timeout_s": 60}), tmp_path)
    assert sum(record.same_as is None for record in outcome.results.records) == 14


def test_a_trace_may_move_but_not_change(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    run(trace_job(tmp_path / "old"), tmp_path / "study")
    run(trace_job(tmp_path / "new"), tmp_path / "study")
    trace = tmp_path / "old" / "trace.jsonl"
    trace.write_text(trace.read_text().replace("9", "8"))
    with pytest.raises(InputError, match=r"content of workload\.trace: [0-9a-f]{12} -> "):
        run(trace_job(tmp_path / "old"), tmp_path / "study")


def test_another_release_does_not_go_on_with_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job_of(search=FEW), tmp_path)
    monkeypatch.setattr("optimizer.identity.version", lambda _: "9.9")
    with pytest.raises(InputError, match=r"version of servefront: \S+ -> 9\.9"):
        run(job_of(search=FEW), tmp_path)


def test_a_storage_url_keeps_the_study_elsewhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    job = job_of(search={"trials": 4, "batch_size": 4})

    def run_with(storage: str | None, directory: Path) -> Outcome:
        return run(job, directory, storage_url=storage)

    there = run_with(url, tmp_path / "a")
    assert not (tmp_path / "a" / "study.journal").exists()
    assert read_results(tmp_path / "a").records == there.results.records
    assert run_with(None, tmp_path / "a").results.records == there.results.records
    here = run_with(None, tmp_path / "b")
    assert here.results.records == there.results.records
    with pytest.raises(InputError, match=r"is kept in study\.journal"):
        run_with(url, tmp_path / "b")
    with pytest.raises(InputError, match="is kept in sqlite"):
        run_with("sqlite:///other.db", tmp_path / "a")


def test_a_directory_does_not_keep_a_password(tmp_path: Path) -> None:
    run(job_of(search=FEW), tmp_path)
    data = json.loads((tmp_path / "run.json").read_text())
    data["storage"] = "postgresql://me:***@host/db"
    (tmp_path / "run.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="needs its password") as caught:
        read_results(tmp_path)
    assert "--storage" in caught.value.remedy


def test_an_interrupted_run_keeps_and_writes_what_is_done(tmp_path: Path) -> None:
    job = job_of()

    class Impatient(Silent):
        def told(self, trial: Any) -> None:
            super().told(trial)
            if len(self.records) == 6:
                os.kill(os.getpid(), signal.SIGTERM)

    former = signal.getsignal(signal.SIGTERM)
    outcome = run(job, tmp_path, watch=Impatient())
    assert signal.getsignal(signal.SIGTERM) == former
    assert outcome.interrupted == outcome.stop_reason == "interrupted (SIGTERM)"
    done = len(rows(tmp_path / "trials.csv"))
    assert 6 <= done < TRIALS
    assert json.loads((tmp_path / "run.json").read_text())["trials"] == done
    whole = run(job, tmp_path / "whole").results.records
    assert run(job, tmp_path).results.records == whole


def test_a_run_in_a_busy_directory_is_refused(tmp_path: Path) -> None:
    job = job_of(search=FEW)
    refused = []

    class Waiting(Silent):
        def told(self, trial: Any) -> None:
            with pytest.raises(InputError, match="another servefront is working") as caught:
                run(job, tmp_path)
            refused.append(caught.value)

    run(job, tmp_path, watch=Waiting())
    assert len(refused) >= 10 and refused[0].where == str(tmp_path)


def test_a_torn_journal_is_mended_and_told(tmp_path: Path) -> None:
    run(job_of(search=FEW), tmp_path)
    with (tmp_path / "study.journal").open("ab") as journal:
        journal.write(b'{"op_code":8,"wor')
    outcome = run(job_of(search=FEW | {"trials": 12}), tmp_path)
    assert outcome.repaired_bytes == 17
    assert sum(record.same_as is None for record in outcome.results.records) == 12


def test_a_directory_without_a_study_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no study here"):
        read_results(tmp_path)


def test_a_foreign_study_in_the_storage_is_left_alone(tmp_path: Path) -> None:
    from optimizer.storing.storage import open_storage, open_study
    from tests.optimizer.toy import STUDY

    tmp_path.mkdir(exist_ok=True)
    study = open_study(open_storage(tmp_path, None), STUDY, job_of().goals)
    study.tell(study.ask(), [1.0, 2.0])
    with pytest.raises(InputError, match="none of servefront's"):
        run(job_of(search=FEW), tmp_path)


def test_a_study_of_which_nothing_is_feasible_still_has_its_files(
    tmp_path: Path, review: None
) -> None:
    job = job_of(constraints=["ttft_p95_ms <= 1"], search=FEW)
    outcome = run(job, tmp_path)
    assert outcome.results.front.points == ()
    assert len(rows(tmp_path / "trials.csv")) == len(outcome.results.records)
    assert (tmp_path / "report.html").is_file()


def test_the_report_names_the_parameters_that_matter(tmp_path: Path, review: None) -> None:
    outcome = run(job_of(search={"trials": 40}, constraints=[]), tmp_path)
    assert outcome.results.front.points
    page = (tmp_path / "report.html").read_text()
    assert "aggregated.replicas" in page or "load" in page
    assert (tmp_path / "front.png").stat().st_size > 10_000


def test_a_job_file_of_the_directory_starts_the_same_study_again(tmp_path: Path) -> None:
    first = tmp_path / "job.yaml"
    first.write_text(dump_yaml(job_data(search=FEW)))
    run(load_job(first), tmp_path / "study")
    again = run(load_job(tmp_path / "study" / "job.yaml"), tmp_path / "study")
    assert len(again.results.records) >= 10


@pytest.mark.parametrize(("workers", "told"), [(4, False), (5, True)])
def test_workers_that_a_batch_leaves_idle_are_told(
    tmp_path: Path, workers: int, told: bool
) -> None:
    watch = Silent()
    run(job_of(search=FEW), tmp_path, workers=workers, watch=watch)
    assert any("5 workers, but a batch has 4 trials" in note for note in watch.notes) == told
