"""How the pools of a plan share a budget's chips, some of which must, others may be taken."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

# A number for each chip kind, in the order of the budget.
Chips = tuple[int, ...]


class Share(NamedTuple):
    """What a pool, or pools with equally many replicas, may take.

    `choices` are the chips that one replica takes, each with the number of ways to take them;
    `replicas` the numbers of replicas that are allowed, any where it is empty.
    """

    choices: tuple[tuple[Chips, int], ...]
    replicas: tuple[int, ...] = ()

    def beside(self, other: Share) -> Share:
        """The share of these pools and another one together, with equally many replicas."""
        both: dict[Chips, int] = {}
        for taken, ways_ in self.choices:
            for further, others in other.choices:
                together = tuple(map(sum, zip(taken, further, strict=True)))
                both[together] = both.get(together, 0) + ways_ * others
        return Share(tuple(both.items()), self.replicas)

    def numbers(self, taken: Chips, left: Chips) -> Iterator[int]:
        """The allowed numbers of replicas that take `taken` each and fit into what is left."""
        most = min(there // size for there, size in zip(left, taken, strict=True) if size)
        if self.replicas:
            return (number for number in self.replicas if number <= most)
        return iter(range(1, most + 1))


@lru_cache(maxsize=1 << 16)
def ways(shares: tuple[Share, ...], left: Chips, spare: Chips) -> int:
    """Ways to give every share a choice and replicas, out of the chips that are `left`.

    No more than `spare` may remain of any kind.
    """
    if not shares:
        return int(all(there <= most for there, most in zip(left, spare, strict=True)))
    first, others = shares[0], shares[1:]
    return sum(
        count * ways(others, less(left, taken, number), spare)
        for taken, count in first.choices
        for number in first.numbers(taken, left)
    )


def less(left: Chips, taken: Chips, times: int) -> Chips:
    """What is left after `times` replicas that take `taken` each.

    >>> less((32, 8), (4, 0), 3)
    (20, 8)
    """
    return tuple(there - size * times for there, size in zip(left, taken, strict=True))
