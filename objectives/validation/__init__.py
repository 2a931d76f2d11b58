"""Predictions beside measurements: each measured serving point simulated at its own mapping."""

from objectives.validation.points import QUANTITIES, Point, PointsFile, read_points
from objectives.validation.prediction import Predicted, Predictions, Progress, predict_all
from objectives.validation.report import GROUPINGS, Validation, check_groupings, document

__all__ = [
    "GROUPINGS",
    "QUANTITIES",
    "Point",
    "PointsFile",
    "Predicted",
    "Predictions",
    "Progress",
    "Validation",
    "check_groupings",
    "document",
    "predict_all",
    "read_points",
]
