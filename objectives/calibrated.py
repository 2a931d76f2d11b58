"""The calibration that predictions at a site rest on."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from spaces.calibration import Calibration
from spaces.documents import parse_yaml, validated
from spaces.site import Site

SHIPPED = "calibration.yaml"


def calibration_of(site: Site) -> Calibration:
    """The site's own, or else the one that ships with the project."""
    return site.calibration if site.calibration is not None else shipped_calibration()


@lru_cache(maxsize=1)
def shipped_calibration() -> Calibration:
    """The calibration that ships with the project, `objectives/calibration.yaml`."""
    text = (files("objectives") / SHIPPED).read_text(encoding="utf-8")
    where = f"objectives/{SHIPPED}"
    return validated(Calibration, parse_yaml(text, where), where)
