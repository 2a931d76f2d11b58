"""One run of a study in its directory: lock, storage, search, and the files that come of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna

from optimizer.directory import (
    StudyResults,
    finished_run,
    read_results,
    read_run,
    results_of,
    started_run,
    storage_of,
    study_name,
    write_job,
    write_review,
    write_run,
    write_tables,
)
from optimizer.draws import Parameters, parameters_of
from optimizer.executor import Evaluate, LocalExecutor
from optimizer.identity import Identity, claim
from optimizer.interrupt import Interrupt
from optimizer.job import Job
from optimizer.problem import Problem
from optimizer.storage import coordinating, open_storage, open_study, repair_journal
from optimizer.study import Search, Watch
from spaces.space import SearchSpace


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended and what the study holds now; `interrupted` is empty unless it was."""

    results: StudyResults
    stop_reason: str
    interrupted: str
    repaired_bytes: int


def run_study(
    job: Job,
    problem: Problem,
    evaluate: Evaluate,
    watch: Watch,
    directory: Path,
    *,
    workers: int,
    storage_url: str | None = None,
    seeds: Sequence[Parameters] = (),
) -> Outcome:
    """Start the study of a directory, or go on with it, and write its files.

    `seeds` become the first trials of a new study. An interrupt (Ctrl-C, SIGTERM) ends the search
    after the evaluations that run; what is done is kept and written. Raises `InputError` when
    another process works in the directory, or when its study is another job's.
    """
    started = time.perf_counter()
    with coordinating(directory), Interrupt() as interrupt:
        repaired = repair_journal(directory)
        study, url = _study(job, problem, directory, storage_url, seeds)
        opening = started_run(study.study_name, url, job)
        write_run(directory, read_run(directory) | opening)
        write_job(directory, job)
        executor = LocalExecutor(evaluate, workers)
        try:
            search = Search(
                study=study,
                space=problem.space,
                objectives=problem.objectives,
                settings=job.search,
                executor=executor,
                watch=watch,
                interrupted=lambda: interrupt.asked,
                seeds=study.user_attrs["seeds"],
            )
            stop_reason = search.run()
        finally:
            executor.close()
        results = results_of(study)
        write_tables(directory, results)
        seconds = time.perf_counter() - started
        write_run(directory, opening | finished_run(results, seconds, stop_reason))
        write_review(directory, results)
    interrupted = stop_reason if stop_reason == interrupt.asked else ""
    return Outcome(results, stop_reason, interrupted, repaired)


def fork_seeds(
    directory: Path, storage_url: str | None, space: SearchSpace
) -> tuple[list[Parameters], int]:
    """Parameters in `space` of a study's front, and how many points of it the space lacks."""
    elsewhere = read_run(directory).get("storage") is not None
    front = read_results(directory, storage_url if elsewhere else None).front
    found = [parameters_of(point.plan, space) for point in front.points]
    seeds = [parameters for parameters in found if parameters is not None]
    return seeds, len(found) - len(seeds)


def _study(
    job: Job,
    problem: Problem,
    directory: Path,
    storage_url: str | None,
    seeds: Sequence[Parameters],
) -> tuple[optuna.Study, str | None]:
    """The directory's study, made this job's, and the URL of its storage, if that is elsewhere."""
    run = read_run(directory)
    url = storage_of(directory, run, storage_url)
    identity = Identity.of(job, problem)
    name = run.get("study") or study_name(directory, url, _digest(identity))
    study = open_study(open_storage(directory, url), name, problem.objectives)
    claim(study, identity, str(directory), list(seeds))
    return study, url


def _digest(identity: Identity) -> str:
    content = {"job": identity.without_budget(), "facts": dict(identity.facts)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
