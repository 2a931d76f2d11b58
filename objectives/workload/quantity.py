"""Quantities of sessions by their inverse distribution: lengths, counts, pauses and shares."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from objectives.workload.workload import Seconds
from spaces.documents import Document
from spaces.errors import InputError

# The percentiles of a table of 29 values; other tables name theirs.
PERCENTS = (0, 1, 2, *range(5, 91, 5), 92.5, 95, 97, 98, 99, 99.5, 99.9, 100)
GEOMETRIC_FROM = 0.9
STRATA = 125
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
_NORMAL = NormalDist()


class Quantiles(Document):
    """Values at percentiles, which rise from 0 to 100."""

    percents: tuple[Annotated[float, Field(ge=0, le=100)], ...] = PERCENTS
    values: tuple[NonNegativeFloat, ...]

    @model_validator(mode="after")
    def _a_rising_table(self) -> Quantiles:
        if len(self.values) != len(self.percents):
            raise InputError(
                f"a table of quantiles needs a value for each of {len(self.percents)} percents",
                key="values",
                value=f"{len(self.values)} values",
            )
        for key, numbers in (("percents", self.percents), ("values", self.values)):
            if any(late < early for early, late in pairwise(numbers)):
                raise InputError("the numbers must not fall", key=key, value=list(numbers))
        if (self.percents[0], self.percents[-1]) != (0, 100):
            raise InputError("percents must go from 0 to 100", key="percents")
        return self

    def at(self, u: Seconds) -> Seconds:
        """The values at the shares `u`, from 0 to 1.

        Between two points they lie on a straight line up to the 90th percentile, and on a
        geometric one above: the tails of lengths and pauses fall like powers, and a straight line
        to the largest value would raise the mean by several percent.
        """
        shares = np.array(self.percents) / 100
        values = np.array(self.values)
        straight: Seconds = np.interp(u, shares, values)
        positive = values > 0
        if not positive[-1]:
            return straight
        curved = np.exp(np.interp(u, shares[positive], np.log(values[positive])))
        bent: Seconds = np.where(
            u > max(GEOMETRIC_FROM, float(shares[positive][0])), curved, straight
        )
        return bent


class Spread(Document):
    """Mean (or median) and spread of a distribution of known shape."""

    mean: NonNegativeFloat
    sd: NonNegativeFloat


class LogSpread(Document):
    """A lognormal distribution by median and the standard deviation of the logarithm."""

    median: PositiveFloat
    sigma: Annotated[float, Field(ge=0, le=5)]


class Choice(Document):
    """Values with weights, which need not sum to 1."""

    values: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)]
    weights: tuple[NonNegativeFloat, ...]

    @model_validator(mode="after")
    def _a_weight_each(self) -> Choice:
        if len(self.values) != len(self.weights) or not 0 < sum(self.weights) < math.inf:
            raise InputError(
                "each value needs a weight, and their sum must be positive",
                key="weights",
                value=list(self.weights),
            )
        return self


class Quantity(Document):
    """A bare number, or exactly one shape, cut at `min` and `max`.

    `lognormal_mean` is a lognormal by mean and standard deviation; `normal`, `exponential` and
    the others are cut, not drawn again.
    """

    constant: NonNegativeFloat | None = None
    uniform: tuple[NonNegativeFloat, NonNegativeFloat] | None = None
    log_uniform: tuple[PositiveFloat, PositiveFloat] | None = None
    quantiles: Quantiles | None = None
    lognormal: LogSpread | None = None
    lognormal_mean: Spread | None = None
    normal: Spread | None = None
    exponential: PositiveFloat | None = None
    choice: Choice | None = None
    min: NonNegativeFloat = 0.0
    max: PositiveFloat | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"constant": value}
        return value

    @model_validator(mode="after")
    def _one_shape(self) -> Quantity:
        shapes = [name for name in _SHAPES if getattr(self, name) is not None]
        if len(shapes) != 1:
            raise InputError(
                f"exactly one of {', '.join(_SHAPES)} must be given",
                value=shapes or "none of them",
            )
        if self.max is not None and self.min > self.max:
            raise InputError("min must not exceed max", key="min", value=self.min)
        return self

    def at(self, u: Seconds) -> Seconds:
        """The values at the shares `u` [n] of the distribution."""
        most = math.inf if self.max is None else self.max
        cut: Seconds = np.clip(self._values(u), self.min, most)
        return cut

    def mean(self) -> float:
        """The mean, by the midpoints of ten thousand equal shares."""
        return float(self.at((np.arange(10_000) + 0.5) / 10_000).mean())

    def _values(self, u: Seconds) -> Seconds:
        if self.constant is not None:
            return np.full(len(u), self.constant)
        if self.uniform is not None:
            low, high = self.uniform
            return low + (high - low) * u
        if self.log_uniform is not None:
            lowest, highest = self.log_uniform
            return lowest * (highest / lowest) ** u
        if self.quantiles is not None:
            return self.quantiles.at(u)
        if self.exponential is not None:
            return -self.exponential * np.log1p(-u)
        if self.choice is not None:
            steps = np.cumsum(self.choice.weights)
            places = np.searchsorted(steps, u * steps[-1], side="right")
            chosen: Seconds = np.array(self.choice.values)[np.minimum(places, len(steps) - 1)]
            return chosen
        return self._bell(normal_at(u))

    def _bell(self, z: Seconds) -> Seconds:
        if self.normal is not None:
            return self.normal.mean + self.normal.sd * z
        if self.lognormal is not None:
            return self.lognormal.median * np.exp(self.lognormal.sigma * z)
        assert self.lognormal_mean is not None, "a quantity has one shape"
        mean, sd = self.lognormal_mean.mean, self.lognormal_mean.sd
        sigma = math.sqrt(math.log1p((sd / mean) ** 2))
        values: Seconds = np.exp(math.log(mean) - sigma**2 / 2 + sigma * z)
        return values


_SHAPES = (
    "constant",
    "uniform",
    "log_uniform",
    "quantiles",
    "lognormal",
    "lognormal_mean",
    "normal",
    "exponential",
    "choice",
)


def even_shares(stream: np.random.Generator, n: int) -> Seconds:
    """`n` shares in (0, 1), each uniform, evenly spread over every 125 of them.

    Each block holds one number in each of 125 equal strata, in random order: quantiles of what is
    drawn from them are near those of the distribution. More of them begin with the same ones.
    """
    blocks = -(-n // STRATA)
    shares = [(stream.permutation(STRATA) + stream.random(STRATA)) / STRATA for _ in range(blocks)]
    drawn: Seconds = np.clip(np.concatenate([np.zeros(0), *shares])[:n], 1e-12, 1 - 1e-12)
    return drawn


def shares_along(stream: np.random.Generator, along: Seconds) -> Seconds:
    """A share in (0, 1) for each item [n], spread evenly over items with similar values `along`.

    Within each 125 items the one with the k-th value has the share k times the golden ratio, from
    a random start and modulo 1, so that any run of neighbours covers (0, 1). The two quantities
    are then independent, with less noise than independent draws have.
    """
    shares = np.empty(len(along))
    for begin in range(0, len(along), STRATA):
        order = begin + np.argsort(along[begin : begin + STRATA], kind="stable")
        shares[order] = (stream.random() + np.arange(len(order)) * GOLDEN_RATIO) % 1.0
    clipped: Seconds = np.clip(shares, 1e-12, 1 - 1e-12)
    return clipped


def normal_at(u: Seconds) -> Seconds:
    """Values of the standard normal distribution at the shares `u` [n]."""
    return np.array([_NORMAL.inv_cdf(share) for share in u.tolist()])


def share_of(z: Seconds) -> Seconds:
    """Shares of the standard normal distribution below `z` [n]."""
    return np.array([0.5 * math.erfc(-value * math.sqrt(0.5)) for value in z.tolist()])
