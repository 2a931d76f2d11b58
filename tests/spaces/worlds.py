"""The sites and plans that the tests of the search space use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spaces import catalog
from spaces.branch import ByRole
from spaces.options import SpaceOptions
from spaces.plan import DeploymentPlan, EngineName, Load, Pool
from spaces.precision import KvDtype, WeightsName
from spaces.site import ChipBudget, Site
from spaces.space import SearchSpace
from spaces.speculation import Speculation


def site_of(
    model: str,
    chips: Mapping[str, int | tuple[int, int]],
    *,
    request: int = 8192,
    engine: EngineName = "vllm",
) -> Site:
    """A site with a budget of `chips`, at most or from to, for requests of `request` tokens."""
    budget = {name: (0, n) if isinstance(n, int) else n for name, n in chips.items()}
    return Site(
        model=catalog.model(model),
        chips={name: catalog.chip(name) for name in chips},
        engines={engine: catalog.engine(engine)},
        budget={name: ChipBudget(*both) for name, both in budget.items()},
        longest_request_tokens=request,
        longest_input_tokens=request - 1000,
    )


def unlike_site(chips: dict[str, int], *engines: EngineName, model: str = "minimax-m2.5") -> Site:
    """A site with several engines."""
    site = site_of(model, chips)
    return replace(site, engines={name: catalog.engine(name) for name in engines})


def plan_of(model: str, chip: str, engine: EngineName = "vllm", **pool: int) -> DeploymentPlan:
    """An aggregated plan of one pool."""
    return DeploymentPlan(
        model=model,
        engine=engine,
        topology="aggregated",
        pools=(Pool(role="aggregated", chip=chip, **pool),),
    )


def space_of(
    site: Site,
    options: SpaceOptions | None = None,
    *,
    engines: tuple[EngineName, ...] | ByRole[EngineName] = ("vllm",),
    weights: tuple[WeightsName, ...] = ("native",),
    kv: tuple[KvDtype, ...] | ByRole[KvDtype] = ("bf16",),
    concurrencies: tuple[int, ...] = (1, 8, 64),
    depths: tuple[int, ...] = (0,),
) -> SearchSpace:
    """The search space of a site."""
    chip = next(iter(site.budget))
    return SearchSpace(
        site=site,
        options=options or SpaceOptions(),
        base=plan_of(site.model.name, chip),
        engines=engines,
        weights=weights,
        kv=kv,
        loads=tuple(Load(concurrency=c) for c in concurrencies),
        speculation=tuple(Speculation(depth=n) if n else None for n in depths),
    )
