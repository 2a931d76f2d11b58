"""A study's directory: what a search writes into it, and how results are read back."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import optuna

from objectives.goals import Constraint, Objective
from objectives.provenance import Provenance
from optimizer.beginning import baseline_of, sampler_of
from optimizer.evaluate import Evaluation
from optimizer.fidelity.replication import contenders_of, in_words, settled_of
from optimizer.identity import PROVENANCE
from optimizer.importance import importances
from optimizer.job import Job
from optimizer.proposing.candidates import wanted_metrics
from optimizer.storing.records import StoredTrial, stored_trials
from optimizer.storing.storage import HIDDEN, JOURNAL, anchored, open_storage, without_password
from results.files import write_atomically
from results.front import (
    ParetoFront,
    default_reference_point,
    hypervolume_history,
    pareto_front,
)
from results.plots import draw_front
from results.replication import settled_records
from results.report import write_report
from results.tables import to_csv, trials_frame, write_results
from results.trials import TrialRecord
from results.words import baseline_in_words
from spaces.documents import dump_yaml, read_text, validated
from spaces.errors import InputError

RUN, JOB = "run.json", "job.yaml"
VERSIONED = ("servefront", "optuna", "numba", "numpy", "moocore")
NAME_IN_OWN_JOURNAL = "servefront"
STORAGE_VARIABLE = "SERVEFRONT_STORAGE"


@dataclass(frozen=True, slots=True)
class StudyResults:
    """What a study has found so far, made from its storage alone.

    `records` hold the values of trials. `settled` are the same with what replications say of some
    of them, and `front` is made of those; `replication_notes` are that in sentences.
    """

    study: optuna.Study
    job: Job
    trials: tuple[StoredTrial, ...]
    records: tuple[TrialRecord, ...]
    front: ParetoFront
    notes: tuple[str, ...]
    baseline: tuple[TrialRecord, ...] = ()
    settled: tuple[TrialRecord, ...] = ()
    replication_notes: tuple[str, ...] = ()

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives of the study."""
        return self.job.goals

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints of the study."""
        return self.job.bounds


def results_of(study: optuna.Study) -> StudyResults:
    """The results of a study whose job is known."""
    job = validated(Job, study.user_attrs["job"], f"study {study.study_name}")
    trials = tuple(stored_trials(study))
    records = tuple(trial.record for trial in trials)
    settled, told = _settled(study, job, records)
    reference = default_reference_point(records, job.goals, job.bounds)
    again = [record for record in settled if record.replicated is not None]
    front = pareto_front(again or settled, job.goals, reference)
    notes = (*study.user_attrs.get("notes", ()), *told)
    return StudyResults(
        study, job, trials, records, front, notes, baseline_of(study), settled, told
    )


def _settled(
    study: optuna.Study, job: Job, records: Sequence[TrialRecord]
) -> tuple[tuple[TrialRecord, ...], tuple[str, ...]]:
    """The records with what replications say of some of them, and that in sentences."""
    ended = settled_of(study, len(records))
    if ended is None:
        return tuple(records), ()
    contenders = contenders_of(study, ended, records)
    again = settled_records(contenders, job.goals, job.bounds, ended.confidence)
    known = {record.trial: record for record in again}
    settled = tuple(known.get(record.trial, record) for record in records)
    luck = pareto_front(records, job.goals, constraints=job.bounds)
    kept = {point.plan.point_id for point in pareto_front(again, job.goals).points}
    lost = sum(point.plan.point_id not in kept for point in luck.points)
    return settled, tuple(in_words(ended, lost, len(luck.points)))


def read_results(directory: Path, storage_url: str | None = None) -> StudyResults:
    """The results of the study in `directory`, finished or not.

    A storage with a password must be named again, because the directory does not keep it. Raises
    `InputError` where there is no study.
    """
    run = read_run(directory)
    url = storage_of(directory, run, storage_url)
    if url is None and not (directory / JOURNAL).is_file():
        raise InputError(
            f"there is no study here: {JOURNAL} is missing",
            where=str(directory),
            remedy="give the directory that `servefront optimize` wrote",
        )
    storage = open_storage(directory, url)
    name = str(run.get("study", study_name(directory, url, "")))
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        raise InputError(
            "the storage holds no such study",
            where=str(directory),
            key="study",
            value=name,
            remedy="start it with `servefront optimize`",
        ) from None
    if "job" not in study.user_attrs:
        raise InputError("the study has not begun", where=str(directory), remedy="run it again")
    return results_of(study)


def storage_of(directory: Path, run: Mapping[str, Any], url: str | None) -> str | None:
    """The URL of the storage a directory's study is kept in; None for its journal.

    `run` is the content of run.json, `url` what the user asks for. The environment variable
    SERVEFRONT_STORAGE is asked for a new study and for the password of an old one. Raises
    `InputError` when `url` is another storage than run.json names, or no password is known.
    """
    url = None if url is None else anchored(url)
    variable = os.environ.get(STORAGE_VARIABLE)
    from_variable = anchored(variable) if variable else None
    if "study" not in run:
        return url or from_variable
    noted = run.get("storage")
    if url is not None and without_password(url) != noted:
        raise InputError(
            f"the study of this directory is kept in {noted or JOURNAL}",
            where=str(directory),
            key="--storage",
            value=without_password(url),
            remedy="leave --storage out, or choose another directory",
        )
    if url is not None or noted is None or HIDDEN not in noted:
        return url or noted
    if from_variable is not None and without_password(from_variable) == noted:
        return from_variable
    raise InputError(
        "the storage needs its password, which the directory does not keep",
        where=str(directory),
        key="storage",
        value=noted,
        remedy=f"give the whole URL with --storage or {STORAGE_VARIABLE}",
    )


def study_name(directory: Path, url: str | None, job_digest: str) -> str:
    """What the study of a directory is called; in a shared storage names must differ."""
    if url is None:
        return NAME_IN_OWN_JOURNAL
    return f"{directory.resolve().name}-{job_digest[:8]}"


def read_run(directory: Path) -> dict[str, Any]:
    """The content of run.json, or nothing where it is missing."""
    path = directory / RUN
    if not path.is_file():
        return {}
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"the file must be JSON ({error})", where=str(path)) from None
    return data if isinstance(data, dict) else {}


def write_run(directory: Path, content: Mapping[str, Any]) -> None:
    """Write run.json."""
    write_atomically(directory / RUN, json.dumps(content, indent=2) + "\n")


def started_run(name: str, url: str | None, job: Job) -> dict[str, Any]:
    """What run.json says from the start: where the study is kept, and made by what."""
    return {
        "study": name,
        "storage": None if url is None else without_password(url),
        "versions": {"python": platform.python_version()}
        | {library: version(library) for library in VERSIONED},
        "seed": job.search.seed,
        "stop_reason": "running or killed",
    }


def finished_run(results: StudyResults, seconds: float, stop_reason: str) -> dict[str, Any]:
    """What run.json says at the end; counts are of the whole study, `seconds` of this run."""
    first = [trial for trial in results.trials if trial.record.same_as is None]
    unique = [trial for trial in first if trial.record.state != "pruned"]
    shorts = [trial.short for trial in first if trial.short is not None]
    states = [trial.record.state for trial in unique]
    return {
        "seconds": round(seconds, 3),
        "evaluation_seconds": round(sum(t.evaluation.seconds for t in unique), 3),
        "trials": len(results.trials),
        "unique": len(unique),
        "cached": len(results.trials) - len(first),
        "pruned": len(first) - len(unique),
        "short_simulations": len(shorts),
        "short_simulated_requests": sum(short.simulated_requests for short in shorts),
        "replication_simulations": sum(
            record.replicated.count - 1
            for record in results.settled
            if record.replicated is not None
        ),
        "feasible": sum(trial.record.feasible for trial in unique),
        "infeasible": states.count("infeasible"),
        "failed": states.count("failed"),
        "simulated_requests": sum(trial.evaluation.simulated_requests for trial in unique),
        "objectives": list(results.job.objectives),
        "reference_point": list(results.front.reference_point),
        "hypervolume": results.front.hypervolume,
        "sampler": asdict(sampler_of(results.study)),
        "stop_reason": stop_reason,
        "notes": list(results.notes),
    }


def write_job(directory: Path, job: Job) -> None:
    """Write job.yaml, the resolved job."""
    write_atomically(directory / JOB, job.to_yaml())


def write_tables(directory: Path, results: StudyResults) -> None:
    """Write trials.csv, front.csv, front.json, history.csv, timings.csv; where the job names a
    baseline, baseline.csv; where there were short simulations, short.csv.
    """
    write_results(directory, results.records, results.front)
    write_atomically(directory / "history.csv", _history_table(results))
    if results.baseline:
        write_atomically(directory / "baseline.csv", to_csv(trials_frame(results.baseline)))
    if any(trial.short is not None for trial in results.trials):
        write_atomically(directory / "short.csv", short_table(results))
    write_atomically(directory / "timings.csv", _timings(results.trials))


def write_review(directory: Path, results: StudyResults) -> None:
    """Write front.png and report.html."""
    title = f"{results.job.model} on {_budget(results.job)}"
    draw_front(
        directory / "front.png",
        results.settled,
        results.front,
        title=title,
        baseline=results.baseline,
    )
    write_report(
        directory / "report.html",
        title=title,
        job_yaml=dump_yaml(results.job.resolved()),
        trials=results.settled,
        front=results.front,
        history=_history(results),
        notes=(*results.notes, *baseline_in_words(results.baseline, results.objectives)),
        importances=importances(results.study, results.objectives),
        provenance=_provenance(results.study),
    )


def _provenance(study: optuna.Study) -> Provenance | None:
    """What the study's predictions rest on; studies of older versions do not tell."""
    told = study.user_attrs.get(PROVENANCE)
    return None if told is None else validated(Provenance, told, f"study {study.study_name}")


