"""What the evaluation of a plan rests on beside the plan: equal grounds give equal evaluations.

Objectives, constraints, budgets and the space are no grounds: they judge and choose, and what was
simulated under others can be judged again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import version

import numpy as np

from objectives.weighted import WeightedWorkload
from objectives.workload import Workload
from optimizer.problem import Problem
from spaces.plan import DeploymentPlan

GROUNDS = "grounds"


def grounds_of(problem: Problem) -> dict[str, str]:
    """A digest of each of the grounds, by name; chips and engines have their own."""
    site = problem.site
    common = {
        "the version of servefront": version("servefront"),
        "the model": site.model.model_dump_json(),
        "the slo": "" if problem.slo is None else problem.slo.model_dump_json(),
        "the prices": json.dumps(dict(problem.prices), sort_keys=True),
        "the rules of the load": problem.rules.model_dump_json(),
        "the operator costs": site.operator_costs,
        "the seed": str(problem.seed),
        "the context": f"{site.longest_request_tokens}/{site.longest_input_tokens}",
    }
    chips = {_chip(kind): chip.model_dump_json() for kind, chip in site.chips.items()}
    engines = {_engine(name): engine.model_dump_json() for name, engine in site.engines.items()}
    texts = common | chips | engines
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    return digests | {"the requests": _digest_of_all(problem.workloads)}


def changed_grounds(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The grounds all plans have in common that differ, by name."""
    own = (_chip(""), _engine(""))
    names = [name for name in {**old, **new} if not name.startswith(own)]
    return [name for name in names if old.get(name) != new.get(name)]


def rests_on(plan: DeploymentPlan) -> Iterator[str]:
    """The names of the grounds that are the plan's own."""
    yield from (_engine(name) for name in plan.engines)
    yield from (_chip(pool.chip) for pool in plan.pools)


def _chip(kind: str) -> str:
    return f"chip {kind}"


def _engine(name: str) -> str:
    return f"engine {name}"


def _digest_of_all(workloads: Sequence[WeightedWorkload]) -> str:
    """Of several workloads their names and weights too, which are in the metrics."""
    if len(workloads) == 1:
        return _digest(workloads[0].workload)
    text = json.dumps([(one.name, one.weight, _digest(one.workload)) for one in workloads])
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(workload: Workload) -> str:
    """Of all a workload holds except its name."""
    digest = hashlib.sha256()
    for field in fields(workload):
        value = getattr(workload, field.name)
        if isinstance(value, np.ndarray):
            digest.update(f"{field.name} {value.dtype} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        elif field.name != "name":
            digest.update(f"{field.name} {value!r}".encode())
    return digest.hexdigest()
