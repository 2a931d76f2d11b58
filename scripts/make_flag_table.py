"""Read the command-line flags of a vLLM wheel into a small table, without importing it.

    python scripts/make_flag_table.py vllm-0.33.0-*.whl > results/manifests/flags/vllm-0.33.json

A flag is a literal of an `add_argument` call; its kind and legal values come from the call itself
or from the annotation of the configuration field it is built from.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ENGINE = re.compile(r"^vllm/engine/arg_utils\.py$")
FRONTEND = re.compile(r"^vllm/entrypoints/.*cli_args\.py$")
CONNECTORS = re.compile(r"^vllm/distributed/kv_transfer/kv_connector/factory\.py$")
CONFIGS = re.compile(r"^vllm/(config/\w+|model_executor/layers/quantization/__init__)\.py$")

Facts = dict[str, object]


def main() -> None:
    """Print the table of the wheel named on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: make_flag_table.py WHEEL")
    print(_one_flag_a_line(flag_table(Path(sys.argv[1]))))


def flag_table(wheel: Path) -> dict[str, object]:
    """The version, the flags and the KV connectors of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        modules = {
            name: ast.parse(archive.read(name))
            for name in sorted(archive.namelist())
            if any(p.match(name) for p in (ENGINE, FRONTEND, CONNECTORS, CONFIGS))
        }
    reader = _Annotations(modules.values())
    flags: dict[str, Facts] = {}
    for name, tree in modules.items():
        if ENGINE.match(name) or FRONTEND.match(name):
            flags.update(_added_flags(tree, reader))
        if FRONTEND.match(name):
            flags.update(_field_flags(tree, reader))
    connectors = [
        str(call.args[0].value)
        for name, tree in modules.items()
        if CONNECTORS.match(name)
        for call in _calls(tree, "register_connector")
        if call.args and isinstance(call.args[0], ast.Constant)
    ]
    version = wheel.name.split("-")[1]
    return {
        "version": version,
        "source": f"vllm {version} wheel (PyPI), read by scripts/make_flag_table.py",
        "flags": dict(sorted(flags.items())),
        "connectors": sorted(connectors),
    }


def _one_flag_a_line(table: dict[str, object]) -> str:
    flags = table["flags"]
    assert isinstance(flags, dict)
    lines = [f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in flags.items()]
    head = [f" {json.dumps(k)}: {json.dumps(v)}," for k, v in table.items() if k != "flags"]
    return "\n".join(["{", *head, ' "flags": {', ",\n".join(lines), " }", "}"])


class _Annotations:
    """What the configuration classes say about their fields."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self.fields: dict[str, dict[str, ast.expr]] = {}
        self.aliases: dict[str, ast.expr] = {}
        for tree in trees:
            self._collect(tree)

    def _collect(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                own = {
                    item.target.id: item.annotation
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
                self.fields.setdefault(node.name, {}).update(own)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.aliases[node.targets[0].id] = node.value

    def facts(self, owner: str, field: str) -> Facts:
        """Kind and legal values of a field; plain text where nothing is known."""
        annotation = self.fields.get(owner, {}).get(field)
        return self.kind(annotation) if annotation is not None else {"kind": "text"}

    def kind(self, annotation: ast.expr) -> Facts:
        """Kind and legal values of an annotation."""
        names = self._names(annotation)
        if choices := [value for value in names if value.startswith("=")]:
            facts: Facts = {"kind": "choice", "choices": sorted({c[1:] for c in choices})}
            return {**facts, "open": True} if "str" in names else facts
        for name, kind in (
            ("bool", "switch"),
            ("list", "list"),
            ("tuple", "list"),
            ("set", "list"),
            ("int", "integer"),
            ("float", "number"),
            ("str", "text"),
        ):
            if name in names:
                return {"kind": kind}
        return {"kind": "json"}

    def _names(self, node: ast.expr) -> list[str]:
        """Every type named in an annotation; values of a Literal are marked with `=`."""
        if isinstance(node, ast.Name):
            alias = self.aliases.get(node.id)
            is_literal = isinstance(alias, ast.Subscript) and _name(alias.value) == "Literal"
            return self._names(alias) if alias is not None and is_literal else [node.id]
        if isinstance(node, ast.BinOp):
            return self._names(node.left) + self._names(node.right)
        if isinstance(node, ast.Subscript):
            return self._subscripted(node)
        return []

    def _subscripted(self, node: ast.Subscript) -> list[str]:
        outer = _name(node.value)
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer == "Literal":
            return [
                name
                for item in items
                for name in (
                    ["=" + str(item.value)]
                    if isinstance(item, ast.Constant)
                    else self._names(item)
                )
            ]
        if outer == "Annotated":
            return self._names(items[0])
        if outer in ("Union", "Optional"):
            return [name for item in items for name in self._names(item)]
        return [outer]


def _added_flags(tree: ast.Module, reader: _Annotations) -> dict[str, Facts]:
    owners = _keyword_sources(tree)
    flags: dict[str, Facts] = {}
    for call in _calls(tree, "add_argument"):
        words = [a.value for a in call.args if isinstance(a, ast.Constant)]
        names = [word for word in words if isinstance(word, str) and word.startswith("--")]
        for name in names:
            flags[name] = _facts_of_call(call, owners, reader)
    return flags


def _field_flags(tree: ast.Module, reader: _Annotations) -> dict[str, Facts]:
    """Front-end arguments are made from the fields of their class, one flag each."""
    return {
        f"--{field.replace('_', '-')}": reader.kind(annotation)
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs")
        for field, annotation in reader.fields[node.name].items()
    }


def _keyword_sources(tree: ast.Module) -> dict[str, str]:
    """Which configuration class each `x_kwargs = get_kwargs(Class)` variable stands for."""
    return {
        node.targets[0].id: _name(node.value.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and _name(node.value.func) == "get_kwargs"
    }


def _facts_of_call(call: ast.Call, owners: dict[str, str], reader: _Annotations) -> Facts:
    words = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    action = words.get("action")
    if isinstance(action, ast.Constant) and action.value == "store_true":
        return {"kind": "flag"}
    if action is not None and _name(action) == "BooleanOptionalAction":
        return {"kind": "switch"}
    if "type" in words:
        kinds = {"int": "integer", "float": "number"}
        return {"kind": kinds.get(_name(words["type"]), "text")}
    for node in ast.walk(call):
        if isinstance(node, ast.Subscript) and _name(node.value) in owners:
            assert isinstance(node.slice, ast.Constant)
            return reader.facts(owners[_name(node.value)], str(node.slice.value))
    return {"kind": "text"}


def _calls(tree: ast.Module, method: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == method:
            yield node


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


if __name__ == "__main__":
    main()
