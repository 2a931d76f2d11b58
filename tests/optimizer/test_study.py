"""The laws of the search: nothing is lost, nothing depends on chance, nothing counts twice."""

from __future__ import annotations

import itertools
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from optimizer.evaluate import Evaluation
from optimizer.execution.executor import Evaluate, LocalExecutor, UnderWay
from optimizer.job import DEFAULT_OBJECTIVES
from optimizer.problem import prepare
from optimizer.proposing.draws import all_parameters
from optimizer.storing.storage import JOURNAL, Journal, open_storage, repair_journal
from optimizer.study import Search
from results.front import pareto_front
from results.trials import TrialRecord
from spaces.plan import DeploymentPlan
from tests.conftest import REPOSITORY
from tests.optimizer.toy import STUDY, TRIALS, evaluator, job_of, run, searched, small_space

SEEDED = ("tpe", "nsga2", "qmc", "random")
SAMPLERS = ("estimate", "exhaustive", *SEEDED)
GP = pytest.param(
    "gp",
    marks=pytest.mark.skipif(
        find_spec("torch") is None, reason="the Gaussian process needs PyTorch (extra gp)"
    ),
)


TPE = {"sampler": "tpe"}


class Killed(BaseException):
    """The process is gone."""


def kill_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Let the journal take so many records more; the next one is torn in the middle."""
    append = Journal.append_logs
    left = itertools.count(writes, -1)

    def append_or_die(self: Journal, logs: list[dict[str, Any]]) -> None:
        if next(left) > 0:
            append(self, logs)
            return
        with self._path.open("ab") as file:
            file.write(b'{"op_code":8,"worker_id":"x","tri')
        raise Killed

    monkeypatch.setattr(Journal, "append_logs", append_or_die)


def stored(directory: Path) -> list[optuna.trial.FrozenTrial]:
    study = optuna.load_study(study_name=STUDY, storage=open_storage(directory, None))
    return study.get_trials(deepcopy=False)


@pytest.mark.parametrize("sampler", [*SEEDED, GP])
def test_same_seed_gives_the_same_study_and_another_seed_another(
    tmp_path: Path, sampler: str
) -> None:
    def records(seed: int, name: str) -> list[TrialRecord]:
        search = {"trials": TRIALS, "batch_size": 4, "sampler": sampler, "seed": seed}
        return searched(job_of(search=search), tmp_path / name).records

    first = records(1, "a")
    assert first == records(1, "b")
    assert [r.plan for r in first] != [r.plan for r in records(2, "c")]


@pytest.mark.parametrize("sampler", [*SAMPLERS, GP])
def test_a_search_killed_at_any_write_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    job = job_of(search={"trials": 26, "batch_size": 4, "sampler": sampler, "seed": 3})
    whole = searched(job, tmp_path / "whole").records
    directory, chance, kills = tmp_path / "killed", random.Random(7), 0
    directory.mkdir()
    while True:
        with monkeypatch.context() as patch:
            kill_after(patch, chance.randrange(3, 60))
            try:
                records = searched(job, directory).records
                break
            except Killed:
                kills += 1
        assert repair_journal(directory) > 0
    assert kills >= 4
    assert records == whole
    assert all(trial.state == TrialState.COMPLETE for trial in stored(directory))


def test_a_search_ends_the_same_wherever_the_first_batch_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(search=TPE | {"trials": 3, "batch_size": 3, "seed": 5})
    whole = searched(job, tmp_path / "whole", known=None).records
    writes = (tmp_path / "whole" / JOURNAL).read_bytes().count(b"\n")
    for write in range(3, writes, 2):
        directory = tmp_path / f"killed-{write}"
        with monkeypatch.context() as patch:
            kill_after(patch, write)
            with pytest.raises(Killed):
                searched(job, directory, known=None)
        repair_journal(directory)
        assert searched(job, directory, known=None).records == whole, (
            f"killed after {write} of {writes}"
        )


def test_a_process_killed_outright_goes_on_to_the_same_table(tmp_path: Path) -> None:
    journal = tmp_path / "killed" / JOURNAL
    command = [sys.executable, "-m", "tests.optimizer.toy", str(journal.parent), "0.1"]
    process = subprocess.Popen(command, cwd=REPOSITORY)
    end = time.monotonic() + 60
    while not (journal.is_file() and journal.read_bytes().count(b'"outcome"') > 3):
        assert time.monotonic() < end, "the search did not get under way"
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 0 < sum(trial.state == TrialState.COMPLETE for trial in stored(journal.parent)) < TRIALS
    run(job_of(), journal.parent, workers=3)
    table = (journal.parent / "trials.csv").read_text()
    assert table == searched(job_of(), tmp_path / "whole").table


def test_the_number_of_workers_changes_no_byte_of_the_table(tmp_path: Path) -> None:
    one = searched(job_of(), tmp_path / "one", workers=1, seconds=0.002)
    three = searched(job_of(), tmp_path / "three", workers=3, seconds=0.002)
    assert one.table == three.table


class Noting(LocalExecutor):
    """Notes which plans it took, and which evaluation was taken from it."""

    log: list[str]

    def evaluate(self, plans: Iterable[Any], cancelled: Callable[[], bool]) -> UnderWay:
        taken = list(plans)
        self.log.append(f"took {len(taken)}")
        results = super().evaluate(taken, cancelled)

        def noted() -> Generator[Evaluation]:
            for evaluation in results:
                self.log.append("told")
                yield evaluation

        return UnderWay(noted(), results.close)


@pytest.mark.parametrize(
    ("sampler", "parts"), [("estimate", (4, 2)), ("random", (4, 2)), ("tpe", (8, 1))]
)
def test_the_next_part_is_at_work_while_the_one_before_is_told_where_the_sampler_looks_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str, parts: tuple[int, int]
) -> None:
    size, depth = parts
    log: list[str] = []
    monkeypatch.setattr(Noting, "log", log, raising=False)
    monkeypatch.setattr("tests.optimizer.toy.LocalExecutor", Noting)
    search = {"trials": 32, "batch_size": 8, "sampler": sampler}
    searched(job_of(search=search), tmp_path, known=None)
    ahead = list(itertools.accumulate({"took": size, "told": -1}[one.split()[0]] for one in log))
    assert log.count(f"took {size}") == 32 // size
    assert max(ahead) == size * depth
    assert min(ahead[: -size - 1]) == size * (depth - 1)


@dataclass(frozen=True)
class Otherwise:
    """An evaluator that finds other values for the plans of some trials."""

    evaluate: Evaluate
    changed: frozenset[str]

    def __call__(self, plan: DeploymentPlan) -> Evaluation:
        found = self.evaluate(plan)
        if plan.point_id not in self.changed:
            return found
        return replace(found, metrics={name: 3 * value for name, value in found.metrics.items()})


@pytest.mark.parametrize("sampler", ["estimate", "exhaustive", "qmc", "random"])
def test_what_is_asked_does_not_hang_on_the_values_under_way(tmp_path: Path, sampler: str) -> None:
    """With parts of four, trials 20 to 23 are asked while 16 to 19 are evaluated."""
    search = {"trials": 32, "batch_size": 8, "sampler": sampler}
    job = job_of(search=search, load={"concurrency": [1, 64]})
    first = searched(job, tmp_path / "first").records
    changed = frozenset(record.plan.point_id for record in first[16:20])
    evaluate = Otherwise(evaluator(prepare(job)), changed)
    second = searched(job, tmp_path / "second", evaluate=evaluate).records
    assert [r.metrics for r in first[16:20]] != [r.metrics for r in second[16:20]]
    assert [r.plan for r in first[:24]] == [r.plan for r in second[:24]]
    if sampler == "estimate":
        assert [r.plan for r in first[24:]] != [r.plan for r in second[24:]]


def test_a_repeated_point_is_told_the_first_values_and_counts_once(tmp_path: Path) -> None:
    job = job_of(space=small_space(), load={"concurrency": [1, 4]}, search=TPE | {"trials": 20})
    found = searched(job, tmp_path)
    assert len(found.unique) == 20 == len({record.plan.point_id for record in found.records})
    assert len(found.records) > 20
    for record in found.records:
        if record.same_as is not None:
            original = found.records[record.same_as]
            assert original.same_as is None and original.trial < record.trial
            assert original.plan.point_id == record.plan.point_id
            assert (record.metrics, record.bands) == (original.metrics, original.bands)


def test_a_repeated_point_is_not_evaluated_again(tmp_path: Path) -> None:
    outcome = run(job_of(space=small_space(), search=TPE | {"trials": 24}), tmp_path)
    trials = outcome.results.trials
    assert any(trial.record.same_as is not None for trial in trials)
    for trial in trials:
        repeat = trial.record.same_as is not None
        assert (trial.evaluation.simulated_requests == 0) == repeat


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_small_space_is_finished_to_the_last_point(tmp_path: Path, sampler: str) -> None:
    search = {"trials": 500, "batch_size": 4, "sampler": sampler}
    job = job_of(space=small_space(), load={"concurrency": [1, 4]}, search=search)
    space = prepare(job).space
    found = searched(job, tmp_path)
    points = {record.plan.point_id for record in found.records}
    assert points == {point_id for point_id, _ in all_parameters(space)}
    assert len(found.unique) == space.size()
    assert found.stop_reason == f"all {space.size()} points of the space are evaluated"


def test_a_space_that_cannot_be_counted_is_given_up_after_five_barren_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.proposing.proposals.COUNTABLE", 0)
    monkeypatch.setattr("optimizer.proposing.proposals.trial_seed", lambda *_: 1)
    search = {"trials": 500, "batch_size": 3, "sampler": "random"}
    found = searched(job_of(search=search), tmp_path)
    assert len(found.unique) == 1
    assert [record.same_as for record in found.records[1:]] == [0] * (len(found.records) - 1)
    assert 15 <= len(found.records) - 1 < 18
    assert "the last 15 trials asked for nothing new" in found.stop_reason


def test_a_space_of_one_point_takes_one_trial(tmp_path: Path) -> None:
    options = small_space() | {"max_num_batched_tokens": 2048}
    job = job_of(chips={"h100": 2}, space=options, load={"concurrency": 4})
    assert len(searched(job, tmp_path).records) == 1


def test_a_larger_budget_continues_a_study(tmp_path: Path) -> None:
    searched(job_of(search={"trials": 8, "batch_size": 4}), tmp_path / "a")
    grown = searched(job_of(search={"trials": 20, "batch_size": 4}), tmp_path / "a")
    whole = searched(job_of(search={"trials": 20, "batch_size": 4}), tmp_path / "b")
    assert len(grown.unique) == 20
    assert grown.records == whole.records


def test_seeds_come_first(tmp_path: Path) -> None:
    job = job_of()
    some = list(itertools.islice(all_parameters(prepare(job).space), 100, 106))
    found = searched(job, tmp_path, known=[parameters for _, parameters in some])
    assert [r.plan.point_id for r in found.records[:6]] == [point_id for point_id, _ in some]


def test_time_limit_stops_the_search_and_the_rest_is_asked_again(tmp_path: Path) -> None:
    search = TPE | {"trials": TRIALS, "batch_size": 4}
    cut = job_of(search=search | {"timeout_s": 0.3})
    found = searched(cut, tmp_path / "a", seconds=0.03)
    assert 0 < len(found.records) < TRIALS
    assert found.stop_reason == "the time limit of 0.3 s is reached"
    whole = searched(job_of(search=search), tmp_path / "b")
    assert searched(job_of(search=search), tmp_path / "a").table == whole.table


def test_an_interrupt_leaves_the_batch_asked_and_loses_nothing(tmp_path: Path) -> None:
    asked = itertools.count()
    found = searched(
        job_of(),
        tmp_path / "a",
        seconds=0.002,
        interrupted=lambda: "interrupted" if next(asked) > 20 else "",
    )
    assert found.stop_reason == "interrupted"
    assert 0 < len(found.records) < TRIALS
    whole = searched(job_of(), tmp_path / "b")
    assert searched(job_of(), tmp_path / "a").table == whole.table


@pytest.mark.parametrize("more", [1, 2])
@pytest.mark.parametrize("sampler", [*SAMPLERS, GP])
def test_every_sampler_searches_for_three_and_four_objectives(
    tmp_path: Path, sampler: str, more: int
) -> None:
    further = ["minimize ttft_p95_ms", "minimize chips"][:more]
    search = {"trials": 24, "batch_size": 4, "sampler": sampler}
    job = job_of(objectives=[*DEFAULT_OBJECTIVES, *further], constraints=[], search=search)
    found = searched(job, tmp_path)
    front = pareto_front(found.records, job.goals)
    assert len(found.unique) == 24
    assert len(front.objectives) == 2 + more
    assert len(front.points) > 1 and front.hypervolume > 0
    assert {len(trial.values) for trial in stored(tmp_path)} == {2 + more}


@pytest.mark.parametrize("sampler", SEEDED)
def test_infeasible_and_failed_plans_are_told_as_broken_constraints_never_as_failures(
    tmp_path: Path, sampler: str
) -> None:
    options = {"max_num_seqs": [64, 256, 512], "topology": "aggregated"}
    search = {"trials": 40, "sampler": sampler, "seed": 2}
    found = searched(job_of(space=options, search=search), tmp_path)
    assert {record.state for record in found.records} == {"complete", "infeasible", "failed"}
    for trial, record in zip(stored(tmp_path), found.records, strict=True):
        assert trial.state == TrialState.COMPLETE
        assert all(math.isfinite(value) for value in trial.values)
        assert all(size <= 0 for size in trial.constraints.values()) == record.feasible
        assert trial.constraints == dict(record.violations)


def test_search_beats_chance_on_the_front(tmp_path: Path) -> None:
    def volume(sampler: str, seed: int) -> float:
        search = {"trials": 80, "sampler": sampler, "seed": seed}
        job = job_of(load={"concurrency": [1, 64]}, search=search)
        records = searched(job, tmp_path / f"{sampler}{seed}").records
        return pareto_front(records, job.goals).hypervolume

    seeds = range(1, 5)
    assert sum(volume("tpe", s) for s in seeds) > sum(volume("random", s) for s in seeds)


def test_repeats_of_a_batch_are_made_up_for_by_neighbours_of_the_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.study.sampler_for", lambda *_: RandomSampler(seed=1))
    monkeypatch.setattr("optimizer.proposing.proposals.STARTUP_TRIALS", 0)
    search = {"trials": 20, "batch_size": 5, "sampler": "tpe"}
    found = searched(job_of(search=search), tmp_path, known=None)
    asked = [found.records[n : n + 5] for n in range(0, len(found.records), 5)]
    for before, batch in itertools.pairwise(asked):
        repeats = sum(record.same_as is not None for record in before)
        new = sum(record.same_as is None for record in batch)
        assert new == min(repeats, len(batch)) or before is asked[0]
    assert len(found.unique) == 20


def test_most_of_a_later_batch_refines_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.proposing.proposals.REFINE_FROM", 16)
    monkeypatch.setattr("optimizer.proposing.proposals.STARTUP_TRIALS", 0)
    put: set[int] = set()
    whole = Search._put

    def noted(self: Search, number: int, *rest: Any) -> Any:
        put.add(number)
        return whole(self, number, *rest)

    monkeypatch.setattr(Search, "_put", noted)
    search = {"trials": 32, "batch_size": 8, "sampler": "tpe"}
    searched(job_of(search=search), tmp_path, known=None)
    given = [number in put for number in range(len(stored(tmp_path)))]
    assert all(sum(given[n : n + 8]) >= 6 for n in range(16, len(given) - 7, 8))
    assert sum(given[:16]) < 6


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_a_search_that_models_begins_with_points_spread_evenly(
    tmp_path: Path, sampler: str
) -> None:
    job = job_of(search={"trials": 16, "batch_size": 4, "sampler": sampler, "seed": 5})
    found = searched(job, tmp_path / sampler, known=None)
    spread = searched(
        job_of(search={"trials": 16, "batch_size": 4, "sampler": "qmc", "seed": 5}),
        tmp_path / "qmc",
    )
    assert found.records == spread.records


def test_given_trials_become_parents_of_nsga2(tmp_path: Path) -> None:
    job = job_of(search={"trials": 12, "batch_size": 4, "sampler": "nsga2"})
    some = list(itertools.islice(all_parameters(prepare(job).space), 100, 106))
    searched(job, tmp_path, known=[parameters for _, parameters in some])
    generations = [
        next(v for k, v in trial.system_attrs.items() if k.endswith(":generation"))
        for trial in stored(tmp_path)
    ]
    assert generations == [0] * 12


def test_no_growth_of_the_hypervolume_ends_the_search(tmp_path: Path) -> None:
    job = job_of(search={"trials": 400, "patience": 30, "batch_size": 5, "sampler": "estimate"})
    found = searched(job, tmp_path)
    assert found.stop_reason.startswith("the hypervolume has not grown for ")
    assert 30 < len(found.unique) < 400
    before = pareto_front(found.unique[:-30], job.goals).hypervolume
    assert pareto_front(found.unique, job.goals).hypervolume == pytest.approx(before, rel=1e-3)


def test_the_budget_decides_what_auto_means_and_a_larger_one_does_not_change_it(
    tmp_path: Path,
) -> None:
    def sampler(name: str, **search: Any) -> str:
        job = job_of(space=small_space(), search=search)
        return searched(job, tmp_path / name).sampler

    size = prepare(job_of(space=small_space())).space.size()
    assert sampler("few", trials=10).startswith("sampler estimate: all ")
    assert sampler("all", trials=size).startswith("sampler exhaustive: the budget of ")
    assert sampler("few", trials=size).startswith("sampler estimate: all ")
