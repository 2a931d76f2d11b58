"""Why a search space holds no plan: which rule excludes what, and what comes nearest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spaces.feasibility import Infeasible
from spaces.options import SpaceOptions
from spaces.site import Site
from spaces.survey import Survey

# The nearest to a plan first: a layout with too little memory keeps all other rules.
_ORDER = {"memory": -3, "batch": -2, "layout": -1, "budget": 1}


def why_no_plan(surveys: Iterable[Survey], site: Site, options: SpaceOptions) -> str:
    """One message for all branches: each obstacle once, with the places where it stands."""
    places: dict[str, dict[str, None]] = {}
    for survey in surveys:
        for place, obstacle in _obstacles(survey, site):
            places.setdefault(obstacle, {})[place] = None
    lines = [f"  {', '.join(where)}: {obstacle}" for obstacle, where in places.items()]
    narrowed = _narrowed(options)
    wider = f"widen {', '.join(narrowed)}, or " if narrowed else ""
    remedy = f"  {wider}change the budget of chips, the engine or the formats"
    return "\n".join(["no plan is legal", *lines, remedy])


def _obstacles(survey: Survey, site: Site) -> Iterator[tuple[str, str]]:
    """Where something excludes all plans of a branch, and what: a pool, the tiers, the budget."""
    branch = survey.branch
    whole = f"{branch.topology} in {branch.engine} on {' + '.join(dict.fromkeys(branch.chips))}"
    if survey.apart is not None:
        yield whole, survey.apart.reason
        return
    empty = [place for place, layouts in enumerate(survey.layouts) if not layouts]
    for place in empty:
        pool = f"{branch.roles[place]} pool in {branch.engines[place]} on {branch.chips[place]}"
        yield pool, _refused("layouts", survey.refused[place])
    if not survey.tiers:
        yield whole, _refused("choices of tiers and retention", survey.tiers_refused)
    elif not empty:
        yield whole, _no_replicas(survey, site)


def _refused(what: str, refused: Sequence[Infeasible]) -> str:
    """How many each rule refused, with its nearest miss; first the rules that were asked last."""
    by_rule: dict[str, list[Infeasible]] = {}
    for refusal in refused:
        by_rule.setdefault(refusal.rule, []).append(refusal)
    told = [
        f"{len(found)} x {rule} (nearest miss: {min(found, key=_shortfall).reason})"
        for rule, found in sorted(by_rule.items(), key=lambda item: _ORDER.get(item[0], 0))
    ]
    return f"none of {len(refused)} {what} is legal: {'; '.join(told)}"


def _shortfall(refusal: Infeasible) -> float:
    return refusal.shortfall


def _no_replicas(survey: Survey, site: Site) -> str:
    """Each pool has layouts, but no replicas of them together take a number of chips allowed."""
    allowed = " and ".join(
        f"{budget.least} to {budget.most} {kind}"
        if budget.least
        else f"at most {budget.most} {kind}"
        for kind, budget in site.budget.items()
    )
    sizes = (
        f"{role} {' or '.join(map(str, sorted({one.chips_per_replica for one in layouts})))}"
        for role, layouts in zip(survey.branch.roles, survey.layouts, strict=True)
    )
    return (
        f"no numbers of replicas that are allowed take {allowed} "
        f"(chips of a replica: {', '.join(sizes)})"
    )


def _narrowed(options: SpaceOptions) -> list[str]:
    """The keys of `space` that a job has set."""
    plain = SpaceOptions()
    keys = SpaceOptions.model_fields
    return [f"space.{key}" for key in keys if getattr(options, key) != getattr(plain, key)]
