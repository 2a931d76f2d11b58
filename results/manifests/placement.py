"""Where each replica runs: devices of nodes, no device used twice.

Nodes hold the chips of one kind. A replica that fits on a node stays on one; a larger one takes
whole data-parallel ranks per node or, where a rank itself is larger than a node, equal shares of
each rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spaces.chip import ChipSpec
from spaces.errors import InputError, did_you_mean
from spaces.plan import DeploymentPlan, Pool


@dataclass(frozen=True, slots=True)
class Slice:
    """The devices of one node that one replica uses."""

    node: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a pool and where it lies; the first slice leads."""

    pool: Pool
    index: int
    slices: tuple[Slice, ...]

    @property
    def name(self) -> str:
        """Role and number, such as `decode-0`."""
        return f"{self.pool.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class Placement:
    """Every replica of a plan, in the plan's order, and the chip kind of each node."""

    replicas: tuple[Replica, ...]
    node_chips: tuple[str, ...]


@dataclass(slots=True)
class _Node:
    chip: str
    free: list[int] = field(default_factory=list)


def place(plan: DeploymentPlan, chips: Mapping[str, ChipSpec]) -> Placement:
    """Put the replicas of a plan on as few nodes as first fit, largest first, finds.

    Raises `InputError` for a chip that `chips` does not hold.
    """
    wanted = [
        (pool, index, shares_per_node(pool, chip_of(pool, chips).node_size))
        for pool in plan.pools
        for index in range(pool.replicas)
    ]
    nodes: list[_Node] = []
    placed: dict[tuple[str, int], Replica] = {}
    for pool, index, shares in sorted(wanted, key=lambda item: -max(item[2])):
        size = chips[pool.chip].node_size
        slices = tuple(_take(nodes, pool.chip, size, shares))
        placed[pool.role, index] = Replica(pool, index, slices)
    return Placement(
        tuple(placed[pool.role, index] for pool, index, _ in wanted),
        tuple(node.chip for node in nodes),
    )


def chip_of(pool: Pool, chips: Mapping[str, ChipSpec]) -> ChipSpec:
    """The chip a pool runs on, or an `InputError` that names the nearest known ones."""
    if pool.chip not in chips:
        raise InputError(
            "the chip of a pool must be known",
            key="chip",
            value=pool.chip,
            remedy=did_you_mean(pool.chip, chips) if chips else "",
        )
    return chips[pool.chip]


def shares_per_node(pool: Pool, node_size: int) -> tuple[int, ...]:
    """Chips of one replica on each node it needs, fullest nodes first.

    >>> shares_per_node(Pool(role="decode", chip="h100", tp=2, dp=7), 8)
    (8, 6)
    >>> shares_per_node(Pool(role="decode", chip="h100", tp=8, pp=2), 8)
    (8, 8)
    """
    if pool.chips_per_replica <= node_size:
        return (pool.chips_per_replica,)
    rank = pool.tp * pool.pp
    if rank > node_size:
        return equal_shares(pool, node_size)
    ranks_per_node = node_size // rank
    full, rest = divmod(pool.dp, ranks_per_node)
    return (ranks_per_node * rank,) * full + ((rest * rank,) if rest else ())


def equal_shares(pool: Pool, node_size: int) -> tuple[int, ...]:
    """Chips of one replica on each node when every node must hold equally many.

    A node holds whole data-parallel ranks, or an equal share of one rank.

    >>> equal_shares(Pool(role="decode", chip="h100", tp=2, dp=6), 8)
    (6, 6)
    >>> equal_shares(Pool(role="decode", chip="h100", tp=16, dp=2), 8)
    (8, 8, 8, 8)
    """
    if pool.chips_per_replica <= node_size:
        return (pool.chips_per_replica,)
    rank = pool.tp * pool.pp
    if rank > node_size:
        nodes = pool.dp * _smallest_divisor(rank, at_least=-(-rank // node_size))
    else:
        nodes = _smallest_divisor(pool.dp, at_least=-(-pool.chips_per_replica // node_size))
    return (pool.chips_per_replica // nodes,) * nodes


def _smallest_divisor(number: int, at_least: int) -> int:
    return next(d for d in range(at_least, number + 1) if number % d == 0)


def _take(nodes: list[_Node], chip: str, size: int, shares: tuple[int, ...]) -> list[Slice]:
    """Claim one node for each share, adding nodes where none has room."""
    with_room = [i for i, node in enumerate(nodes) if node.chip == chip and node.free]
    slices: list[Slice] = []
    for share in shares:
        node = next((i for i in with_room if len(nodes[i].free) >= share), len(nodes))
        if node == len(nodes):
            nodes.append(_Node(chip, list(range(size))))
        else:
            with_room.remove(node)
        devices, nodes[node].free = nodes[node].free[:share], nodes[node].free[share:]
        slices.append(Slice(node, tuple(devices)))
    return slices
