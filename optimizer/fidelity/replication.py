"""After the search: points near the front are simulated again until its order is settled.

The values of trials stay those of the first replication. Further ones are kept in the study under
names of their own, so a run that is killed here goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import optuna

from optimizer.evaluate import Evaluation, Sample
from optimizer.execution.executor import Executor
from optimizer.job import SearchSettings
from optimizer.problem import Problem
from optimizer.storing.records import sample_data, stored_evaluation
from results.front import has_values, pareto_front
from results.replication import Contender, distance, settled_records, spread_of, standing
from results.trials import TrialRecord

SETTLED = "replications"
# Replications from which the spread is first told, and how far off the front a point may be by
# it: two deviations of the difference of two runs.
PILOT, MARGIN = 3, 2.0 * 2.0**0.5
# Most points that are simulated again, the nearest to the front.
MOST_CONTENDERS = 60

Runs = dict[str, dict[int, Evaluation]]


@dataclass(frozen=True, slots=True)
class Settled:
    """How the replications of a study of so many `trials` ended.

    `contenders` are the points that were simulated again, `count` is the most replications one
    of them had, `unsettled` are those whose place was still not sure, and `left_out` counts points
    as near to the front that were too many.
    """

    trials: int
    count: int
    confidence: float
    contenders: tuple[str, ...]
    unsettled: tuple[str, ...]
    left_out: int


def settled_of(study: optuna.Study, trials: int) -> Settled | None:
    """How the replications ended; None where there are none of the study as it is now."""
    stored: dict[str, Any] | None = study.user_attrs.get(SETTLED)
    if stored is None or stored["trials"] != trials:
        return None
    names = {key: tuple(stored[key]) for key in ("contenders", "unsettled")}
    return Settled(**stored | names)


def in_words(settled: Settled, lost: int, front: int) -> Iterator[str]:
    """What replications found, in sentences; `lost` of the `front` points of the search are off
    the front of the means.
    """
    level = f"{settled.confidence:.0%}"
    yield (
        f"{len(settled.contenders)} points near the front were simulated with up to "
        f"{settled.count} draws each: {lost} of its {front} points are off the front of the means"
    )
    if settled.unsettled:
        yield (
            f"the place of {len(settled.unsettled)} of them is not sure at {level} of each "
            "comparison; more search.replications may settle it"
        )
    if settled.left_out:
        yield f"{settled.left_out} more points were as near and were not simulated again"


def contenders_of(
    study: optuna.Study, settled: Settled, records: Sequence[TrialRecord]
) -> list[Contender]:
    """The points that were simulated again with all their runs, in the order of `settled`."""
    runs = _runs_of(study)
    first = {r.plan.point_id: r for r in reversed(records) if r.same_as is None}
    return [_contender(first[name], runs) for name in settled.contenders]


def settle(
    study: optuna.Study,
    problem: Problem,
    settings: SearchSettings,
    records: Sequence[TrialRecord],
    executor: Executor,
    cancelled: Callable[[], bool],
) -> Settled | None:
    """Replicate the neighbourhood of the front until the place of every point there is sure, or
    those whose is not have as many replications as the job allows; None when it is cut short.
    """
    replications = _Replications(study, executor, cancelled, _runs_of(study))
    pilot = min(PILOT, settings.replications)
    near = _near_the_front(problem, records, replications, pilot, settings.confidence)
    if near is None:
        return None
    contenders, left_out = near
    alive, count = contenders, pilot
    while replications.made(alive, count):
        found = standing(
            [_contender(one, replications.runs) for one in contenders],
            problem.objectives,
            problem.constraints,
            settings.confidence,
        )
        alive = [one for place, one in enumerate(contenders) if place not in found.out]
        if count == settings.replications or not found.unsettled:
            settled = Settled(
                trials=len(records),
                count=count,
                confidence=settings.confidence,
                contenders=tuple(one.plan.point_id for one in contenders),
                unsettled=tuple(contenders[n].plan.point_id for n in sorted(found.unsettled)),
                left_out=left_out,
            )
            study.set_user_attr(SETTLED, asdict(settled))
            return settled
        count += 1
    return None


@dataclass
class _Replications:
    """The replications of a study, made and stored as they are asked for."""

    study: optuna.Study
    executor: Executor
    cancelled: Callable[[], bool]
    runs: Runs

    def made(self, points: Sequence[TrialRecord], count: int) -> bool:
        """Give each point so many replications; False when the search is cut short."""
        wanted = [
            (point, number)
            for number in range(2, count + 1)
            for point in points
            if number not in self.runs.get(point.plan.point_id, {})
        ]
        samples = [Sample(point.plan, replication=number) for point, number in wanted]
        with closing(self.executor.evaluate(samples, self.cancelled)) as results:
            for point, number in wanted:
                evaluation = next(results, None)
                if evaluation is None:
                    return False
                name = point.plan.point_id
                self.study.set_user_attr(f"{SETTLED}/{number}/{name}", sample_data(evaluation))
                self.runs.setdefault(name, {})[number] = evaluation
        return True


def _near_the_front(
    problem: Problem,
    records: Sequence[TrialRecord],
    replications: _Replications,
    pilot: int,
    confidence: float,
) -> tuple[list[TrialRecord], int] | None:
    """The points that noise could bring to the front of the means, as large as it is in `pilot`
    replications of the search's front, and how many more there were. None when cut short.
    """
    goals, bounds = problem.objectives, problem.constraints
    front = pareto_front(records, goals, constraints=bounds).points
    if not replications.made(front, pilot):
        return None
    pilots = [_contender(one, replications.runs) for one in front]
    spread = spread_of(pilots, goals, bounds)
    settled_front = settled_records(pilots, goals, bounds, confidence)
    known = [
        one
        for one in records
        if one.state == "complete" and one.same_as is None and has_values(one, goals)
    ]
    far = {one.trial: distance(one, settled_front, goals, bounds, spread) for one in known}
    near = [one for one in known if front and far[one.trial] <= MARGIN]
    near.sort(key=lambda one: (far[one.trial], one.trial))
    return near[:MOST_CONTENDERS], len(near[MOST_CONTENDERS:])


def _contender(record: TrialRecord, runs: Runs) -> Contender:
    further = runs.get(record.plan.point_id, {})
    return Contender(record, (record.metrics, *_metrics(further)))


def _metrics(runs: Mapping[int, Evaluation]) -> Iterator[Mapping[str, float]]:
    """Those of replications 2, 3, ... without a gap; nothing of one that did not end well."""
    number = 2
    while number in runs:
        yield runs[number].metrics if runs[number].state == "complete" else {}
        number += 1


def _runs_of(study: optuna.Study) -> Runs:
    """The stored replications by point and number."""
    runs: Runs = {}
    for key, data in study.user_attrs.items():
        if key.startswith(f"{SETTLED}/"):
            _, number, name = key.split("/")
            runs.setdefault(name, {})[int(number)] = stored_evaluation(data)
    return runs
