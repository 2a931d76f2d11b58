"""The catalogue: one YAML file for each entry of a section, found by name or alias.

Sections are models, chips, systems, hosts, links and engines.

Only the file that is asked for is parsed, and only once. Names are compared without regard to
case; `_` and spaces are read as `-`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, TypeVar

from spaces.chip import ChipSpec
from spaces.documents import parse_yaml, validated
from spaces.engine import EngineSpec
from spaces.errors import InputError, did_you_mean
from spaces.huggingface import model_from_config
from spaces.model import ModelSpec
from spaces.system import Described, HostSpec, LinkSpec, SystemSpec

__all__ = [
    "chip",
    "chip_names",
    "cores_per_chip",
    "engine",
    "engine_names",
    "host",
    "host_names",
    "known_model",
    "link",
    "link_names",
    "model",
    "model_names",
    "priced",
    "system",
    "system_names",
]

Section = Literal["models", "chips", "systems", "hosts", "links", "engines"]

Entry = TypeVar("Entry", bound=Described)

_SHAPE_KEYS = {
    "hidden_size",
    "vocab_size",
    "tied_embeddings",
    "residual_streams",
    "single_part_layers",
    "attention",
    "ffn",
}
_OWN_KEYS = {"name", "hugging_face_id", "aliases", "source", "checked", "notes"}


def model(name_or_path: str) -> ModelSpec:
    """A model by catalogue name, alias or Hugging Face id, or from a `config.json` on disk.

    A path ends in `.json`, or is a folder that holds a `config.json` and has no catalogue name.

    >>> model("deepseek-ai/DeepSeek-R1").name
    'deepseek-r1'
    """
    path = Path(name_or_path)
    if path.suffix == ".json":
        return model_from_config(path)
    if _find("models", name_or_path) is None and (path / "config.json").is_file():
        return model_from_config(path / "config.json")
    return _catalogue_model(_stem("models", name_or_path))


def known_model(name: str) -> str | None:
    """The catalogue's name of a model by name, alias or Hugging Face id; None where it has none.

    >>> known_model("meta-llama/Llama-3.3-70B-Instruct"), known_model("/weights/mine")
    ('llama-3.3-70b', None)
    """
    return _find("models", name)


def chip(name: str) -> ChipSpec:
    """A chip by catalogue name or alias.

    >>> chip("GB200_NVL72").scaleup_size
    72
    """
    return _catalogue_chip(_stem("chips", name))


def engine(name: str) -> EngineSpec:
    """A serving engine by catalogue name or alias.

    >>> engine("TensorRT-LLM").name
    'trtllm'
    """
    return _catalogue_engine(_stem("engines", name))


def system(name: str) -> SystemSpec:
    """A system by catalogue name or alias.

    >>> system("Vera Rubin NVL72").chips
    ('vr200',)
    """
    return _catalogue_system(_stem("systems", name))


def host(name: str) -> HostSpec:
    """A host processor by catalogue name or alias.

    >>> host("xeon-6980p").name
    'xeon6-6980p'
    """
    return _catalogue_host(_stem("hosts", name))


def link(name: str) -> LinkSpec:
    """A kind of link by catalogue name or alias.

    >>> link("pcie5-x16").gb_per_s.value
    63.0
    """
    return _catalogue_link(_stem("links", name))


def priced(name: str) -> ChipSpec | HostSpec:
    """A chip or a host, which are what prices are given for."""
    return host(name) if _find("hosts", name) else chip(name)


def cores_per_chip(name: str) -> float | None:
    """Cores of the hosts that a chip sits with, by chip; of the smallest where kinds differ.

    None where the catalogue does not know them.

    >>> cores_per_chip("gb200")
    36.0
    """
    for spec in map(system, system_names()):
        if chip(name).name in spec.chips and spec.hosts and spec.hosts_per_node:
            cores = min(host(each).cores.value for each in spec.hosts)
            return spec.hosts_per_node.value * cores / spec.chips_per_node.value
    return None


def model_names() -> tuple[str, ...]:
    """Catalogue names of the models, sorted; aliases left out."""
    return tuple(_files("models"))


def chip_names() -> tuple[str, ...]:
    """Catalogue names of the chips, sorted; aliases left out."""
    return tuple(_files("chips"))


def system_names() -> tuple[str, ...]:
    """Catalogue names of the systems, sorted; aliases left out."""
    return tuple(_files("systems"))


def host_names() -> tuple[str, ...]:
    """Catalogue names of the host processors, sorted; aliases left out."""
    return tuple(_files("hosts"))


def link_names() -> tuple[str, ...]:
    """Catalogue names of the links, sorted; aliases left out."""
    return tuple(_files("links"))


def engine_names() -> tuple[str, ...]:
    """Catalogue names of the engines, sorted; aliases left out."""
    return tuple(_files("engines"))


@lru_cache
def _catalogue_model(stem: str) -> ModelSpec:
    return validated(ModelSpec, _model_data(stem), _where("models", stem))


@lru_cache
def _catalogue_chip(stem: str) -> ChipSpec:
    return validated(ChipSpec, _data("chips", stem), _where("chips", stem))


@lru_cache
def _catalogue_engine(stem: str) -> EngineSpec:
    return validated(EngineSpec, _data("engines", stem), _where("engines", stem))


@lru_cache
def _catalogue_system(stem: str) -> SystemSpec:
    return _described(SystemSpec, "systems", stem)


@lru_cache
def _catalogue_host(stem: str) -> HostSpec:
    return _described(HostSpec, "hosts", stem)


@lru_cache
def _catalogue_link(stem: str) -> LinkSpec:
    return _described(LinkSpec, "links", stem)


def _described(kind: type[Entry], section: Section, stem: str) -> Entry:
    return validated(kind, _data(section, stem), _where(section, stem))


def _model_data(stem: str) -> dict[str, Any]:
    """A model's mapping; `same_shape_as` takes over what the named file says of such a model."""
    own = _data("models", stem)
    twin = own.pop("same_shape_as", None)
    if twin is None:
        return own
    where = _where("models", stem)
    if restated := sorted(_SHAPE_KEYS & own.keys()):
        raise InputError(
            "a file with `same_shape_as` may not state shapes", where=where, key=restated[0]
        )
    shared = _data("models", twin) if twin in _files("models") else {"same_shape_as": None}
    if "same_shape_as" in shared:
        raise InputError(
            "must name a catalogue file that states its shapes",
            where=where,
            key="same_shape_as",
            value=twin,
            remedy=did_you_mean(str(twin), model_names()),
        )
    return {key: value for key, value in shared.items() if key not in _OWN_KEYS} | own


