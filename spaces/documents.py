"""YAML documents in, validated frozen objects out: the one place where files become values."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from spaces.errors import InputError, did_you_mean


class Document(BaseModel):
    """Base of every object read from a file: frozen, hashable, no unknown keys, no infinities."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )


Doc = TypeVar("Doc", bound=Document)

# PyYAML follows YAML 1.1, where `on` is true, 010 is 8, 12:30 is 750, 1e3 is text and a date is an
# object. These are the scalars of YAML 1.2 (and 1_000): whatever else is written stays text.
_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*\.[0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
_REPLACED_TAGS = {f"tag:yaml.org,2002:{name}" for name in (*_SCALARS, "timestamp")}


class _Strict(yaml.constructor.SafeConstructor):
    """Refuses duplicate keys and reads the scalars of YAML 1.2, on either parser."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own protocol)
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED_TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                continue  # PyYAML refuses a key that is no scalar, and merges `<<`
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise InputError(
                    "a key may stand only once in a mapping", key=str(key), where=f"line {line}"
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


class _StrictLoader(_Strict, yaml.SafeLoader):
    pass


# The parser of libyaml is several times as fast, but tells the places of errors less well.
_FastLoader: type[Any] = _StrictLoader
if yaml.__with_libyaml__:
    _FastLoader = type("_FastLoader", (_Strict, yaml.CSafeLoader), {})


class _StrictDumper(yaml.SafeDumper):
    """SafeDumper that also quotes text which `_StrictLoader` would read as a number."""


for _name, (_pattern, _first) in _SCALARS.items():
    for _class in (_StrictLoader, _FastLoader, _StrictDumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), list(_first)
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
        data = _loaded(text)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(
            f"the text must be valid YAML ({error.problem})", where=f"{where}{line}"
        ) from None
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"the text must be valid YAML ({reason})", where=where) from None
    except InputError as error:
        raise InputError(error.rule, where=f"{where}, {error.where}", key=error.key) from None
    if not isinstance(data, dict):
        kind = "nothing" if data is None else type(data).__name__
        raise InputError(
            f"the file must hold a mapping of keys to values, it holds {kind}", where=where
        )
    return data


def _loaded(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_FastLoader)
    except (yaml.YAMLError, InputError):
        return yaml.load(text, Loader=_StrictLoader)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML (or JSON) file."""
    return parse_yaml(read_text(path), str(path))


def validated(kind: type[Doc], data: dict[str, Any], where: str) -> Doc:
    """`data` as a `kind`, or the first violation told as an `InputError`."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _told(kind, error, where, data) from None


def dump_yaml(data: dict[str, Any]) -> str:
    """`data` as YAML text, keys in the given order, short mappings on one line."""
    return yaml.dump(
        data, Dumper=_StrictDumper, sort_keys=False, default_flow_style=None, width=110
    )


def _told(
    kind: type[Document], error: ValidationError, where: str, data: dict[str, Any]
) -> InputError:
    errors = sorted(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    first = errors[0]  # a misspelt key explains the missing one, so it is told first
    path, beside = _in_the_file(kind, _as_written(first["loc"], data))
    key = ".".join(path)
    context = first.get("ctx", {})
    if isinstance(context.get("error"), InputError):
        cause: InputError = context["error"]
        return cause.located(where, key)
    if first["type"] == "extra_forbidden":
        return InputError(
            "unknown key", where=where, key=key, remedy=did_you_mean(path[-1], beside)
        )
    if first["type"] == "missing":
        return InputError("this key is required", where=where, key=key)
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_kind(context, where, path)
    if first["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", context["expected"])
        return InputError(
            "must be a known name",
            where=where,
            key=key,
            value=first["input"],
            remedy=did_you_mean(str(first["input"]), known),
        )
    rule = first["msg"].removeprefix("Value error, ")
    return InputError(rule[0].lower() + rule[1:], where=where, key=key, value=first["input"])


def _wrong_kind(context: dict[str, Any], where: str, path: list[str]) -> InputError:
    """The violation of a mapping whose key (`kind`) selects what it describes."""
    selector = str(context["discriminator"]).strip("'")
    known = [word.strip(" '") for word in str(context.get("expected_tags", "")).split(",")]
    tag = context.get("tag")
    return InputError(
        "this key is required" if tag is None else "must be a known kind",
        where=where,
        key=".".join([*path, selector]),
        value=tag,
        remedy="" if tag is None else did_you_mean(str(tag), known),
    )


def _as_written(loc: tuple[int | str, ...], data: Any) -> tuple[int | str, ...]:
    """The path of a violation as the file has it.

    Without places in lists that are single values there, and without notes in brackets, which
    stand for the form of a value or for a key itself.
    """
    path: list[int | str] = []
    for part in loc:
        if isinstance(part, str) and part.startswith("["):
            continue
        if isinstance(part, int) and not isinstance(data, list | tuple):
            continue
        path.append(part)
        if isinstance(data, list | tuple) and isinstance(part, int):
            data = data[part] if part < len(data) else None
        elif isinstance(data, dict) and part in data:
            data = data[part]
    return tuple(path)


def _in_the_file(kind: type[Document], loc: tuple[int | str, ...]) -> tuple[list[str], list[str]]:
    """The path of a violation as it stands in the file, and the legal keys beside its last part.

    pydantic puts the tag or class of a union's member (`gqa`) into the path; no file has that key.
    """
    path: list[str] = []
    fields = kind.model_fields
    choices: list[type[Document]] = []
    for depth, part in enumerate(loc):
        tagged = next((choice for choice in choices if part in _tags(choice)), None)
        if tagged is not None:
            fields, choices = tagged.model_fields, []
            continue
        path.append(str(part))
        last = depth == len(loc) - 1
        if isinstance(part, str) and not last:
            choices = list(_documents(fields[part].annotation)) if part in fields else []
        if len(choices) == 1 and not last:
            fields = choices[0].model_fields
    return path, [info.alias or name for name, info in fields.items()]


def _tags(kind: type[Document]) -> tuple[object, ...]:
    """What pydantic puts into a path for this member of a union."""
    selector = kind.model_fields.get("kind")
    return (kind.__name__,) if selector is None else (kind.__name__, selector.default)


def _documents(annotation: Any) -> Iterator[type[Document]]:
    """The documents named in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Document):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _documents(argument)
