"""What plans are worth by arithmetic alone: a steady state in place of a simulation.

Formulas: docs/search.md. The simulator has the last word on every plan that is told.
"""

from objectives.estimate.demand import Demand, demand_of
from objectives.estimate.metrics import not_estimated
from objectives.estimate.plans import estimated

__all__ = [
    "Demand",
    "demand_of",
    "estimated",
    "not_estimated",
]
