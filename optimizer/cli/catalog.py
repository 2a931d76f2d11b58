"""servefront catalog"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import typer

from optimizer.cli.talk import say, show, show_json, show_table

Section = Literal["models", "chips", "systems", "hosts", "links", "engines", "workloads"]


def catalog(
    section: Annotated[
        Section | None, typer.Argument(help="What to list; by default the names of all.")
    ] = None,
    name: Annotated[str | None, typer.Argument(help="One entry, with its sources.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show what models, chips, systems, hosts, links, engines and workloads are known.

    With a name, the entry with its figures, their sources and what is uncertain of them.

    A figure or an entry marked * is an estimate or contradicted by another source.
    """
    sections: list[Section] = [section] if section else list(get_args(Section))
    if section and name:
        _one(section, name, as_json)
    elif as_json:
        show_json({part: [_entry(part, found) for found in _names(part)] for part in sections})
    elif section:
        headings, row = _ROWS[section]
        show_table(headings, [row(found) for found in _names(section)], text=2)
    else:
        for part in sections:
            show(f"{part}: {', '.join(_names(part))}")
        say("figures: servefront catalog SECTION; one entry with its sources: ... SECTION NAME")


def _one(section: Section, name: str, as_json: bool) -> None:
    from spaces.documents import dump_yaml

    if as_json:
        show_json(_entry(section, name))
    else:
        show(dump_yaml(_entry(section, name, exclude_defaults=True)).rstrip())


def _entry(section: Section, name: str, **options: bool) -> dict[str, Any]:
    found = _get(section, name)
    entry: dict[str, Any] = found.model_dump(mode="json", exclude_none=True, **options)
    return entry


def _names(section: Section) -> tuple[str, ...]:
    if section == "workloads":
        from objectives.preset_names import preset_names

        return preset_names()
    from spaces import catalog as entries

    names: tuple[str, ...] = getattr(entries, f"{section.removesuffix('s')}_names")()
    return names


def _get(section: Section, name: str) -> Any:
    if section == "workloads":
        from objectives.workload.presets import preset

        return preset(name)
    from spaces import catalog as entries

    return getattr(entries, section.removesuffix("s"))(name)


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
    return name, spec.title, *_figures(spec, *keys)


def _system_row(name: str) -> tuple[str, ...]:
    spec = _get("systems", name)
    return (
        name,
        spec.title,
        ", ".join(spec.chips),
        *_figures(spec, "chips_per_node", "hosts_per_node", "nodes_per_scaleup", "rack_kw"),
    )


def _host_row(name: str) -> tuple[str, ...]:
    spec = _get("hosts", name)
    keys = ("cores", "mem_gb", "mem_gb_per_s", "chip_link_gb_per_s", "tdp_w")
    return name, spec.title, *_figures(spec, *keys)


def _link_row(name: str) -> tuple[str, ...]:
    spec = _get("links", name)
    return name, spec.title, spec.kind, *_figures(spec, "gb_per_s")


def _figures(spec: Any, *keys: str) -> Iterator[str]:
    doubtful = set(spec.estimates())
    return (_figure(getattr(spec, key), key in doubtful) for key in keys)


def _figure(fact: Any, doubtful: bool) -> str:
    if fact is None:
        return "-"
    digits = f"{fact.value:,.0f}" if fact.value >= 1000 else f"{fact.value:.4g}"
    return f"{digits}{'*' if doubtful else ''}"


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
    "systems": (
        ["system", "title", "chips", "chips/node", "hosts/node", "nodes/scale-up", "rack kW"],
        _system_row,
    ),
    "hosts": (
        ["host", "title", "cores", "memory GB", "memory GB/s", "chip link GB/s", "TDP W"],
        _host_row,
    ),
    "links": (["link", "title", "kind", "GB/s one way"], _link_row),
    "engines": (["engine", "title", "version", "scheduling", "exportable"], _engine_row),
    "workloads": (["workload", "title", "requests"], _workload_row),
}
