"""What exists and what may be chosen: models, chips, systems, engines, plans.

The catalogue is `spaces.catalog`.
"""

from spaces.chip import ChipSpec
from spaces.engine import EngineSpec
from spaces.errors import InputError, NothingFeasible, ServefrontError
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, KvTiers, Load, Pool, Precision, load_plan

__all__ = [
    "ChipSpec",
    "DeploymentPlan",
    "EngineSpec",
    "InputError",
    "KvTiers",
    "Load",
    "ModelSpec",
    "NothingFeasible",
    "Pool",
    "Precision",
    "ServefrontError",
    "load_plan",
]
