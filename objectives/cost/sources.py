"""Which seconds of a step were read from measured tables, and which come from the fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OperatorSource:
    """Where the seconds of one operator at one shape are from.

    `measured` says whether they were read from a measured table; `origin` which one, or why the
    fit was taken instead.
    """

    operator: str
    shape: str
    measured: bool
    origin: str


@dataclass(slots=True)
class SourceLog:
    """What was asked for while the costs of a pool were made, each operator and shape once."""

    _entries: dict[tuple[str, str], OperatorSource] = field(default_factory=dict)

    def note(self, operator: str, shape: str, *, measured: bool, origin: str) -> None:
        """Remember where an operator's seconds came from."""
        self._entries[operator, shape] = OperatorSource(operator, shape, measured, origin)

    def told(self) -> tuple[OperatorSource, ...]:
        """All entries, in the order in which they were first asked for."""
        return tuple(self._entries.values())


def source_counts(sources: Iterable[OperatorSource]) -> dict[str, tuple[int, int]]:
    """Shapes read from measured tables, and shapes that fell back to the fit, by operator.

    >>> source_counts([OperatorSource("experts", "ep 8", True, "vllm 0.24.0, 27 rows")])
    {'experts': (1, 0)}
    """
    counts: dict[str, tuple[int, int]] = {}
    for source in sources:
        read, fell_back = counts.get(source.operator, (0, 0))
        counts[source.operator] = (read + source.measured, fell_back + (not source.measured))
    return counts
