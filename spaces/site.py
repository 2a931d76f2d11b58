"""What a deployment is planned for: model, chips at hand, engines, the longest request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spaces.calibration import Calibration
from spaces.chip import ChipSpec
from spaces.engine import EngineSpec
from spaces.model import ModelSpec
from spaces.plan import EngineName
from spaces.system import HostSpec

# Whether times of matrix products are fitted to measurements, or read from the measured tables.
OperatorCosts = Literal["fitted", "measured"]


@dataclass(frozen=True, slots=True)
class ChipBudget:
    """How many chips of a kind a deployment must take at least and may take at most."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Site:
    """The facts a plan is judged against.

    `budget` has an entry for each chip kind that may be used. `longest_request_tokens` (input and
    output) and `longest_input_tokens` are those of the workload to be served. `calibration` holds
    corrections fitted to measured points, the shipped ones where it is None. `hosts` are the
    processors that plans may name, `cores_per_chip` those of the hosts that a chip kind sits with,
    where they are known; with `tools_on_hosts` tools of the workload run on hosts.
    """

    model: ModelSpec
    chips: Mapping[str, ChipSpec]
    engines: Mapping[EngineName, EngineSpec]
    budget: Mapping[str, ChipBudget]
    longest_request_tokens: int
    longest_input_tokens: int
    operator_costs: OperatorCosts = "fitted"
    calibration: Calibration | None = None
    hosts: Mapping[str, HostSpec] = field(default_factory=dict)
    cores_per_chip: Mapping[str, float] = field(default_factory=dict)
    tools_on_hosts: bool = False

    @property
    def budget_chips(self) -> int:
        """All chips of the budget."""
        return sum(budget.most for budget in self.budget.values())
