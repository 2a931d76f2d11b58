"""Values that a job names and that no legal plan of its space has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spaces.options import PoolOptions, SpaceOptions
from spaces.plan import Pool, Role
from spaces.space import SearchSpace

_OF_A_LAYOUT = {
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "data_parallel": "dp",
    "expert_parallel": "ep",
}


def unused_values(space: SearchSpace) -> Iterator[str]:
    """A sentence for each value of a layout in `space` that no legal plan has."""
    plain, options = SpaceOptions(), space.options
    layouts = [layout for pools in space.legal.values() for pool in pools for layout in pool]
    for key in _OF_A_LAYOUT:
        if getattr(options, key) != getattr(plain, key):
            those = [one for one in layouts if not _own(options, one.role, key)]
            yield from _unused(f"space.{key}", getattr(options, key), key, those)
        for role in options.pools:
            those = [one for one in layouts if one.role == role]
            yield from _unused(f"space.pools.{role}.{key}", _own(options, role, key), key, those)


def _own(options: SpaceOptions, role: Role, key: str) -> Sequence[int]:
    values: Sequence[int] = getattr(options.pools.get(role, PoolOptions()), key)
    return values


def _unused(name: str, values: Sequence[int], key: str, layouts: Sequence[Pool]) -> Iterator[str]:
    there = {getattr(layout, _OF_A_LAYOUT[key]) for layout in layouts}
    lost = [str(value) for value in values if value not in there]
    if lost:
        yield f"no legal plan has {name} {', '.join(lost)}"
