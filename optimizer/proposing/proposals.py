"""Points that are proposed beside the sampler: seeds, estimates, steps along the fronts, lists.

What is proposed follows from the settings, the study's seed, the trials before a number and the
plans asked since, so that a killed study goes on as if nothing had happened.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from optimizer.job import SamplerName, SearchSettings
from optimizer.problem import Problem
from optimizer.proposing.candidates import Candidates
from optimizer.proposing.draws import (
    Parameters,
    all_parameters,
    completed,
    neighbour,
    parameters_of,
    quasirandom,
)
from optimizer.proposing.guide import Guide
from optimizer.proposing.sampling import STARTUP_TRIALS, population, trial_seed
from results.front import GrowingFront
from results.trials import TrialRecord
from spaces.plan import DeploymentPlan

# A space no larger is finished by counting once a whole batch of the sampler repeats.
COUNTABLE = 5_000
# Drawings of a neighbour until one is new.
NEIGHBOUR_ATTEMPTS = 20
# From this trial on TPE leaves this share of a batch to steps
# along the fronts. Hypervolume of seeds 1 to 4 after the 300 evaluations of
# examples/deepseek-r1-h200.yaml: 5851, 6232, 6218, 5557; with TPE alone 5381, 6039, 4825, 5689.
REFINE_FROM = 100
REFINE_SHARE = {"tpe": 0.75, "gp": 0.75, "estimate": 0.125}
# Samplers that need not see the values of the trials under way. The others ask the study itself,
# or would propose the same once more.
LOOKING_AHEAD = ("estimate", "exhaustive", "qmc", "random")


@dataclass
class Proposals:
    """The given points of a study under one sampler.

    `seeds` are the parameters of its first trials.
    """

    problem: Problem
    sampler: SamplerName
    settings: SearchSettings
    seeds: Sequence[Parameters] = ()
    _records: list[TrialRecord] = field(default_factory=list)
    _seen: int = 0
    _known: set[str] = field(default_factory=set)
    _fronts: dict[str, GrowingFront] = field(default_factory=dict)
    _found_again: dict[int, Parameters | None] = field(default_factory=dict)
    _repeats: int = 0

    @property
    def look_ahead(self) -> bool:
        """Whether points can be asked for while those asked before them are evaluated."""
        return self.sampler in LOOKING_AHEAD

    def told(self, record: TrialRecord) -> None:
        """Take notice of a trial; they come in order of number."""
        self._records.append(record)

    def given(
        self, start: int, end: int, seen: int, since: Sequence[DeploymentPlan]
    ) -> dict[int, Parameters]:
        """Parameters of trials `start` to `end` that are not left to the sampler, by number.

        They follow from the values of the trials before `seen`, and of those `since`, up to
        `start`, from their plans alone. `start` and `seen` grow from call to call.
        """
        self._look_at(seen)
        self._known.update(plan.point_id for plan in since)
        seeds = {n: self.seeds[n] for n in range(start, min(end, len(self.seeds)))}
        free = [number for number in range(start, end) if number not in seeds]
        found = self._found(start, len(free), since)
        return seeds | dict(zip(free, found, strict=False))

    def _look_at(self, seen: int) -> None:
        """Take in the values of the trials before `seen`."""
        for record in self._records[self._seen : seen]:
            if record.same_as is None:
                topology = record.plan.topology
                goals = self.problem.objectives
                self._fronts.setdefault(topology, GrowingFront(goals, ())).add(record)
            self._known.add(record.plan.point_id)
            self._repeats = 0 if record.same_as is None else self._repeats + 1
        self._seen = seen

    def _found(self, start: int, count: int, since: Sequence[DeploymentPlan]) -> list[Parameters]:
        """Up to `count` points; the sampler proposes the others.

        As many trials as repeated an earlier one in the last batch are given neighbours of the
        fronts, or, once a whole batch repeated in a space that can be counted, points never
        asked for.
        """
        chance = random.Random(trial_seed(self.settings.seed, start))
        if self._repeats >= self.settings.batch_size and self._size <= COUNTABLE:
            new = [found for point_id, found in self._countable if point_id not in self._known]
            return chance.sample(new, min(count, len(new)))
        if self.sampler == "exhaustive":
            return self._next_listed(count)
        if self.sampler == "random":
            return [self._by_chance(number) for number in range(start, start + count)]
        if self.sampler == "qmc" or (start < self._startup):
            return quasirandom(self.problem.space, self.settings.seed, start, count)
        last = self._records[max(0, self._seen - self.settings.batch_size) : self._seen]
        repeats = min(count, sum(record.same_as is not None for record in last))
        share = REFINE_SHARE.get(self.sampler, 0.0) if start >= REFINE_FROM else 0.0
        steps = self._neighbours(max(repeats, int(share * count)), chance)
        return self._modelled(start, count - len(steps), since, chance) + steps

    @property
    def _startup(self) -> int:
        """Trials of a quasi-random start."""
        if self.sampler == "nsga2":
            return population(self.settings.batch_size)
        return STARTUP_TRIALS if self.sampler in ("tpe", "gp") else 0

    def _by_chance(self, number: int) -> Parameters:
        chance = random.Random(trial_seed(self.settings.seed, number))
        return completed({}, self.problem.space, chance)[1]

    def _modelled(
        self, start: int, count: int, since: Sequence[DeploymentPlan], chance: random.Random
    ) -> list[Parameters]:
        """Up to `count` points that the sampler's model of all trials it has seen proposes."""
        if self.sampler == "gp":
            return self._by_gaussian_process(start, count, chance)
        if self.sampler != "estimate":
            return []
        plans = self._guide.propose(count, self._records[: self._seen], since)
        found = [parameters_of(plan, self.problem.space) for plan in plans]
        return [parameters for parameters in found if parameters is not None]

    def _by_gaussian_process(
        self, start: int, count: int, chance: random.Random
    ) -> list[Parameters]:
        from optimizer.proposing.gaussian import GaussianProcess  # PyTorch is an extra

        problem = self.problem
        told = [
            (record, parameters)
            for record in self._records[: self._seen]
            if record.same_as is None and (parameters := self._parameters_of(record)) is not None
        ]
        process = GaussianProcess(problem.space, problem.objectives, problem.constraints)
        answers = process.propose(told, count, trial_seed(self.settings.seed, start))
        return [completed(one, problem.space, chance)[1] for one in answers]

    def _next_listed(self, count: int) -> list[Parameters]:
        found: list[Parameters] = []
        for point_id, parameters in self._listed:
            if point_id not in self._known:
                found.append(parameters)
            if len(found) == count:
                break
        return found

    def _neighbours(self, count: int, chance: random.Random) -> list[Parameters]:
        """Up to `count` unknown points near the fronts of the topologies."""
        if not count:
            return []
        parents = self._parents()
        found: dict[str, Parameters] = {}
        for _ in range(NEIGHBOUR_ATTEMPTS * count if parents else 0):
            parent = chance.choice(chance.choice(parents))
            point_id, parameters = neighbour(parent, self.problem.space, chance)
            if point_id not in self._known:
                found.setdefault(point_id, parameters)
            if len(found) == count:
                break
        return list(found.values())

    def _parents(self) -> list[list[Parameters]]:
        """The front of each topology, so that one that leads early does not starve the others."""
        fronts = [
            [self._parameters_of(point) for point in front.points]
            for front in self._fronts.values()
        ]
        known = [[one for one in front if one is not None] for front in fronts]
        return [front for front in known if front]

    def _parameters_of(self, trial: TrialRecord) -> Parameters | None:
        if trial.trial not in self._found_again:
            self._found_again[trial.trial] = parameters_of(trial.plan, self.problem.space)
        return self._found_again[trial.trial]

    @cached_property
    def _size(self) -> int:
        return self.problem.space.size()

    @cached_property
    def _guide(self) -> Guide:
        problem = self.problem
        return Guide(Candidates.of(problem), problem.objectives, problem.constraints)

    @cached_property
    def _countable(self) -> list[tuple[str, Parameters]]:
        return list(all_parameters(self.problem.space))

    @cached_property
    def _listed(self) -> Iterator[tuple[str, Parameters]]:
        """Every point of the space, once."""
        return all_parameters(self.problem.space)
