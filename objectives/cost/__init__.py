"""What a step, a transfer and an hour of a deployment cost.

Formulas and sources: docs/cost_model.md.
"""

from objectives.cost.build import step_costs
from objectives.cost.chip_efficiency import efficiency_tables, estimated_blocks
from objectives.cost.experts import imbalance as expert_imbalance
from objectives.cost.kv_transfer import (
    KvLink,
    conversion_s_per_byte,
    host_link,
    kv_bytes_per_request,
    rank_link,
    staging_s_per_byte,
)
from objectives.cost.overheads import frontend_seconds
from objectives.cost.price import (
    idle_saving_kw,
    power_drawn_kw,
    power_kw,
    required_usd_per_hour,
    usd_per_hour,
)
from objectives.cost.silicon import check_measured
from objectives.cost.sources import OperatorSource, source_counts
from objectives.cost.split_decode import split_step_costs
from objectives.cost.step_costs import RankBatch, StepCosts, ping_pong_seconds, step_seconds

__all__ = [
    "KvLink",
    "OperatorSource",
    "RankBatch",
    "StepCosts",
    "check_measured",
    "conversion_s_per_byte",
    "efficiency_tables",
    "estimated_blocks",
    "expert_imbalance",
    "frontend_seconds",
    "host_link",
    "idle_saving_kw",
    "kv_bytes_per_request",
    "ping_pong_seconds",
    "power_drawn_kw",
    "power_kw",
    "rank_link",
    "required_usd_per_hour",
    "source_counts",
    "split_step_costs",
    "staging_s_per_byte",
    "step_costs",
    "step_seconds",
    "usd_per_hour",
]
