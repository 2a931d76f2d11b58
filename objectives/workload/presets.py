"""Workloads by name, each with its source; one YAML file each in `presets/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from objectives.preset_names import preset_names
from objectives.workload.mixing import mixed
from objectives.workload.session_spec import SessionSpec
from objectives.workload.sessions import generate_sessions
from objectives.workload.synthetic import SyntheticSpec, generate
from objectives.workload.tokens import token_scaled
from objectives.workload.workload import RequestClass, Workload
from spaces.documents import Document, parse_yaml, read_yaml, validated
from spaces.errors import InputError, did_you_mean

Shape = Literal["synthetic", "sessions", "mix"]
SHAPES: tuple[Shape, ...] = ("synthetic", "sessions", "mix")


class Promise(Document):
    """What the requests of a workload are promised; limits of one request in milliseconds."""

    tenant: str = "default"
    priority: int = 0
    ttft_ms: PositiveFloat | None = None
    tpot_ms: PositiveFloat | None = None
    e2e_ms: PositiveFloat | None = None


class Preset(Document):
    """A workload with where it comes from; an `estimate` is nobody's measurement.

    It is `synthetic` (requests of their own), `sessions`, or a `mix` of other presets by weights:
    shares of the requests. `sources` names the source of single figures by their keys, `based_on`
    a preset of sessions whose other figures it takes.
    """

    name: str
    title: str
    source: str
    status: Literal["published", "estimate"] = "published"
    based_on: str | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    request_class: Promise = Promise()
    synthetic: SyntheticSpec | None = None
    sessions: SessionSpec | None = None
    mix: Annotated[dict[str, PositiveFloat] | None, Field(min_length=2)] = None

    @model_validator(mode="after")
    def _one_shape(self) -> Preset:
        given = [shape for shape in SHAPES if getattr(self, shape) is not None]
        if len(given) != 1:
            raise InputError(
                f"a preset is exactly one of {', '.join(SHAPES)}", value=given or "none of them"
            )
        return self

    @property
    def requests(self) -> int:
        """How many requests it has where nothing else is asked for."""
        if self.mix is not None:
            return max(preset(name).requests for name in self.mix)
        spec = self.synthetic or self.sessions
        assert spec is not None, "a preset has a shape"
        return spec.requests


@lru_cache
def preset(name: str) -> Preset:
    """The preset of that name, or in the YAML file of that path.

    An unknown one is an `InputError` with the nearest names.

    >>> preset("fixed-8k1k").synthetic.output_tokens.uniform
    (819, 1024)
    """
    if name.endswith((".yaml", ".yml")):
        return _validated({"name": Path(name).stem, **read_yaml(Path(name))}, name)
    if name not in preset_names():
        raise InputError(
            "no such preset",
            value=name,
            remedy=f"{did_you_mean(name, preset_names())}; a path to a YAML file will do too",
        )
    file = files(__package__) / "presets" / f"{name}.yaml"
    return _validated(
        {"name": name, **parse_yaml(file.read_text(encoding="utf-8"), str(file))}, str(file)
    )


def workload_of(
    name: str,
    requests: int | None = None,
    seed: int = 1,
    parameters: Mapping[str, Any] | None = None,
    token_scale: float = 1.0,
) -> Workload:
    """The workload of a preset, its lengths multiplied by `token_scale`.

    `parameters` replace figures of the preset; a mapping within is merged, anything else replaced
    as a whole. The parameters of a `mix` are `mix` (weights) or mappings by preset. Raises
    `InputError` for an unknown key or a value that is no legal figure.
    """
    found = overridden(preset(name), parameters or {})
    wanted = found.requests if requests is None else requests
    if found.mix is not None:
        return _mix(found, wanted, seed, parameters or {}, token_scale)
    promise = RequestClass(**found.request_class.model_dump())
    if found.synthetic is not None:
        spec = found.synthetic.model_copy(update={"requests": wanted})
        drawn = replace(generate(spec, seed), name=found.name, classes=(promise,))
        return token_scaled(drawn, token_scale)
    assert found.sessions is not None, "a preset has a shape"
    scale = found.sessions.token_scale * token_scale
    sessions = found.sessions.model_copy(update={"requests": wanted, "token_scale": scale})
    return generate_sessions(sessions, seed, found.name, request_class=promise)


def check_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    """Raise an `InputError` where `workload_of` would not take the parameters."""
    found = preset(name)
    if found.mix is None:
        overridden(found, parameters)
        return
    _check_mix(found, parameters)
    for part in _weights(found, parameters):
        check_parameters(part, parameters.get(part, {}))


def overridden(found: Preset, parameters: Mapping[str, Any]) -> Preset:
    """The preset with some of its figures replaced."""
    if not parameters or found.mix is not None:
        return found
    shape = "synthetic" if found.synthetic is not None else "sessions"
    data = found.model_dump(exclude_none=True, exclude_unset=True)
    data[shape] = _merged(data[shape], parameters)
    return validated(Preset, data, f"parameters of {found.name}")


def _mix(
    found: Preset, requests: int, seed: int, parameters: Mapping[str, Any], token_scale: float
) -> Workload:
    _check_mix(found, parameters)
    weights = _weights(found, parameters)
    total = sum(weights.values())
    parts = []
    for name, weight in sorted(weights.items()):
        share = max(1, round(requests * weight / total))
        part = workload_of(name, share, seed, parameters.get(name), token_scale)
        parts.append(replace(part, classes=tuple(replace(c, tenant=name) for c in part.classes)))
    return mixed(found.name, parts)


def _weights(found: Preset, parameters: Mapping[str, Any]) -> dict[str, float]:
    weights = parameters.get("mix", found.mix)
    return dict(validated(Preset, found.model_dump() | {"mix": weights}, found.name).mix or {})


def _check_mix(found: Preset, parameters: Mapping[str, Any]) -> None:
    known = {"mix", *_weights(found, parameters)}
    unknown = sorted(parameters.keys() - known)
    if unknown:
        raise InputError(
            "the parameters of a mix are `mix` or mappings by preset",
            key=f"parameters.{unknown[0]}",
            remedy=did_you_mean(unknown[0], known),
        )


def _merged(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with `changes`; a distribution is replaced as a whole, since it has one shape."""
    merged = dict(data)
    for key, value in changes.items():
        old = merged.get(key)
        nested = isinstance(old, dict) and isinstance(value, Mapping) and key in _NESTED
        merged[key] = _merged(old, value) if nested and old is not None else value
    return merged


_NESTED = ("compaction", "invalidation", "subagents", "large_growth")


def _validated(data: dict[str, Any], where: str) -> Preset:
    base = data.get("based_on")
    if base is not None:
        origin = preset(str(base)).model_dump(exclude_none=True, exclude_unset=True)
        changes = data.get("sessions", {})
        data = {
            **{key: origin[key] for key in ("request_class", "sources") if key in origin},
            **data,
            "sessions": _merged(origin["sessions"], changes),
            "sources": {**origin.get("sources", {}), **data.get("sources", {})},
        }
    return validated(Preset, data, where)