def _data(section: Section, stem: str) -> dict[str, Any]:
    """The mapping of one catalogue file, whose name is the name of what it describes."""
    text = _files(section)[stem].read_text(encoding="utf-8")
    return {"name": stem, **parse_yaml(text, _where(section, stem))}


def _where(section: Section, stem: str) -> str:
    return str(_files(section)[stem])


@lru_cache
def _files(section: Section) -> dict[str, Traversable]:
    """The section's files by canonical name, sorted."""
    found = (files(__name__) / section).iterdir()
    named = {
        file.name.removesuffix(".yaml"): file for file in found if file.name.endswith(".yaml")
    }
    return dict(sorted(named.items()))


def _stem(section: Section, name: str) -> str:
    """The canonical name behind a name or alias in any spelling, which must be known."""
    found = _find(section, name)
    if found is None:
        raise InputError(
            f"must be one of the catalogue's {section}",
            value=name,
            remedy=did_you_mean(_plain(name), _files(section), _aliases(section)),
        )
    return found


def _find(section: Section, name: str) -> str | None:
    wanted = _plain(name)
    return wanted if wanted in _files(section) else _aliases(section).get(wanted)


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())


@lru_cache
def _aliases(section: Section) -> dict[str, str]:
    """Canonical name by alias; of each file only the two keys that hold aliases are parsed."""
    index: dict[str, str] = {}
    for stem, file in _files(section).items():
        head = "".join(_NAMING_KEYS.findall(file.read_text(encoding="utf-8") + "\n"))
        naming = parse_yaml(head, _where(section, stem)) if head else {}
        full_id = str(naming.get("hugging_face_id", stem))
        for alias in (*naming.get("aliases", ()), full_id, full_id.rpartition("/")[2]):
            other = index.setdefault(_plain(str(alias)), stem)
            if other != stem:
                rule = f"an alias may name one file only, {other}.yaml has it too"
                raise InputError(rule, where=_where(section, stem), key="aliases", value=alias)
    return index


# A top-level key with its value: the line it stands on and the indented lines after it.
_NAMING_KEYS = re.compile(r"^(?:aliases|hugging_face_id):.*\n(?:[ -].*\n)*", re.MULTILINE)
