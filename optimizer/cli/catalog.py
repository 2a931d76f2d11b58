"""servefront catalog"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from optimizer.cli.talk import show, show_json, show_table

Section = Literal["models", "chips", "engines", "workloads"]


def catalog(
    section: Annotated[
        Section | None, typer.Argument(help="What to list; all of it by default.")
    ] = None,
    name: Annotated[str | None, typer.Argument(help="One entry, with its sources.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show the models, chips, engines and workloads that are known, and where figures are from.

    A figure or an entry marked * is an estimate or contradicted by another source.
    """
    sections = [section] if section else ["models", "chips", "engines", "workloads"]
    if section and name:
        _one(section, name, as_json)
    elif as_json:
        show_json({part: [_entry(part, found) for found in _names(part)] for part in sections})
    else:
        for part in sections:
            headings, rows = _ROWS[part]
            show_table(headings, [rows(found) for found in _names(part)], title=part, text=2)


def _one(section: Section, name: str, as_json: bool) -> None:
    from spaces.documents import dump_yaml

    entry = _entry(section, name)
    if as_json:
        show_json(entry)
    else:
        show(dump_yaml(entry).rstrip())


def _entry(section: str, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = _get(section, name).model_dump(mode="json", exclude_none=True)
    return entry


def _names(section: str) -> tuple[str, ...]:
    from objectives.workload.presets import preset_names
    from spaces.catalog import chip_names, engine_names, model_names

    names = {
        "models": model_names,
        "chips": chip_names,
        "engines": engine_names,
        "workloads": preset_names,
    }
    return names[section]()


def _get(section: str, name: str) -> Any:
    from objectives.workload.presets import preset
    from spaces.catalog import chip, engine, model

    entries: dict[str, Any] = {
        "models": model,
        "chips": chip,
        "engines": engine,
        "workloads": preset,
    }
    return entries[section](name)


def _model_row(name: str) -> tuple[str, ...]:
    spec = _get("models", name)
    mark = "*" if spec.status == "estimate" else ""
    return (
        name + mark,
        spec.hugging_face_id,
        f"{spec.total_parameters / 1e9:,.1f}",
        f"{spec.active_parameters / 1e9:,.1f}",
        str(spec.layers),
        f"{spec.max_context_tokens:,}",
        f"{spec.kv_bytes_per_token('bf16') / 1e3:,.1f}",
    )


def _chip_row(name: str) -> tuple[str, ...]:
    spec = _get("chips", name)
    keys = (
        "hbm_gb",
        "hbm_gb_per_s",
        "bf16_tflops",
        "fp8_tflops",
        "fp4_tflops",
        "scaleup_chips",
        "usd_per_hour",
    )
    doubtful = set(spec.estimates())
    return (name, spec.title, *(_figure(getattr(spec, key), key in doubtful) for key in keys))


def _figure(fact: Any, doubtful: bool) -> str:
    if fact is None:
        return "-"
    return f"{fact.value:,.4g}{'*' if doubtful else ''}"


def _engine_row(name: str) -> tuple[str, ...]:
    spec = _get("engines", name)
    mark = "*" if spec.status == "estimate" else ""
    return name + mark, spec.title, spec.version, spec.scheduling, str(spec.exportable).lower()


def _workload_row(name: str) -> tuple[str, ...]:
    found = _get("workloads", name)
    mark = "*" if found.status == "estimate" else ""
    return name + mark, found.title, str(found.requests)


_ROWS = {
    "models": (
        [
            "model",
            "Hugging Face id",
            "parameters B",
            "active B",
            "layers",
            "context",
            "KV kB/token",
        ],
        _model_row,
    ),
    "chips": (
        [
            "chip",
            "title",
            "HBM GB",
            "HBM GB/s",
            "bf16 TFLOP/s",
            "fp8",
            "fp4",
            "scale-up",
            "$/hour",
        ],
        _chip_row,
    ),
    "engines": (["engine", "title", "version", "scheduling", "exportable"], _engine_row),
    "workloads": (["workload", "title", "requests"], _workload_row),
}