def short_table(results: StudyResults) -> str:
    """The short simulations: what they found of the goals, and what became of their plans.

    These are no values of trials. `state` is `pruned` where the plan was not promoted.
    """
    metrics = wanted_metrics(results.objectives, results.constraints)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    columns = [f"{metric}_short" for metric in metrics]
    rows.writerow(["trial", "point_id", "state", "simulated_requests", *columns])
    for trial in results.trials:
        if trial.short is not None:
            record, found = trial.record, trial.short.metrics
            values = [repr(found[name]) if name in found else "" for name in metrics]
            asked = trial.short.simulated_requests
            rows.writerow([record.trial, record.plan.point_id, record.state, asked, *values])
    return text.getvalue()


def _history_table(results: StudyResults) -> str:
    """The hypervolume after each trial."""
    pairs = zip(results.records, _history(results), strict=False)
    rows = [f"{record.trial},{volume!r}" for record, volume in pairs]
    return "\n".join(["trial,hypervolume", *rows]) + "\n"


def _history(results: StudyResults) -> Sequence[float]:
    if not results.front.reference_point:
        return []
    return hypervolume_history(results.records, results.objectives, results.front.reference_point)


def _budget(job: Job) -> str:
    return " + ".join(f"{chips.max} {kind}" for kind, chips in job.chips.items())


def _timings(trials: Sequence[StoredTrial]) -> str:
    """Seconds of each trial's simulation, and of the short one before it (empty without)."""
    rows = [
        f"{t.record.trial},{_seconds(t.evaluation)},{_seconds(t.short) if t.short else ','}"
        for t in trials
    ]
    heading = "trial,seconds,simulation_cpu_s,short_seconds,short_simulation_cpu_s"
    return "\n".join([heading, *rows]) + "\n"


def _seconds(found: Evaluation) -> str:
    return f"{found.seconds:.6f},{found.simulation_cpu_s:.6f}"
