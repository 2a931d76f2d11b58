"""YAML documents in, validated frozen objects out: the one place where files become values."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from spaces.errors import InputError, did_you_mean


class Document(BaseModel):
    """Base of every object read from a file: frozen, hashable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


Doc = TypeVar("Doc", bound=Document)


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads `1e3` as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise InputError(
                    "a key may stand only once in a mapping", key=str(key), where=f"line {line}"
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a dot and a signed exponent in floats; people write 1e3 and 2.5e9.
_FLOAT_TAG = "tag:yaml.org,2002:float"
_StrictLoader.add_implicit_resolver(
    _FLOAT_TAG,
    re.compile(r"^[-+]?(?:\d[\d_]*)(?:\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def read_text(path: Path) -> str:
    """The text of a file, or an `InputError` that says why there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("the file must exist", where=str(path)) from None
    except IsADirectoryError:
        raise InputError("a file is needed, this is a directory", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("the file must be UTF-8 text", where=str(path)) from None
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror})", where=str(path)) from None


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """One YAML mapping from `text`; duplicate keys, wrong syntax and non-mappings are refused."""
    try:
        data = yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(
            f"the text must be valid YAML ({error.problem})", where=f"{where}{line}"
        ) from None
    except InputError as error:
        raise InputError(error.rule, where=f"{where}, {error.where}", key=error.key) from None
    if not isinstance(data, dict):
        kind = "nothing" if data is None else type(data).__name__
        raise InputError(
            f"the file must hold a mapping of keys to values, it holds {kind}", where=where
        )
    return data


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML (or JSON) file."""
    return parse_yaml(read_text(path), str(path))


def validated(kind: type[Doc], data: dict[str, Any], where: str) -> Doc:
    """`data` as a `kind`, or the first violation told as an `InputError`."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _told(kind, error, where) from None


def dump_yaml(data: dict[str, Any]) -> str:
    """`data` as YAML text, keys in the given order, short mappings on one line."""
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110)


def _told(kind: type[Document], error: ValidationError, where: str) -> InputError:
    errors = sorted(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    first = errors[0]  # a misspelt key explains the missing one, so it is told first
    path = [str(part) for part in first["loc"]]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause.located(where, ".".join(path))
    if first["type"] == "extra_forbidden":
        return InputError(
            "unknown key",
            where=where,
            key=".".join(path),
            remedy=did_you_mean(path[-1], _keys_beside(kind, path)),
        )
    if first["type"] == "missing":
        return InputError("this key is required", where=where, key=".".join(path))
    rule = first["msg"].removeprefix("Value error, ")
    return InputError(
        rule[0].lower() + rule[1:], where=where, key=".".join(path), value=first["input"]
    )


def _keys_beside(kind: type[Document], path: list[str]) -> list[str]:
    """The legal keys of the mapping in which the last part of `path` stands."""
    fields = kind.model_fields
    for part in path[:-1]:
        if part.isdigit():
            continue
        nested = _nested_document(fields[part].annotation) if part in fields else None
        if nested is None:
            break
        fields = nested.model_fields
    return [info.alias or name for name, info in fields.items()]


def _nested_document(annotation: Any) -> type[Document] | None:
    if isinstance(annotation, type) and issubclass(annotation, Document):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _nested_document(argument)
        if found is not None:
            return found
    return None
