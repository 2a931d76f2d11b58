"""Distributions as a job file writes them: lengths in tokens, and gaps between requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from objectives.workload.workload import Seconds, Tokens
from spaces.documents import Document
from spaces.errors import InputError

MOST_TOKENS = 100_000_000
TokenCount = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
TokenSize = Annotated[float, Field(ge=1, le=MOST_TOKENS)]


class Lognormal(Document):
    """A lognormal distribution, by mean and coefficient of variation or by median and sigma.

    `sigma` is the standard deviation of the logarithm; sigma^2 = ln(1 + cv^2) and
    mean = median x exp(sigma^2 / 2).
    """

    mean: TokenSize | None = None
    cv: Annotated[float, Field(ge=0, le=50)] | None = None
    median: TokenSize | None = None
    sigma: Annotated[float, Field(ge=0, le=3)] | None = None

    @model_validator(mode="after")
    def _one_pair(self) -> Lognormal:
        if self.model_fields_set not in ({"mean", "cv"}, {"median", "sigma"}):
            raise InputError(
                "a lognormal distribution is given by mean and cv, or by median and sigma",
                value=sorted(self.model_fields_set),
                remedy="for example {mean: 8000, cv: 0.7}",
            )
        return self

    def draws(self, stream: np.random.Generator, n: int) -> Seconds:
        """`n` values; other parameters move the same draws."""
        if self.mean is not None and self.cv is not None:
            sigma = math.sqrt(math.log1p(self.cv**2))
            log_median = math.log(self.mean) - sigma**2 / 2
        else:
            assert self.median is not None and self.sigma is not None, "one pair is given"
            sigma, log_median = self.sigma, math.log(self.median)
        return np.exp(log_median + sigma * stream.standard_normal(n))


class Empirical(Document):
    """Values with weights, which need not sum to 1; equal weights where none are given."""

    values: Annotated[tuple[TokenCount, ...], Field(min_length=1)]
    weights: tuple[NonNegativeFloat, ...] | None = None

    @model_validator(mode="after")
    def _a_weight_each(self) -> Empirical:
        if self.weights is None:
            return self
        if len(self.weights) != len(self.values):
            raise InputError(
                f"each of the {len(self.values)} values needs one weight",
                key="weights",
                value=f"{len(self.weights)} weights",
            )
        if not 0 < sum(self.weights) < math.inf:
            raise InputError(
                "the weights must have a positive, finite sum",
                key="weights",
                value=sum(self.weights),
            )
        return self

    def draws(self, stream: np.random.Generator, n: int) -> Seconds:
        """`n` of the values."""
        steps = np.cumsum(self.weights or np.ones(len(self.values)))
        places = np.searchsorted(steps, stream.random(n) * steps[-1], side="right")
        drawn: Seconds = np.array(self.values, dtype=np.float64)[places]
        return drawn


class Distribution(Document):
    """Lengths in tokens: a bare number, or exactly one of the shapes, with optional bounds.

    `uniform` draws each whole number from low to high, both included, equally often. Values are
    rounded to whole tokens, from 1 to 100 million. Values beyond `min` or `max` become the bound
    itself, as a server cuts lengths at its limits: they are not drawn again, so a bound leaves
    every other request as it was.
    """

    constant: TokenSize | None = None
    uniform: tuple[TokenCount, TokenCount] | None = None
    lognormal: Lognormal | None = None
    empirical: Empirical | None = None
    min: TokenCount | None = None
    max: TokenCount | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"constant": value}
        if not isinstance(value, dict | Distribution):
            raise InputError(
                "lengths are a number of tokens or a distribution",
                value=value,
                remedy="for example 1000, {uniform: [800, 1000]} or "
                "{lognormal: {mean: 8000, cv: 0.7}, max: 60000}",
            )
        return value

    @model_validator(mode="after")
    def _one_shape_in_bounds(self) -> Distribution:
        _exactly_one(self, "constant", "uniform", "lognormal", "empirical")
        if self.uniform and self.uniform[0] > self.uniform[1]:
            raise InputError("low must not exceed high", key="uniform", value=list(self.uniform))
        if self.min is not None and self.max is not None and self.min > self.max:
            raise InputError(
                "min must not exceed max", key="min", value=self.min, remedy=f"max is {self.max}"
            )
        return self

    def draws(self, stream: np.random.Generator, n: int) -> Tokens:
        """`n` lengths in tokens."""
        values = np.rint(self._values(stream, n))
        return np.clip(values, self.min or 1, self.max or MOST_TOKENS).astype(np.int64)

    def _values(self, stream: np.random.Generator, n: int) -> Seconds:
        if self.constant is not None:
            return np.full(n, self.constant)
        if self.uniform is not None:
            low, high = self.uniform
            return low + np.floor(stream.random(n) * (high - low + 1))
        shape = self.lognormal or self.empirical
        assert shape is not None, "a distribution has one shape"
        return shape.draws(stream, n)


class Parameterless(Document):
    """A shape that needs no parameters."""


class Gamma(Document):
    """Gamma-distributed gaps; `cv` is their coefficient of variation, above 1 for bursts."""

    cv: Annotated[float, Field(gt=0, le=100)]


class Weibull(Document):
    """Weibull-distributed gaps; a shape below 1 makes bursts, 1 is Poisson."""

    shape: Annotated[float, Field(ge=0.1, le=100)]


class MarkovModulated(Document):
    """A Poisson process whose rate changes between states, one after the other in a circle.

    `rates` are relative; each state lasts an exponentially distributed time with its mean in
    `mean_s`, in seconds of the load.
    """

    rates: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=2)]
    mean_s: Annotated[tuple[PositiveFloat, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _a_time_each(self) -> MarkovModulated:
        if len(self.rates) != len(self.mean_s) or not sum(self.rates) > 0:
            raise InputError(
                "each state needs a relative rate and a mean time, and one rate must be above 0",
                key="mean_s",
                value=list(self.mean_s),
            )
        return self

    def times(self, stream: np.random.Generator, n: int, rate: float) -> Seconds:
        """The first `n` arrivals at a mean of `rate` per second; the first state is drawn."""
        weights = np.array(self.mean_s) / sum(self.mean_s)
        relative = np.array(self.rates) / float(np.dot(self.rates, weights))
        work = np.cumsum(stream.standard_exponential(n)) / rate
        state = int(np.searchsorted(np.cumsum(weights), stream.random()))
        begun, passed = [0.0], [0.0]
        while passed[-1] <= work[-1]:
            state %= len(relative)
            lasts = stream.standard_exponential() * self.mean_s[state]
            begun.append(begun[-1] + lasts)
            passed.append(passed[-1] + lasts * float(relative[state]))
            state += 1
        return _inverse(work, begun, passed)


class RateCurve(Document):
    """A Poisson process whose relative rate follows a curve, again and again.

    `rates[k]` holds for the k-th `step_s` seconds of each round.
    """

    rates: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)]
    step_s: PositiveFloat

    @model_validator(mode="after")
    def _some_traffic(self) -> RateCurve:
        if not 0 < sum(self.rates) < math.inf:
            raise InputError("one rate must be above 0", key="rates", value=list(self.rates))
        return self

    def times(self, stream: np.random.Generator, n: int, rate: float) -> Seconds:
        """The first `n` arrivals at a mean of `rate` per second."""
        work = np.cumsum(stream.standard_exponential(n)) / rate
        relative = np.array(self.rates) / float(np.mean(self.rates))
        rounds = int(work[-1] / (self.step_s * len(relative))) + 2
        passed = [0.0, *(np.cumsum(np.tile(relative, rounds)) * self.step_s).tolist()]
        return _inverse(work, [step * self.step_s for step in range(len(passed))], passed)


def _inverse(work: Seconds, begun: Sequence[float], passed: Sequence[float]) -> Seconds:
    """When the integral of the relative rate, given at some times, reaches `work`.

    Where the rate is 0 the integral stands still, and arrivals come at the end of that time.
    """
    times, integral = np.asarray(begun), np.asarray(passed)
    after = np.searchsorted(integral, work, side="left")
    before = after - 1
    share = (work - integral[before]) / (integral[after] - integral[before])
    found: Seconds = times[before] + share * (times[after] - times[before])
    return found


class Arrivals(Document):
    """The process of arrivals: `poisson`, `constant`, `{gamma: {cv: 3}}`,
    `{weibull: {shape: 0.5}}`, `{markov_modulated: {rates: [1, 10], mean_s: [300, 30]}}` or
    `{curve: {rates: [1, 3, 2], step_s: 3600}}`.

    The load sets the rate.
    """

    poisson: Parameterless | None = None
    constant: Parameterless | None = None
    gamma: Gamma | None = None
    weibull: Weibull | None = None
    markov_modulated: MarkovModulated | None = None
    curve: RateCurve | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        return {value: {}} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_shape(self) -> Arrivals:
        _exactly_one(self, *type(self).model_fields)
        return self

    def gaps(self, stream: np.random.Generator, n: int) -> Seconds:
        """`n` gaps in seconds, of mean 1."""
        if self.constant is not None:
            return np.ones(n)
        if self.gamma is not None:
            variance = self.gamma.cv**2
            return stream.standard_gamma(1 / variance, n) * variance
        if self.weibull is not None:
            return stream.weibull(self.weibull.shape, n) / math.gamma(1 + 1 / self.weibull.shape)
        changing = self.markov_modulated or self.curve
        if changing is not None:
            steps: Seconds = np.diff(changing.times(stream, max(n, 1), 1.0), prepend=0.0)[:n]
            return steps
        return stream.standard_exponential(n)

    def times(self, stream: np.random.Generator, n: int, rate: float) -> Seconds:
        """`n` arrivals at a mean of `rate` per second, the first at 0."""
        changing = self.markov_modulated or self.curve
        if changing is not None:
            drawn = changing.times(stream, n, rate)
            counted: Seconds = drawn - drawn[0]
            return counted
        found: Seconds = np.concatenate(([0.0], np.cumsum(self.gaps(stream, n - 1)))) / rate
        return found


def _exactly_one(document: Document, *keys: str) -> None:
    given = [key for key in keys if getattr(document, key) is not None]
    if len(given) != 1:
        raise InputError(
            f"exactly one of {', '.join(keys)} must be given", value=given or "none of them"
        )
