"""Constants and offsets of the cost model, fitted to serving points, operators and steps."""

from objectives.calibration.assemble import Study, calibrated, calibration_of_rows, studied
from objectives.calibration.cross_validation import cross_validated
from objectives.calibration.tables import sorted_files, with_tables

__all__ = [
    "Study",
    "calibrated",
    "calibration_of_rows",
    "cross_validated",
    "sorted_files",
    "studied",
    "with_tables",
]
