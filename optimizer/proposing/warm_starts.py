"""The points a study begins with: known deployments, plain rules, the front of the estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path

from optimizer.job import Job, SamplerName
from optimizer.problem import Problem
from optimizer.proposing.candidates import Candidates, why_not_estimated
from optimizer.proposing.draws import Parameters, parameters_of
from optimizer.proposing.guide import Guide
from optimizer.single import plan_for
from spaces.branch import Branch
from spaces.layouts import with_batch
from spaces.plan import DeploymentPlan, Pool

# Plans of the estimated front that begin a study of a sampler which knows no estimate.
ESTIMATED = 12
# Most of the budget that plans by rule and by estimate may take.
MOST_SHARE = 0.25
# Samplers that learn from the trials they did not propose.
_LEARNING: frozenset[SamplerName] = frozenset({"tpe", "nsga2", "gp"})


@dataclass(frozen=True, slots=True)
class WarmStarts:
    """Parameters of the first trials, each once, and what could not be tried, in sentences."""

    parameters: list[Parameters]
    notes: list[str]


def warm_starts(job: Job, problem: Problem, sampler: SamplerName) -> WarmStarts:
    """The baseline and the deployments the job names, and for samplers that learn from them the
    front of the estimate and plans by plain rules, within a share of the budget.
    """
    found: dict[str, Parameters] = {}
    notes = []
    for file in (*([job.baseline] if job.baseline else []), *job.search.warm_starts):
        known = list(_in_space(deployments(Path(file), job, problem), problem))
        found |= dict(known)
        if not known:
            notes.append(f"{file} is not in the space of this job and starts no trial")
    if sampler in _LEARNING:
        most = len(found) + int(MOST_SHARE * job.search.trials)
        by_turns = chain.from_iterable(zip_longest(_estimated(problem), _plain(problem)))
        found |= dict(_in_space((plan for plan in by_turns if plan), problem))
        found = dict(islice(found.items(), most))
    return WarmStarts(list(found.values()), notes)


def _estimated(problem: Problem) -> list[DeploymentPlan]:
    """The front of the estimate, where there is one."""
    if why_not_estimated(problem):
        return []
    guide = Guide(Candidates.of(problem), problem.objectives, problem.constraints)
    return guide.propose(ESTIMATED, [])


def deployments(file: Path, job: Job, problem: Problem) -> list[DeploymentPlan]:
    """The plan in a file at its own load, or where it has none at each load of the job.

    Raises `InputError` when the plan is for another model.
    """
    plan = plan_for(file, job)
    if plan.load is not None:
        return [plan]
    return [plan.model_copy(update={"load": load}) for load in problem.space.loads]


def _in_space(
    plans: Iterable[DeploymentPlan], problem: Problem
) -> Iterator[tuple[str, Parameters]]:
    for plan in plans:
        parameters = parameters_of(plan, problem.space)
        if parameters is not None:
            yield plan.point_id, parameters


def _plain(problem: Problem) -> Iterator[DeploymentPlan]:
    """What one would deploy without a search, at a load in the middle: of every branch the
    smallest replicas and the largest, with the widest batches.
    """
    space = problem.space
    load = space.loads[len(space.loads) // 2]
    for branch, layouts in space.legal.items():
        setting = space.settings(branch)[0].model_copy(update={"load": load})
        for size in (min, max):
            pools = _evenly(problem, branch, [size(one, key=_chips) for one in layouts])
            if pools:
                yield setting.model_copy(update={"pools": pools})


def _evenly(problem: Problem, branch: Branch, layouts: list[Pool]) -> tuple[Pool, ...]:
    """The layouts at their widest batch with an even share of their chips each; nothing where a
    share holds no replica.
    """
    pools = []
    for layout in layouts:
        sharing = branch.chips.count(layout.chip)
        replicas = problem.site.budget[layout.chip].most // sharing // layout.chips_per_replica
        if not replicas:
            return ()
        step, seats = problem.space.batches(branch, layout)[-1]
        pools.append(with_batch(layout, step, seats).model_copy(update={"replicas": replicas}))
    return tuple(pools)


def _chips(layout: Pool) -> int:
    return layout.chips_per_replica
