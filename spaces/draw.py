"""Where the choices of a plan come from."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

Option = TypeVar("Option")


class Draw(Protocol):
    """Answers the questions of a search space: an optimizer's trial, chance, or a fixed list."""

    def ordered(self, name: str, options: Sequence[Option]) -> Option:
        """One of `options`, of which neighbours are alike; they may differ from call to call."""
        ...

    def unordered(self, name: str, options: Sequence[Option]) -> Option:
        """One of `options`, which have no order and are the same at every call with this name."""
        ...


class RandomDraw:
    """Chooses uniformly, by a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def ordered(self, name: str, options: Sequence[Option]) -> Option:
        """One of `options`."""
        return at_position(self._random.random(), options)

    def unordered(self, name: str, options: Sequence[Option]) -> Option:
        """One of `options`."""
        return at_position(self._random.random(), options)


def at_position(position: float, options: Sequence[Option]) -> Option:
    """The option at a position in [0, 1], each option taking an equal share of it.

    >>> at_position(0.5, [1, 2, 4, 8])
    4
    """
    return options[min(len(options) - 1, math.floor(position * len(options)))]
