"""Workloads by name, each with its source; one YAML file each in `presets/`."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Literal

from objectives.workload.synthetic import SyntheticSpec
from spaces.documents import Document, parse_yaml, validated
from spaces.errors import InputError, did_you_mean


class Preset(Document):
    """A synthetic workload with where it comes from; an `estimate` is nobody's measurement."""

    name: str
    title: str
    source: str
    status: Literal["published", "estimate"] = "published"
    synthetic: SyntheticSpec


@lru_cache
def preset(name: str) -> Preset:
    """The preset of that name; an unknown one is an `InputError` with the nearest names.

    >>> preset("fixed-8k1k").synthetic.output_tokens.uniform
    (819, 1024)
    """
    if name not in preset_names():
        raise InputError("no such preset", value=name, remedy=did_you_mean(name, preset_names()))
    file = files(__package__) / "presets" / f"{name}.yaml"
    data = {"name": name, **parse_yaml(file.read_text(encoding="utf-8"), str(file))}
    return validated(Preset, data, str(file))


def preset_names() -> tuple[str, ...]:
    """The names of all presets, sorted."""
    found = (files(__package__) / "presets").iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in found if f.name.endswith(".yaml")))
