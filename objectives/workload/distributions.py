"""Distributions of lengths in tokens, as a job file writes them."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeFloat, model_validator

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
        exactly_one(self, "constant", "uniform", "lognormal", "empirical")
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


def exactly_one(document: Document, *keys: str) -> None:
    """Raise an `InputError` unless just one of the keys is given."""
    given = [key for key in keys if getattr(document, key) is not None]
    if len(given) != 1:
        raise InputError(
            f"exactly one of {', '.join(keys)} must be given", value=given or "none of them"
        )
