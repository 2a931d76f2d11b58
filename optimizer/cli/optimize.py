"""servefront optimize"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optimizer.cli.errors import INTERRUPTED, SOME_FAILED
from optimizer.cli.front import show_front
from optimizer.cli.talk import say, show

if TYPE_CHECKING:
    from optimizer.directory import StudyResults
    from optimizer.execution.executor import Executor
    from optimizer.fork import Fork
    from optimizer.job import Job
    from optimizer.problem import Problem
    from optimizer.proposing.draws import Parameters

TIMED_PLANS = 3


def optimize(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Study directory; an old study there goes on.", show_default="runs/JOB"),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Points to evaluate, in place of the job's.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds to search at most.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of search and simulation.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Evaluations at a time.", show_default="all cores")
    ] = None,
    executor: Annotated[
        str,
        typer.Option(
            metavar="local|ray[:ADDRESS]",
            help="Who evaluates: this machine, or a Ray cluster (that of RAY_ADDRESS or of this "
            "machine where no address is given).",
        ),
    ] = "local",
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An Optuna storage, in place of the study's journal; also SERVEFRONT_STORAGE.",
        ),
    ] = None,
    fork: Annotated[
        Path | None,
        typer.Option(metavar="NEWDIR", help="Start a study here with what that in --out found."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be searched and how long it would take."),
    ] = False,
) -> None:
    """Search the plans of a job and leave the Pareto front in a study directory."""
    from optimizer.evaluate import Evaluator
    from optimizer.execution.executors import opened_executor
    from optimizer.problem import posed
    from spaces.unused import unused_values

    wanted, problem = posed(job, trials=trials, timeout_s=timeout, seed=seed)
    for note in (*problem.notes, *unused_values(problem.space)):
        say(f"note: {note}")
    if dry_run:
        _dry_run(wanted, problem)
        return
    directory = out or Path("runs") / job.stem
    opened: Callable[[], Executor] = partial(
        opened_executor, executor, Evaluator.of(problem), workers
    )
    seeds: Sequence[Parameters] = ()
    if fork is not None:
        taken = _taken_over(directory, storage, problem, wanted.search.trials)
        opened = partial(taken.remembering, opened)
        seeds, directory = taken.seeds, fork
    _search(wanted, problem, directory, opened, storage, seeds)


def _taken_over(directory: Path, storage: str | None, problem: Problem, trials: int) -> Fork:
    from optimizer.fork import forked

    taken = forked(directory, storage, problem, trials)
    for text in taken.told:
        say(text)
    return taken


def _search(
    job: Job,
    problem: Problem,
    directory: Path,
    opened: Callable[[], Executor],
    storage: str | None,
    seeds: Sequence[Parameters],
) -> None:
    from optimizer.cli.progress import Progress
    from optimizer.session import run_study

    size, settings = problem.space.size(), job.search
    say(f"{size:,} points in the space, searching in {directory}")
    with Progress(
        min(settings.trials, size), problem.objectives, problem.constraints, settings.timeout_s
    ) as progress:
        outcome = run_study(
            job,
            problem,
            opened,
            progress,
            directory,
            storage_url=storage,
            seeds=seeds,
        )
    if outcome.repaired_bytes:
        say(f"note: {outcome.repaired_bytes} bytes of a torn record were cut off the journal")
    say(f"stopped: {outcome.stop_reason}")
    _end(outcome.results, directory, outcome.interrupted)


def _end(results: StudyResults, directory: Path, interrupted: str) -> None:
    """Show what was found, where it is, and what to do next; exit as it went."""
    if results.front.points:
        show_front(results.front)
        _next_steps(directory, results)
    if interrupted:
        say(f"{interrupted}: the state is saved; the same command goes on from here")
        raise typer.Exit(INTERRUPTED)
    failures = Counter(
        record.reason
        for record in results.records
        if record.state == "failed" and record.same_as is None
    )
    if not results.front.points and not all(r.state == "failed" for r in results.records):
        _nothing(results)
    if failures:
        say(f"{failures.total()} evaluations failed:")
        for reason, count in failures.most_common():
            say(f"  {count} x {reason}")
        raise typer.Exit(SOME_FAILED)


def _nothing(results: StudyResults) -> None:
    from results.refusals import refusals_in_words
    from spaces.errors import NothingFeasible

    simulated = sum(record.state == "complete" for record in results.records)
    what = "meets the constraints" if simulated else "is feasible"
    raise NothingFeasible(
        f"none of {len(results.records)} trials {what}\n{refusals_in_words(results.records)}"
    )


def _next_steps(directory: Path, results: StudyResults) -> None:
    from optimizer.cli.hints import export_hints
    from results.front import knee

    best = knee(results.front).plan
    say(f"report:  {directory}/report.html (picture: front.png, tables: front.csv, trials.csv)")
    say(f"choose:  servefront choose {directory} --knee --out plan.yaml")
    for line in export_hints(best, f"{directory}:{best.point_id}"):
        say(f"deploy:  {line}")


def _dry_run(job: Job, problem: Problem) -> None:
    from optimizer.proposing.sampling import chosen_sampler

    for name, values in problem.space.dimensions().items():
        shown = ", ".join(values) if len(values) <= 12 else f"{', '.join(values[:8])}, ..."
        show(f"{name} ({len(values)}): {shown}")
    size = problem.space.size()
    requests = sum(len(one.workload) for one in problem.workloads)
    show(f"{size:,} legal points, {requests:,} requests each")
    choice = chosen_sampler(job.search.sampler, job.search.trials, problem)
    show(f"sampler {choice.name}: {choice.reason}")
    seconds = _seconds_a_plan(problem)
    points = min(size, job.search.trials)
    show(
        f"{points} of them take about {points * seconds:.0f} s on one core "
        f"({seconds:.2f} s each, measured on {TIMED_PLANS})"
    )


def _seconds_a_plan(problem: Problem) -> float:
    from optimizer.evaluate import Evaluator
    from spaces.draw import RandomDraw

    evaluate = Evaluator.of(problem)
    plans = [problem.space.plan(RandomDraw(seed)) for seed in range(TIMED_PLANS + 1)]
    evaluate(plans[0])  # may compile the simulator
    started = time.perf_counter()
    for plan in plans[1:]:
        evaluate(plan)
    return (time.perf_counter() - started) / TIMED_PLANS
