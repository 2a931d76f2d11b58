"""Traces in the formats they are published in, read to workloads."""

from objectives.workload.readers.columns import TraceRead
from objectives.workload.readers.mapped import ColumnMapping
from objectives.workload.readers.trace import read_trace

__all__ = ["ColumnMapping", "TraceRead", "read_trace"]
