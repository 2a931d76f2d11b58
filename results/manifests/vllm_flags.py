"""The command-line flags of vLLM, version by version: facts read from its wheels.

Flags come and go between minor versions, so a manifest is made for one version and every flag in
it is checked against that version's table (`flags/vllm-*.json`, made by
`scripts/make_flag_table.py`). Adding a version is adding a table.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from spaces.errors import InputError


@dataclass(frozen=True, slots=True)
class Flag:
    """What a flag takes: `kind` is one word of the table, `choices` its legal values if named.

    An `open_ended` flag takes other text too (names registered by plugins).
    """

    kind: str
    choices: tuple[str, ...] = ()
    open_ended: bool = False


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The flags of `vllm serve` and the registered KV connectors of one version."""

    version: str
    flags: Mapping[str, Flag]
    connectors: frozenset[str]


def flag_table(version: str = "") -> FlagTable:
    """The table of a vLLM version such as `0.33` or `0.33.0`; of the newest where none is named.

    Patch releases share the table of their minor version. Raises `InputError` for a version
    without one.
    """
    minor = ".".join(version.split(".")[:2])
    tables = _tables()
    if not version:
        return max(tables.values(), key=lambda table: _ordinal(table.version))
    if minor not in tables:
        raise InputError(
            "vLLM's flags must be known for the version",
            key="engine_version",
            value=version,
            remedy=f"known are {', '.join(sorted(tables, key=_ordinal))}; leave it out for the "
            "newest",
        )
    return tables[minor]


def assert_legal(arguments: Sequence[str], table: FlagTable) -> None:
    """Stop on a flag this version lacks or a value it does not take: a broken law, not an input.

    `arguments` are flags, each followed by its value unless it is a switch.
    """
    rest = list(arguments)
    while rest:
        name = rest.pop(0)
        flag = table.flags.get(name)
        if flag is None and name.startswith("--no-"):
            flag = table.flags.get("--" + name.removeprefix("--no-"))
            assert flag is not None and flag.kind == "switch", f"{name} is no switch"
            continue
        assert flag is not None, f"vLLM {table.version} has no flag {name}"
        if flag.kind not in ("switch", "flag"):
            _assert_value(name, flag, rest.pop(0))


def _assert_value(name: str, flag: Flag, value: str) -> None:
    if flag.kind == "integer":
        int(value)
    elif flag.kind == "number":
        float(value)
    elif flag.kind == "json":
        json.loads(value)
    elif flag.kind == "choice" and not flag.open_ended:
        assert value in flag.choices, f"{name} does not take {value}"


@functools.cache
def _tables() -> dict[str, FlagTable]:
    folder = resources.files(__package__) / "flags"
    tables = [
        _read(json.loads(entry.read_text(encoding="utf-8")))
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    ]
    return {".".join(table.version.split(".")[:2]): table for table in tables}


def _read(data: dict[str, dict[str, dict[str, object]]]) -> FlagTable:
    flags = {
        name: Flag(
            kind=str(facts["kind"]),
            choices=tuple(str(choice) for choice in _listed(facts.get("choices"))),
            open_ended=bool(facts.get("open", False)),
        )
        for name, facts in data["flags"].items()
    }
    return FlagTable(str(data["version"]), flags, frozenset(data["connectors"]))


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _ordinal(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
