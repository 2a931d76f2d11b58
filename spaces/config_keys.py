"""A Hugging Face `config.json` read key by key, so that no key goes unnoticed."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from spaces.documents import parse_yaml, read_text
from spaces.errors import InputError


class ConfigKeys:
    """One mapping of a config file that remembers which of its keys were read.

    A key whose value is null counts as left out. `where` is the file, `prefix` the place of the
    mapping in it.
    """

    def __init__(self, data: dict[str, Any], where: str, prefix: str = "") -> None:
        self.data, self.where, self.prefix = data, where, prefix
        self._read: set[str] = set()

    def value(self, key: str, default: Any = None) -> Any:
        """What stands under `key`, or the default."""
        self._read.add(key)
        found = self.data.get(key)
        return default if found is None else found

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`; without a default the key is required."""
        found = self.value(key, default)
        if found is None:
            raise self.error("this key is required", key)
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            raise self.error(f"a whole number of at least {least} is needed", key)
        return found

    def flag(self, key: str, default: bool = False) -> bool:
        """A true or false."""
        found = self.value(key, default)
        if not isinstance(found, bool):
            raise self.error("true or false is needed", key)
        return found

    def items(self, key: str) -> list[Any]:
        """A list; empty where the key is left out."""
        found = self.value(key, [])
        if not isinstance(found, list):
            raise self.error("a list is needed", key)
        return found

    def nested(self, key: str) -> ConfigKeys:
        """The mapping under `key`, which is required."""
        found = self.value(key)
        if found is None:
            raise self.error("this key is required", key)
        if not isinstance(found, dict):
            raise self.error("a mapping is needed", key)
        return ConfigKeys(found, self.where, f"{self.prefix}{key}.")

    def only(self, key: str, *allowed: object) -> None:
        """Refuse a value that has a cost nobody here knows how to count."""
        if self.value(key, allowed[0]) not in allowed:
            said = " or ".join(json.dumps(value) for value in allowed)
            raise self.error(f"only {said} can be costed", key)

    def error(self, rule: str, key: str) -> InputError:
        """An error about one key of this mapping."""
        return InputError(
            rule, where=self.where, key=f"{self.prefix}{key}", value=self.data.get(key)
        )

    def costly(self) -> list[str]:
        """The keys with a value that are not known to have no effect on the cost, sorted."""
        said = {key for key, value in self.data.items() if value is not None}
        return sorted(said - _without_cost())

    def refuse_unread(self) -> None:
        """Refuse the keys that were neither read nor are known to have no effect on the cost."""
        left = [key for key in self.costly() if key not in self._read]
        if left:
            raise InputError(
                "it is not known whether these keys change the cost",
                where=self.where,
                key=", ".join(f"{self.prefix}{key}" for key in left),
                remedy="remove those that do not, or describe the model in a catalogue file",
            )


@lru_cache
def _without_cost() -> frozenset[str]:
    """The keys that are known to have no effect on the cost."""
    file = files("spaces") / "keys_without_cost.yaml"
    reasons = parse_yaml(file.read_text(encoding="utf-8"), str(file))
    return frozenset(key for keys in reasons.values() for key in keys)


def read_config(path: Path) -> ConfigKeys:
    """The keys of a JSON file that holds one mapping."""
    where = str(path)
    try:
        data = json.loads(read_text(path), object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        rule = f"the text must be valid JSON ({error.msg})"
        raise InputError(rule, where=f"{where}:{error.lineno}") from None
    except InputError as error:
        raise error.located(where) from None
    if not isinstance(data, dict):
        kind = type(data).__name__
        raise InputError(f"the file must hold a mapping, it holds {kind}", where=where)
    return ConfigKeys(data, where)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise InputError("a key may stand only once in a mapping", key=key)
    return dict(pairs)
