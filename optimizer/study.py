"""The search: one coordinator asks in batches, an executor evaluates, results are told in order.

A study can be killed at any moment and started again. What a trial proposes follows from the
told trials and the study's seed; a trial that was asked but not told is asked to the end,
evaluated and told. So a study that was killed ends as one that was not, and with the same batch
size it does not matter who evaluates.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import optuna
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, TrialState

from objectives.goals import Objective
from optimizer.draws import Parameters, TrialDraw, all_parameters, neighbour, parameters_of
from optimizer.evaluate import Evaluation
from optimizer.executor import Executor
from optimizer.job import SearchSettings
from optimizer.records import (
    BATCH_END,
    PLAN,
    StoredTrial,
    plan_of,
    record_of,
    stored_trials,
    tell,
)
from optimizer.sampling import sampler_for, trial_seed
from results.front import pareto_front
from results.trials import TrialRecord
from spaces.plan import DeploymentPlan
from spaces.space import SearchSpace

# Asking goes on for so many batches of nothing but repeats, then the space counts as exhausted.
BARREN_BATCHES = 5
# A space no larger is finished by counting once a whole batch of the sampler repeats.
COUNTABLE = 5_000
# Drawings of a neighbour until one is new.
NEIGHBOUR_ATTEMPTS = 20
# From this trial on TPE leaves this share of a batch to steps
# along the fronts. Hypervolume of seeds 1 to 4 after the 300 evaluations of
# examples/deepseek-r1-h200.yaml: 5851, 6232, 6218, 5557; with TPE alone 5381, 6039, 4825, 5689.
REFINE_FROM = 100
REFINE_SHARE = 0.75


class Watch(Protocol):
    """Looks on."""

    def begin(self, trials: Sequence[StoredTrial]) -> None:
        """The trials of earlier runs, before the first new one."""
        ...

    def told(self, trial: StoredTrial) -> None:
        """A trial has been told."""
        ...

    def note(self, text: str) -> None:
        """Something happened that the user should know."""
        ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """A trial with its plan, not yet told."""

    trial: optuna.Trial
    plan: DeploymentPlan


@dataclass
class Search:
    """A study at work.

    `seeds` are parameters of the first trials; `interrupted` is asked again and again and ends
    the search with its answer, unless that is empty.
    """

    study: optuna.Study
    space: SearchSpace
    objectives: tuple[Objective, ...]
    settings: SearchSettings
    executor: Executor
    watch: Watch
    interrupted: Callable[[], str] = lambda: ""
    seeds: Sequence[Parameters] = ()
    _records: list[TrialRecord] = field(default_factory=list)
    _known: dict[str, StoredTrial] = field(default_factory=dict)
    _repeats: int = 0
    _size: int = 0
    _deadline_s: float = math.inf

    def run(self) -> str:
        """Search until the budget, the time or the space ends, or an interrupt; which it was."""
        self._recall()
        self._size = self.space.size()
        if self.settings.timeout_s is not None:
            self._deadline_s = time.monotonic() + self.settings.timeout_s
        while not (reason := self._reason_to_stop()):
            self._run_batch(self._batch())
        return reason

    def _recall(self) -> None:
        trials = stored_trials(self.study)
        for trial in trials:
            self._remember(trial)
        self.watch.begin(trials)

    def _remember(self, trial: StoredTrial) -> None:
        self._records.append(trial.record)
        self._known.setdefault(trial.record.plan.point_id, trial)
        self._repeats = 0 if trial.record.same_as is None else self._repeats + 1

    def _reason_to_stop(self) -> str:
        settings = self.settings
        if reason := self._cut_short():
            return reason
        if len(self._known) >= settings.trials:
            return f"the budget of {settings.trials} trials is used"
        if len(self._known) >= self._size:
            return f"all {self._size} points of the space are evaluated"
        barren = BARREN_BATCHES * settings.batch_size
        if self._repeats >= barren:
            return f"the space seems exhausted: the last {barren} trials asked for nothing new"
        return ""

    def _cut_short(self) -> str:
        if time.monotonic() >= self._deadline_s:
            return f"the time limit of {self.settings.timeout_s:g} s is reached"
        return self.interrupted()

    def _batch(self) -> list[_Asked]:
        """The trials of the batch at work: what an earlier run left of it, then new ones."""
        trials = self.study.get_trials(deepcopy=False)
        left = [t for t in trials if t.state in (TrialState.RUNNING, TrialState.WAITING)]
        start = len(trials) - len(left)
        end = (left[0].user_attrs.get(BATCH_END) if left else None) or start + self._batch_size()
        given = self._given(start, end)
        attached = [self._attached(trial, end) for trial in left]
        return attached + [self._ask(n, end, given.get(n)) for n in range(len(trials), end)]

    def _batch_size(self) -> int:
        left = min(self.settings.trials, self._size) - len(self._known)
        return min(self.settings.batch_size, left)

    def _given(self, start: int, end: int) -> dict[int, Parameters]:
        """Parameters that are not left to the sampler, by trial number.

        First come the study's seeds. Later, as many trials as repeated an earlier one in the last
        batch, and from `REFINE_FROM` on a share of every batch of TPE, are given new points:
        neighbours of the fronts, or, once a whole batch repeated in a space that can be counted,
        points never asked for.
        """
        seeds = {n: self.seeds[n] for n in range(start, min(end, len(self.seeds)))}
        last = self._records[-self.settings.batch_size :]
        repeats = min(end - start, sum(record.same_as is not None for record in last))
        chance = random.Random(trial_seed(self.settings.seed, start))
        if self._repeats >= self.settings.batch_size and self._size <= COUNTABLE:
            new = [found for point_id, found in self._countable if point_id not in self._known]
            found = chance.sample(new, min(end - start, len(new)))
        else:
            found = self._neighbours(max(repeats, self._refined(start, end)), chance)
        return dict(enumerate(found, start)) | seeds

    def _refined(self, start: int, end: int) -> int:
        """How many trials of a batch refine what was found, whatever repeated."""
        if self.settings.sampler != "tpe" or start < REFINE_FROM:
            return 0
        return int(REFINE_SHARE * (end - start))

    def _neighbours(self, count: int, chance: random.Random) -> list[Parameters]:
        """Up to `count` unknown points near the fronts of the topologies."""
        if not count or self.settings.sampler == "random":
            return []
        parents = self._parents()
        found: dict[str, Parameters] = {}
        for _ in range(NEIGHBOUR_ATTEMPTS * count if parents else 0):
            parent = chance.choice(chance.choice(parents))
            point_id, parameters = neighbour(parent, self.space, chance)
            if point_id not in self._known:
                found.setdefault(point_id, parameters)
            if len(found) == count:
                break
        return list(found.values())

    def _parents(self) -> list[list[Parameters]]:
        """The front of each topology, so that one that leads early does not starve the others."""
        by_topology: dict[str, list[TrialRecord]] = {}
        for record in self._records:
            by_topology.setdefault(record.plan.topology, []).append(record)
        fronts = [
            [parameters_of(point.plan, self.space) for point in front.points]
            for records in by_topology.values()
            if (front := pareto_front(records, self.objectives)).points
        ]
        return [[p for p in front if p is not None] for front in fronts]

    @cached_property
    def _countable(self) -> list[tuple[str, Parameters]]:
        return list(all_parameters(self.space))

    def _ask(self, number: int, end: int, given: Parameters | None) -> _Asked:
        if given is not None:
            self.study.enqueue_trial(given)
        self._sampler_of(number)
        trial = self.study.ask()
        if trial.number != number:  # made twice, when an answer of the storage was lost
            raise StorageInternalError(f"trial {number} is in the study already")
        return self._drawn(trial, end)

    def _attached(self, left: FrozenTrial, end: int) -> _Asked:
        """A trial that an earlier run asked and did not tell."""
        self._sampler_of(left.number)
        if left.state == TrialState.WAITING:
            trial = self.study.ask()
        else:
            trial = optuna.Trial(self.study, left._trial_id)
        plan = plan_of(left)
        return self._drawn(trial, end) if plan is None else _Asked(trial, plan)

    def _sampler_of(self, number: int) -> None:
        settings = self.settings
        self.study.sampler = sampler_for(
            settings.sampler, settings.seed, number, settings.batch_size
        )

    def _drawn(self, trial: optuna.Trial, end: int) -> _Asked:
        trial.set_user_attr(BATCH_END, end)
        plan = self.space.plan(TrialDraw(trial))
        trial.set_user_attr(PLAN, plan.model_dump(mode="json", exclude_none=True))
        return _Asked(trial, plan)

    def _run_batch(self, batch: Sequence[_Asked]) -> None:
        """Evaluate the plans that are new and tell every trial in the order of asking.

        When the search is cut short the rest of the batch stays asked, for the next run to tell.
        """
        new = {a.plan.point_id: a.plan for a in batch if a.plan.point_id not in self._known}
        plans = list(new.values())
        with closing(self.executor.evaluate(plans, self._is_cut_short)) as results:
            for asked in batch:
                known = self._known.get(asked.plan.point_id)
                evaluation = next(results, None) if known is None else _repeated(known)
                if evaluation is None:
                    return
                self._tell(asked, evaluation, None if known is None else known.record.trial)

    def _is_cut_short(self) -> bool:
        return bool(self._cut_short())

    def _tell(self, asked: _Asked, evaluation: Evaluation, same_as: int | None) -> None:
        tell(self.study, asked.trial, evaluation, self.objectives, same_as)
        record = record_of(asked.trial.number, asked.plan, evaluation, same_as)
        trial = StoredTrial(record, evaluation)
        self._remember(trial)
        self.watch.told(trial)


def _repeated(known: StoredTrial) -> Evaluation:
    """An evaluation once more, at no cost."""
    return replace(known.evaluation, simulated_requests=0, simulation_cpu_s=0.0, seconds=0.0)
