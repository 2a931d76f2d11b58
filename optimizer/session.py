"""One run of a study in its directory: lock, storage, search, and the files that come of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import optuna

from optimizer.beginning import begun
from optimizer.directory import (
    StudyResults,
    finished_run,
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
from optimizer.execution.executor import Executor
from optimizer.fidelity.replication import settle
from optimizer.identity import Identity, claim
from optimizer.interrupt import Interrupt
from optimizer.job import Job
from optimizer.problem import Problem
from optimizer.proposing.draws import Parameters
from optimizer.storing.coordinator import coordinating, leading
from optimizer.storing.patience import patiently
from optimizer.storing.records import stored_trials
from optimizer.storing.storage import open_study, opened_storage, repair_journal
from optimizer.study import Search, Watch


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
    open_executor: Callable[[], Executor],
    watch: Watch,
    directory: Path,
    *,
    storage_url: str | None = None,
    seeds: Sequence[Parameters] = (),
) -> Outcome:
    """Start the study of a directory, or go on with it, and write its files.

    `seeds` become the first trials of a new study. An interrupt (Ctrl-C, SIGTERM) ends the search
    after the evaluations that run; what is done is kept and written. A storage that is away for a
    while is waited for. Raises `InputError` when another process works in the directory or on the
    study, or when the study is another job's.
    """
    # The executor before the interrupt, for Ray has a handler of its own for SIGTERM.
    with coordinating(directory), closing(open_executor()) as executor, Interrupt() as interrupt:
        if executor.workers > job.search.batch_size:
            watch.note(
                f"{executor.workers} workers, but a batch has {job.search.batch_size} trials: the "
                "others are idle; a new study may have a larger search.batch_size"
            )
        repaired = repair_journal(directory)
        place = _Place.of(job, problem, directory, storage_url)
        with leading(place.url, place.name, watch.note, interrupt.is_asked) as taken_over:

            def interrupted() -> str:
                return interrupt.asked or _interruption(taken_over())

            def attempt() -> tuple[StudyResults, str]:
                with place.opened(problem, seeds) as study:
                    beginning = begun(study, job, problem)
                    for text in beginning.told:
                        watch.note(text)
                    search = Search(
                        study=study,
                        problem=problem,
                        settings=job.search,
                        proposals=beginning.proposals,
                        executor=executor,
                        watch=watch,
                        interrupted=interrupted,
                    )
                    return _searched(search, place, job)

            results, stop_reason = patiently(attempt, watch.note, interrupt.is_asked)
            left_off = stop_reason if stop_reason == interrupted() else ""
    return Outcome(results, stop_reason, left_off, repaired)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a study is: its directory, the URL of its storage if that is elsewhere, its name."""

    directory: Path
    url: str | None
    name: str
    identity: Identity

    @classmethod
    def of(cls, job: Job, problem: Problem, directory: Path, url: str | None) -> _Place:
        run = read_run(directory)
        url = storage_of(directory, run, url)
        if url is not None:
            with opened_storage(directory, url):  # tells what is wrong with the URL, if anything
                pass
        identity = Identity.of(job, problem)
        name = run.get("study") or study_name(directory, url, _digest(identity))
        return cls(directory, url, name, identity)

    @contextmanager
    def opened(self, problem: Problem, seeds: Sequence[Parameters]) -> Iterator[optuna.Study]:
        """The study, made if need be, and made the job's."""
        with opened_storage(self.directory, self.url) as storage:
            study = open_study(storage, self.name, problem.objectives)
            claim(study, self.identity, str(self.directory), list(seeds))
            yield study


def _searched(search: Search, place: _Place, job: Job) -> tuple[StudyResults, str]:
    """Search, and write the files of the directory; the results, and why the search stopped."""
    started = time.perf_counter()
    directory = place.directory
    opening = started_run(place.name, place.url, job)
    write_run(directory, read_run(directory) | opening)
    write_job(directory, job)
    stop_reason = search.run()
    if job.search.replications > 1 and not search.interrupted():
        _settle(search, job)
    results = results_of(search.study)
    for text in results.replication_notes:
        search.watch.note(text)
    write_tables(directory, results)
    seconds = time.perf_counter() - started
    write_run(directory, opening | finished_run(results, seconds, stop_reason))
    write_review(directory, results)
    return results, stop_reason


def _settle(search: Search, job: Job) -> None:
    """Replicate what is near the front, unless that is interrupted."""
    records = [trial.record for trial in stored_trials(search.study)]
    search.watch.note("the search is over; the points near its front are simulated again")
    settle(
        search.study,
        search.problem,
        job.search,
        records,
        search.executor,
        lambda: bool(search.interrupted()),
    )


def _interruption(successor: str) -> str:
    return f"interrupted ({successor} took the study over)" if successor else ""


def _digest(identity: Identity) -> str:
    content = {"job": identity.without_budget(), "facts": dict(identity.facts)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
