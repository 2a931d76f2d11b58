"""The choices between kinds of deployments, which decide what layouts there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from spaces.plan import TOPOLOGY_ROLES, EngineName, Role, Topology
from spaces.precision import KvDtype, WeightsName

Option = TypeVar("Option")
ByRole = Mapping[Role, tuple[Option, ...]]


@dataclass(frozen=True, slots=True)
class Branch:
    """The choices that decide what layouts there are; tuples go by pool, `drafts` by step."""

    topology: Topology
    engines: tuple[EngineName, ...]
    weights: WeightsName
    kv_dtypes: tuple[KvDtype, ...]
    drafts: int
    chips: tuple[str, ...]

    @property
    def engine(self) -> str:
        """Its engines in a word: one for all pools, or each pool's."""
        return joint_word(self.engines)

    @property
    def kv(self) -> str:
        """Its KV formats in a word."""
        return joint_word(self.kv_dtypes)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of its pools, in order of work."""
        return TOPOLOGY_ROLES[self.topology]


def joint_word(names: Sequence[str]) -> str:
    """What the pools have in common, or what each has where they differ.

    >>> joint_word(["vllm", "vllm"]), joint_word(["vllm", "sglang"])
    ('vllm', 'vllm+sglang')
    """
    return names[0] if len(set(names)) == 1 else "+".join(names)


def per_pool(
    choices: tuple[Option, ...] | ByRole[Option], roles: Sequence[Role]
) -> Iterator[tuple[Option, ...]]:
    """What each of the pools may have: all of them the same, or each one of its role's own.

    >>> list(per_pool(("a", "b"), ("prefill", "decode")))
    [('a', 'a'), ('b', 'b')]
    >>> list(per_pool({"prefill": ("a",), "decode": ("a", "b")}, ("prefill", "decode")))
    [('a', 'a'), ('a', 'b')]
    """
    if isinstance(choices, tuple):
        yield from ((one,) * len(roles) for one in choices)
    else:
        yield from product(*(choices[role] for role in roles))


def named(choices: tuple[Option, ...] | ByRole[Option]) -> list[Option]:
    """All that may be chosen, each once.

    >>> named({"prefill": ("a",), "decode": ("b", "a")})
    ['a', 'b']
    """
    lists = (choices,) if isinstance(choices, tuple) else choices.values()
    return list(dict.fromkeys(one for each in lists for one in each))
