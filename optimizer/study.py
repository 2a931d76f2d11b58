"""The search: one coordinator asks in batches, an executor evaluates, results are told in order.

A study can be killed at any moment and started again. What a trial proposes follows from the
told trials and the study's seed; a trial that was asked but not told is asked to the end,
evaluated and told. So a study that was killed ends as one that was not, and with the same batch
size it does not matter who evaluates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol

import optuna
from optuna.trial import FrozenTrial, TrialState

from optimizer.evaluate import Evaluation
from optimizer.execution.executor import Executor
from optimizer.fidelity.promotion import Settled, settled
from optimizer.fidelity.screening import Screening
from optimizer.growth import Growth
from optimizer.job import SearchSettings
from optimizer.problem import Problem
from optimizer.proposing.draws import GivenDraw, Parameters, TrialDraw
from optimizer.proposing.proposals import Proposals
from optimizer.proposing.sampling import sampler_for
from optimizer.storing.records import (
    BATCH_END,
    PLAN,
    AskedTrial,
    StoredTrial,
    plan_data,
    plan_of,
    record_of,
    short_of,
    stored_trials,
    tell,
)

# Asking goes on for so many batches of nothing but repeats, then the space counts as exhausted.
BARREN_BATCHES = 5


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


@dataclass
class Search:
    """A study at work.

    `proposals` give points beside the sampler; `interrupted` is asked again and again and ends
    the search with its answer, unless that is empty.
    """

    study: optuna.Study
    problem: Problem
    settings: SearchSettings
    proposals: Proposals
    executor: Executor
    watch: Watch
    interrupted: Callable[[], str] = lambda: ""
    _growth: Growth = field(init=False)
    _screening: Screening | None = field(init=False)
    _known: dict[str, StoredTrial] = field(default_factory=dict)
    _simulated: int = 0
    _repeats: int = 0
    _size: int = 0
    _deadline_s: float = math.inf

    def run(self) -> str:
        """Search until the budget, the time or the space ends, or an interrupt; which it was."""
        self._growth = Growth(self.problem.objectives, self.problem.constraints)
        fraction = self.settings.short_fraction
        self._screening = Screening(self.problem, fraction) if fraction else None
        self._recall()
        self._size = self.problem.space.size()
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
        self.proposals.told(trial.record)
        self._growth.told(trial.record)
        if self._screening is not None:
            self._screening.told(trial)
        new = trial.record.same_as is None
        self._simulated += new and trial.record.state != "pruned"
        self._known.setdefault(trial.record.plan.point_id, trial)
        self._repeats = 0 if trial.record.same_as is None else self._repeats + 1

    def _reason_to_stop(self) -> str:
        settings = self.settings
        if reason := self._cut_short():
            return reason
        if self._simulated >= settings.trials:
            return f"the budget of {settings.trials} trials is used"
        if self._screening is not None and self._screening.cost >= settings.trials:
            return (
                f"{self._screening.screened} short simulations have taken as much as the budget "
                f"of {settings.trials} trials"
            )
        if len(self._known) >= self._size:
            return f"all {self._size} points of the space are evaluated"
        barren = BARREN_BATCHES * settings.batch_size
        patience = settings.patience
        if patience is not None and self._growth.idle >= patience:
            return f"the hypervolume has not grown for {self._growth.idle} evaluations"
        if self._repeats >= barren:
            return f"the space seems exhausted: the last {barren} trials asked for nothing new"
        return ""

    def _cut_short(self) -> str:
        if time.monotonic() >= self._deadline_s:
            return f"the time limit of {self.settings.timeout_s:g} s is reached"
        return self.interrupted()

    def _batch(self) -> list[AskedTrial]:
        """The trials of the batch at work: what an earlier run left of it, then new ones."""
        trials = self.study.get_trials(deepcopy=False)
        left = [t for t in trials if t.state in (TrialState.RUNNING, TrialState.WAITING)]
        start = len(trials) - len(left)
        end = (left[0].user_attrs.get(BATCH_END) if left else None) or start + self._batch_size()
        given = self.proposals.given(start, end)
        attached = [self._attached(trial, end) for trial in left]
        return attached + [self._ask(n, end, given.get(n)) for n in range(len(trials), end)]

    def _batch_size(self) -> int:
        left = min(self.settings.trials - self._simulated, self._size - len(self._known))
        return min(self.settings.batch_size, left)

    def _ask(self, number: int, end: int, given: Parameters | None) -> AskedTrial:
        if given is not None and self.proposals.sampler != "nsga2":
            return self._put(number, end, given)
        if given is not None:
            self.study.enqueue_trial(given)
        self._sampler_of(number)
        trial = self.study.ask()
        assert trial.number == number, "only the coordinator asks"
        return self._drawn(trial, end)

    def _put(self, number: int, end: int, given: Parameters) -> AskedTrial:
        """A given trial as a whole: one record in the storage in place of one for each answer."""
        draw = GivenDraw(given)
        plan = self.problem.space.plan(draw)
        self.study.add_trial(
            optuna.create_trial(
                state=TrialState.RUNNING,
                params={name: given[name] for name in draw.distributions},
                distributions=draw.distributions,
                user_attrs={BATCH_END: end, PLAN: plan_data(plan)},
            )
        )
        added = self.study.get_trials(deepcopy=False)[number]
        return AskedTrial(optuna.Trial(self.study, added._trial_id), plan)

    def _attached(self, left: FrozenTrial, end: int) -> AskedTrial:
        """A trial that an earlier run asked and did not tell."""
        self._sampler_of(left.number)
        if left.state == TrialState.WAITING:
            trial = self.study.ask()
        else:
            trial = optuna.Trial(self.study, left._trial_id)
        plan = plan_of(left)
        if plan is None:
            return self._drawn(trial, end)
        return AskedTrial(trial, plan, short_of(left))

    def _sampler_of(self, number: int) -> None:
        self.study.sampler = sampler_for(
            self.proposals.sampler, self.settings.seed, number, self.settings.batch_size
        )

    def _drawn(self, trial: optuna.Trial, end: int) -> AskedTrial:
        trial.set_user_attr(BATCH_END, end)
        plan = self.problem.space.plan(TrialDraw(trial))
        trial.set_user_attr(PLAN, plan_data(plan))
        return AskedTrial(trial, plan)

    def _run_batch(self, batch: Sequence[AskedTrial]) -> None:
        """Evaluate the plans that are new and tell every trial in the order of asking.

        When the search is cut short the rest of the batch stays asked, for the next run to tell.
        """
        first = self._first_of_new(batch)
        screened = self._screened(list(first.values()))
        if screened is None:
            return
        plans = [one.plan for name, one in first.items() if name not in screened.outcomes]
        with closing(self.executor.evaluate(plans, self._is_cut_short)) as results:
            for asked in batch:
                name = asked.plan.point_id
                if known := self._known.get(name):
                    self._tell(asked, _repeated(known), same_as=known.record.trial)
                elif found := screened.outcomes.get(name) or next(results, None):
                    self._tell(asked, found, short=screened.shorts.get(name))
                else:
                    return

    def _first_of_new(self, batch: Sequence[AskedTrial]) -> dict[str, AskedTrial]:
        """The trials of points that no trial has been told of, by `point_id`."""
        first: dict[str, AskedTrial] = {}
        for asked in batch:
            if asked.plan.point_id not in self._known:
                first.setdefault(asked.plan.point_id, asked)
        return first

    def _screened(self, trials: Sequence[AskedTrial]) -> Settled | None:
        if self._screening is None:
            return Settled()
        return settled(self._screening, trials, self.executor, self._is_cut_short)

    def _is_cut_short(self) -> bool:
        return bool(self._cut_short())

    def _tell(
        self,
        asked: AskedTrial,
        evaluation: Evaluation,
        *,
        same_as: int | None = None,
        short: Evaluation | None = None,
    ) -> None:
        tell(self.study, asked.trial, evaluation, self.problem.objectives, same_as)
        record = record_of(asked.trial.number, asked.plan, evaluation, same_as)
        trial = StoredTrial(record, evaluation, short)
        self._remember(trial)
        self.watch.told(trial)


def _repeated(known: StoredTrial) -> Evaluation:
    """An evaluation once more, at no cost."""
    return replace(known.evaluation, simulated_requests=0, simulation_cpu_s=0.0, seconds=0.0)
