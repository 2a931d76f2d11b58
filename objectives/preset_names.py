"""Which workloads are known by name, told without loading what makes them."""

from __future__ import annotations

from importlib.resources import files


def preset_names() -> tuple[str, ...]:
    """The names of all presets of `objectives.workload.presets`, sorted."""
    found = (files(__package__) / "workload" / "presets").iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in found if f.name.endswith(".yaml")))
