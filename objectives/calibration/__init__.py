"""Constants and offsets of the cost model, fitted to measured serving points."""

from objectives.calibration.assemble import Study, calibrated, calibration_of_rows, studied
from objectives.calibration.cross_validation import cross_validated

__all__ = ["Study", "calibrated", "calibration_of_rows", "cross_validated", "studied"]
