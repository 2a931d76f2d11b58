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
SPREAD_STRATA = 25
GOLDEN = (math.sqrt(5) - 1) / 2
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

    Each block holds one number in each of 125 equal strata, in random order; where it lies in its
    stratum changes from block to block by the golden ratio, so that rare values are even over many
    blocks too. Quantiles of what is drawn from them are near those of the distribution. More of
    them begin with the same ones.
    """
    blocks = -(-n // STRATA)
    within = stream.random(STRATA)
    strata = np.array([stream.permutation(STRATA) for _ in range(blocks)]).reshape(-1)
    turned = GOLDEN * np.repeat(np.arange(blocks), STRATA)
    drawn = (strata + (within[strata.astype(int)] + turned) % 1.0) / STRATA
    shares: Seconds = np.clip(drawn[:n], 1e-12, 1 - 1e-12)
    return shares


def spread_shares(stream: np.random.Generator, n: int, quantities: int) -> Seconds:
    """Shares in (0, 1) of several quantities [quantities, n], even in each and all together.

    Their order is that of the sequence of Roberts (2018), whose steps are powers of the root of
    x^(quantities + 1) = x + 1, from a random start: its points fill the cube evenly, so that parts
    of a sample that are chosen by one quantity have even shares of the others. Every 25 points
    have one share in each of 25 equal strata; where it lies in there changes from one 25 to the
    next by the golden ratio. More points begin with the same ones.
    """
    root = 2.0
    for _ in range(64):
        root = (1.0 + root) ** (1.0 / (quantities + 1))
    steps = root ** -np.arange(1, quantities + 1)
    begins, within = stream.random(quantities), stream.random((quantities, SPREAD_STRATA))
    blocks = -(-n // SPREAD_STRATA)
    points = (begins[:, None] + steps[:, None] * np.arange(blocks * SPREAD_STRATA)) % 1.0
    ranks = points.reshape(quantities, blocks, SPREAD_STRATA).argsort(axis=2).argsort(axis=2)
    turned = (within[:, None, :] + GOLDEN * np.arange(blocks)[None, :, None]) % 1.0
    shares = (ranks + np.take_along_axis(turned, ranks, axis=2)) / SPREAD_STRATA
    clipped: Seconds = np.clip(shares.reshape(quantities, -1)[:, :n], 1e-12, 1 - 1e-12)
    return clipped


def normal_at(u: Seconds) -> Seconds:
    """Values of the standard normal distribution at the shares `u` [n]."""
    return np.array([_NORMAL.inv_cdf(share) for share in u.tolist()])


def share_of(z: Seconds) -> Seconds:
    """Shares of the standard normal distribution below `z` [n]."""
    return np.array([0.5 * math.erfc(-value * math.sqrt(0.5)) for value in z.tolist()])
