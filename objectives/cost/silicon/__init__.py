"""Operator costs read from measured tables instead of from their fit (extra `silicon`)."""

from objectives.cost.silicon.products import measured_kernels
from objectives.cost.silicon.tables import FORMATS, SYSTEMS, check_measured, newest, tables_of

__all__ = ["FORMATS", "SYSTEMS", "check_measured", "measured_kernels", "newest", "tables_of"]
