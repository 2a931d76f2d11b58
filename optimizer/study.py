"""The search: one coordinator asks, an executor evaluates, results are told in order of asking.

Trials are asked in parts. Where the sampler can look ahead a part is half a batch, and one is
asked while the one before is evaluated, from the values of those before that: so workers need not
wait for the coordinator. With other samplers, and where plans are screened, a part is a batch, and
is told before the next is asked.

A study can be killed at any moment and started again. What a part proposes follows from the
trials before it, by number, and the study's seed; a trial that was asked but not told is asked to
the end, evaluated and told. So a study that was killed ends as one that was not, and with the same
batch size it does not matter who evaluates.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import optuna
from optuna.trial import FrozenTrial, TrialState

from optimizer.evaluate import Evaluation
from optimizer.execution.executor import Executor, UnderWay
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
from spaces.plan import DeploymentPlan

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


@dataclass(frozen=True, slots=True)
class _Part:
    """Trials asked together; `new` are the points of theirs that nothing was known of.

    What short simulations did not settle of them is evaluated.
    """

    trials: Sequence[AskedTrial]
    new: frozenset[str]
    settled: Settled
    evaluations: UnderWay

    def outcome(self, point_id: str) -> Evaluation | None:
        """That of the next new point; None when the search is cut short."""
        return self.settled.outcomes.get(point_id) or next(self.evaluations, None)


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
    _plans: list[DeploymentPlan] = field(default_factory=list)
    _left: deque[FrozenTrial] = field(default_factory=deque)
    _under_way: deque[_Part] = field(default_factory=deque)
    _broken_off: bool = False
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
        try:
            while not (reason := self._cut_short()):
                if count := self._next_part():
                    self._ask_part(count)
                elif self._under_way:
                    self._tell_part()
                else:
                    return self._reason_to_end()
            return reason
        finally:
            for part in self._under_way:
                part.evaluations.close()

    def _recall(self) -> None:
        """Take in the trials of earlier runs; what was asked and not told is `_left`.

        A part of which some was told is `_broken_off`: it is told to its end before more is asked.
        """
        told = stored_trials(self.study)
        for trial in told:
            self._plans.append(trial.record.plan)
            self._remember(trial)
        everything = self.study.get_trials(deepcopy=False)
        self._left.extend(everything[len(told) :])
        last = everything[len(told) - 1].user_attrs[BATCH_END] if told else 0
        self._broken_off = last > len(told)
        self.watch.begin(told)

    def _remember(self, trial: StoredTrial) -> None:
        self.proposals.told(trial.record)
        self._growth.told(trial.record)
        if self._screening is not None:
            self._screening.told(trial)
        new = trial.record.same_as is None
        self._simulated += new and trial.record.state != "pruned"
        self._known.setdefault(trial.record.plan.point_id, trial)
        self._repeats = 0 if trial.record.same_as is None else self._repeats + 1

    def _reason_to_end(self) -> str:
        settings = self.settings
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

    @property
    def _depth(self) -> int:
        """The parts that may be under way at a time."""
        ahead = self.proposals.look_ahead and self._screening is None
        return 2 if ahead and self.settings.batch_size > 1 else 1

    def _next_part(self) -> int:
        """How many trials to ask now, those included that an earlier run asked."""
        if len(self._under_way) == self._depth:
            return 0
        if self._left:
            end = self._left[0].user_attrs.get(BATCH_END)
            return max(1, self._room()) if end is None else end - len(self._plans)
        if (self._under_way and self._broken_off) or self._reason_to_end():
            return 0
        return self._room()

    def _room(self) -> int:
        """The size of a part, or what budget and space have left for it."""
        new = sum(len(part.new) for part in self._under_way)
        left = min(self.settings.trials - self._simulated, self._size - len(self._known)) - new
        return min(self._part_size, max(0, left))

    @property
    def _part_size(self) -> int:
        return self.settings.batch_size // self._depth

    def _ask_part(self, count: int) -> None:
        """Ask so many trials and have them evaluated, each new plan as soon as it is asked."""
        trials: list[AskedTrial] = []
        new: dict[str, AskedTrial] = {}
        plans: Iterable[DeploymentPlan] = self._new_plans(count, trials, new)
        screened = Settled()
        if self._screening is not None:
            asked = list(plans)
            found = settled(self._screening, list(new.values()), self.executor, self._is_cut_short)
            if found is None:
                return
            screened, plans = found, [p for p in asked if p.point_id not in found.outcomes]
        evaluations = self.executor.evaluate(plans, self._is_cut_short)
        self._under_way.append(_Part(trials, frozenset(new), screened, evaluations))

    def _new_plans(
        self, count: int, trials: list[AskedTrial], new: dict[str, AskedTrial]
    ) -> Iterator[DeploymentPlan]:
        """Ask so many `trials`, and give the `new` plans: neither known nor under way."""
        for asked in self._asked(count):
            trials.append(asked)
            self._plans.append(asked.plan)
            name = asked.plan.point_id
            known = name in self._known or name in new
            if not known and all(name not in part.new for part in self._under_way):
                new[name] = asked
                yield asked.plan

    def _asked(self, count: int) -> Iterator[AskedTrial]:
        """The next trials: what an earlier run left of them, then new ones."""
        start = len(self._plans)
        end = start + count
        while self._left and self._left[0].number < end:
            yield self._attached(self._left.popleft(), end)
        first = len(self._plans)
        if first < end:
            ahead = self._part_size if self._depth > 1 else 0
            seen = max(0, start - ahead)
            given = self.proposals.given(start, end, seen, self._plans[seen:start])
            for number in range(first, end):
                yield self._ask(number, end, given.get(number))

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

    def _tell_part(self) -> None:
        """Tell the trials of the part that was asked first, in the order of asking.

        When the search is cut short its rest stays asked, for the next run to tell.
        """
        part = self._under_way[0]
        for asked in part.trials:
            name = asked.plan.point_id
            if known := self._known.get(name):
                self._tell(asked, _repeated(known), same_as=known.record.trial)
            elif found := part.outcome(name):
                self._tell(asked, found, short=part.settled.shorts.get(name))
            else:
                return
        self._under_way.popleft()
        self._broken_off = False

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
