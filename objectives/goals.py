"""What the user cares about: objectives to push, constraints to keep, parsed from one line each.

Signs are settled here, once: everything behind `Objective.loss` is minimized, and a constraint
holds when its violation is zero or less.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from objectives.metrics import METRICS, pool_metric, pool_of, split_name
from spaces.errors import InputError, did_you_mean
from spaces.plan import Role

Direction = Literal["minimize", "maximize"]
_CONSTRAINT = re.compile(r"^\s*([a-z0-9_]+(?:@[A-Za-z0-9_.-]+)?)\s*(<=|>=)\s*([-+0-9.eE]+)\s*$")


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric and the direction in which it should go."""

    metric: str
    direction: Direction

    def __str__(self) -> str:
        return f"{self.direction} {self.metric}"

    def loss(self, value: float) -> float:
        """The value with its sign set so that smaller is better."""
        return -value if self.direction == "maximize" else value


@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound on a metric."""

    metric: str
    relation: Literal["<=", ">="]
    bound: float

    def __str__(self) -> str:
        return f"{self.metric} {self.relation} {self.bound:g}"

    @property
    def pool(self) -> Role | None:
        """The role of the pool that is bounded, if one is."""
        return pool_of(self.metric)

    def applies(self, metrics: Mapping[str, float]) -> bool:
        """Whether the deployment of such metrics has what is bounded.

        A bound on a pool says nothing of a deployment without that pool, and holds there.
        """
        return self.pool is None or pool_metric(self.pool, "hbm_gb_per_chip") in metrics

    def violation(self, metrics: Mapping[str, float]) -> float:
        """How far the metric is beyond the bound, relative to it; zero or less when it holds."""
        excess = metrics[self.metric] - self.bound
        scale = abs(self.bound) or 1.0
        return (excess if self.relation == "<=" else -excess) / scale


def parse_objective(text: str) -> Objective:
    """`maximize output_tokens_per_s_per_chip` as an `Objective`.

    >>> str(parse_objective("minimize ttft_p95_ms"))
    'minimize ttft_p95_ms'
    """
    words = text.split()
    if len(words) != 2 or words[0] not in ("minimize", "maximize"):
        raise InputError(
            "an objective is `minimize METRIC` or `maximize METRIC`",
            value=text,
            remedy="for example: maximize output_tokens_per_s_per_chip",
        )
    direction: Direction = "minimize" if words[0] == "minimize" else "maximize"
    return Objective(known_metric(words[1]), direction)


def parse_constraint(text: str) -> Constraint:
    """`ttft_p95_ms <= 2000` as a `Constraint`.

    >>> parse_constraint("power_kw <= 120").bound
    120.0
    """
    match = _CONSTRAINT.match(text)
    try:
        bound = float(match[3]) if match else None
    except ValueError:
        bound = None
    if match is None or bound is None:
        raise InputError(
            "a constraint is `METRIC <= NUMBER` or `METRIC >= NUMBER`",
            value=text,
            remedy="for example: ttft_p95_ms <= 2000",
        )
    return Constraint(known_metric(match[1]), "<=" if match[2] == "<=" else ">=", bound)


def known_metric(name: str) -> str:
    """The name itself if there is such a metric, else an `InputError` with the nearest names.

    Whether there is such a workload behind an `@` only the job knows.
    """
    metric, _ = split_name(name)
    if metric not in METRICS:
        raise InputError("no such metric", value=name, remedy=did_you_mean(metric, METRICS))
    return name
