"""A study that begins with what another one found, under a changed job.

Evaluations whose grounds have not changed are taken over and judged by the new goals; where the
grounds have changed the points of the old front are tried first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from objectives.measures import per_chip
from objectives.metrics import split_name
from optimizer.directory import StudyResults, read_results, read_run
from optimizer.evaluate import Asked, Evaluation, Sample, judged
from optimizer.execution.executor import Executor, UnderWay
from optimizer.grounds import GROUNDS, changed_grounds, grounds_of, rests_on
from optimizer.problem import Problem
from optimizer.proposing.draws import Parameters, place_of
from optimizer.storing.records import StoredTrial
from spaces.feasibility import infeasible
from spaces.plan import DeploymentPlan
from spaces.site import Site

RATE, PER_BUDGET_CHIP = "output_tokens_per_s", "output_tokens_per_s_per_budget_chip"


@dataclass(frozen=True, slots=True)
class Fork:
    """What a new study begins with: parameters of its first trials, and evaluations that need
    not be made again, by `point_id`. `told` says in sentences what is reused and what is not.
    """

    seeds: list[Parameters]
    known: Mapping[str, Evaluation]
    told: tuple[str, ...]

    def remembering(self, opened: Callable[[], Executor]) -> Executor:
        """An executor that takes what is known from here."""
        return Remembering(opened(), self.known)


def forked(directory: Path, storage_url: str | None, problem: Problem, trials: int) -> Fork:
    """What a study of `problem` with a budget of `trials` takes over from that in `directory`.

    `storage_url` is that of the new study; it serves for the old one where that is in a database
    too. Raises `InputError` where there is no old study.
    """
    elsewhere = read_run(directory).get("storage") is not None
    old = read_results(directory, storage_url if elsewhere else None)
    changed, trials_that_hold = _reusable(old, problem)
    hold = {trial.record.plan.point_id: trial for trial in trials_that_hold}
    first = {point.plan.point_id: point.plan for point in old.front.points}
    first |= {point_id: trial.record.plan for point_id, trial in hold.items()}
    places = [place_of(plan, problem.space) for plan in first.values()]
    seeds = dict(place for place in places if place is not None)
    kept = {name: _judged_again(hold[name], problem) for name in seeds if name in hold}
    evaluated = sum(trial.record.same_as is None for trial in old.trials)
    told = (
        _told_of_reuse(f"the {evaluated} evaluations of {directory}", changed, len(kept), trials),
        *_told_of_points(len(seeds) - len(kept), len(first) - len(seeds)),
    )
    return Fork(list(seeds.values()), kept, told)


class Remembering:
    """An executor that knows some evaluations and leaves the others to another."""

    def __init__(self, executor: Executor, known: Mapping[str, Evaluation]) -> None:
        self._executor, self._known = executor, known

    @property
    def workers(self) -> int:
        """The workers of the other."""
        return self._executor.workers

    def evaluate(self, plans: Iterable[Asked], cancelled: Callable[[], bool]) -> UnderWay:
        """The evaluations in order; see `Executor`. Samples are not known."""
        remembered: list[Evaluation | None] = []

        def new() -> Iterator[Asked]:
            for plan in plans:
                remembered.append(self._remembered(plan))
                if remembered[-1] is None:
                    yield plan

        made = self._executor.evaluate(new(), cancelled)
        return UnderWay(_merged(remembered, made), made.close)

    def close(self) -> None:
        """End the workers of the other."""
        self._executor.close()

    def _remembered(self, asked: Asked) -> Evaluation | None:
        return None if isinstance(asked, Sample) else self._known.get(asked.point_id)


def _merged(
    remembered: Sequence[Evaluation | None], made: Iterator[Evaluation]
) -> Generator[Evaluation]:
    """The remembered evaluations with those that are made in between."""
    for known in remembered:
        evaluation = known or next(made, None)
        if evaluation is None:
            return
        yield evaluation


def _reusable(old: StudyResults, problem: Problem) -> tuple[list[str], list[StoredTrial]]:
    """Which common grounds changed, and the trials whose evaluation holds under `problem`."""
    before, now = old.study.user_attrs.get(GROUNDS, {}), grounds_of(problem)
    changed = changed_grounds(before, now)
    if changed:
        return changed, []
    known = [
        trial
        for trial in old.trials
        if trial.record.state == "complete"
        and trial.record.same_as is None
        and all(before.get(name) == now.get(name) for name in rests_on(trial.record.plan))
        and infeasible(trial.record.plan, problem.site) is None
    ]
    return [], known


def _judged_again(trial: StoredTrial, problem: Problem) -> Evaluation:
    """The evaluation held against the goals of `problem`; it costs nothing this time."""
    found = _of_budget(trial.evaluation, trial.record.plan, problem.site)
    judgement = judged(found, problem.objectives, problem.constraints)
    return replace(judgement, simulated_requests=0, simulation_cpu_s=0.0)


def _of_budget(found: Evaluation, plan: DeploymentPlan, site: Site) -> Evaluation:
    """The evaluation with the one metric that depends on the budget measured by this one.

    Of several workloads too: the worst, the mean and that of each are in proportion to the rate.
    """
    metrics, bands = dict(found.metrics), dict(found.bands)
    for name in found.metrics:
        metric, _ = split_name(name)
        if metric == PER_BUDGET_CHIP:
            rate = {RATE: found.metrics[RATE + name.removeprefix(metric)]}
            metrics[name] = per_chip(rate, plan.chips, site.budget_chips)[metric]
            if name in bands:
                factor = metrics[name] / found.metrics[name]
                low, high = bands[name]
                bands[name] = (low * factor, high * factor)
    return replace(found, metrics=metrics, bands=bands)


def _told_of_reuse(old: str, changed: Sequence[str], reused: int, trials: int) -> str:
    if not reused:
        return f"none of {old} holds for this job" + (
            f" ({', '.join(changed)} changed)" if changed else ""
        )
    told = f"{reused} of {old} hold for this job and count among its {trials} trials"
    if reused >= trials:
        told += "; to search for more, raise --trials"
    return told


def _told_of_points(again: int, elsewhere: int) -> Iterator[str]:
    if again:
        yield f"{again} points of the old front are tried first"
    if elsewhere:
        yield f"{elsewhere} old points are not in the space of this job"
