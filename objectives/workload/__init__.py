"""What has to be served: requests from traces or distributions, their load and statistics."""

from objectives.workload.load import OfferedLoad, first, fitting
from objectives.workload.offering import LoadRules, offered, offers
from objectives.workload.parquet import read_parquet, write_parquet
from objectives.workload.readers import ColumnMapping, TraceRead, read_trace
from objectives.workload.shortening import shortened
from objectives.workload.statistics import describe, prefix_hit_tokens
from objectives.workload.synthetic import SyntheticSpec, generate
from objectives.workload.turns import TurnTokens, turn_tokens
from objectives.workload.workload import RequestClass, Workload

__all__ = [
    "ColumnMapping",
    "LoadRules",
    "OfferedLoad",
    "RequestClass",
    "SyntheticSpec",
    "TraceRead",
    "TurnTokens",
    "Workload",
    "describe",
    "first",
    "fitting",
    "generate",
    "offered",
    "offers",
    "prefix_hit_tokens",
    "read_parquet",
    "read_trace",
    "shortened",
    "turn_tokens",
    "write_parquet",
]
