"""Traces in the formats they are published in, read to workloads."""

from objectives.workload.readers.trace import TraceRead, read_trace

__all__ = ["TraceRead", "read_trace"]
