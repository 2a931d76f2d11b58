"""What has to be served: requests from traces or distributions, their load and statistics."""

from objectives.workload.load import OfferedLoad, first, fitting, offered
from objectives.workload.readers import TraceRead, read_trace
from objectives.workload.statistics import describe, prefix_hit_tokens
from objectives.workload.synthetic import SyntheticSpec, generate
from objectives.workload.workload import Workload

__all__ = [
    "OfferedLoad",
    "SyntheticSpec",
    "TraceRead",
    "Workload",
    "describe",
    "first",
    "fitting",
    "generate",
    "offered",
    "prefix_hit_tokens",
    "read_trace",
]
