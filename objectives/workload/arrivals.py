"""Processes of arrivals, as a job file writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from objectives.workload.distributions import exactly_one
from objectives.workload.workload import Seconds
from spaces.documents import Document
from spaces.errors import InputError


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
        exactly_one(self, *type(self).model_fields)
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
