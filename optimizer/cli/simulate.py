"""servefront simulate"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optimizer.cli.talk import say, show, show_json, show_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from objectives.assess import Assessment
    from objectives.cost import OperatorSource
    from objectives.slo import ClassReport
    from objectives.weighted import WeightedWorkload, Worth
    from optimizer.job import Job


def simulate(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file.")],
    plan: Annotated[Path, typer.Option(help="The plan file.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Serve a job's workloads on one plan: all metrics, and where the time went."""
    from dataclasses import replace

    from optimizer.evaluate import Evaluator
    from optimizer.problem import posed
    from optimizer.single import loaded_plan, site_of
    from results.words import describe_load, describe_plan
    from spaces.errors import NothingFeasible
    from spaces.feasibility import infeasible

    wanted, problem = posed(job)
    for note in problem.notes:
        say(f"note: {note}")
    deployment = loaded_plan(plan, wanted, str(job))
    site = site_of(deployment, problem.site, str(plan))
    refusal = infeasible(deployment, site)
    if refusal is not None:
        raise NothingFeasible(f"{plan}: {refusal.rule}: {refusal.reason}")
    each = Evaluator.of(replace(problem, site=site)).assessed(deployment, explain=True)
    if as_json:
        show_json(_document(problem.workloads, each, wanted))
    else:
        show(f"{describe_plan(deployment)}, {describe_load(deployment)}")
        _show_all(problem.workloads, each)


def _document(
    workloads: Sequence[WeightedWorkload], each: Sequence[Assessment], job: Job
) -> dict[str, object]:
    """That of the one workload, or the metrics of all and the document of each."""
    documents = {
        one.name: _document_of_one(found, job) for one, found in zip(workloads, each, strict=True)
    }
    if len(each) == 1:
        return documents[workloads[0].name]
    from objectives.weighted import worth

    found = worth(workloads, each)
    return {"metrics": found.metrics, "bands": found.bands, "workloads": documents}


def _without_bands(metrics: Mapping[str, float]) -> dict[str, str]:
    """Why a metric that has no interval has none."""
    from objectives.interval_sources import STATED

    return {name: STATED[name] for name in metrics if name in STATED}


def _document_of_one(found: Assessment, job: Job) -> dict[str, object]:
    return {
        "metrics": found.metrics,
        "bands": found.bands,
        "without_bands": _without_bands(found.metrics),
        "pools": [asdict(pool) for pool in found.pools],
        "classes": [asdict(each) for each in found.classes],
        "hosts": None if found.hosts is None else asdict(found.hosts),
        "ttft_parts_ms": found.ttft_parts_ms,
        "binds": str(found.binding),
        "busy_time_shares": dict(found.binding.shares) if found.binding else {},
        "operator_sources": {
            role: [asdict(source) for source in told]
            for role, told in found.operator_sources.items()
        },
        "run": {
            "simulated_requests": found.simulated_requests,
            "simulation_cpu_s": found.simulation_cpu_s,
            "seed": job.search.seed,
            "saturated": found.queue_growth is not None and found.queue_growth.saturated,
            "queue_growth": None if found.queue_growth is None else asdict(found.queue_growth),
        },
    }


def _show_all(workloads: Sequence[WeightedWorkload], each: Sequence[Assessment]) -> None:
    from objectives.weighted import worth

    if len(each) == 1:
        _show_metrics(each[0])
        _show_inside(each[0])
        return
    _show_together(workloads, worth(workloads, each))
    for one, found in zip(workloads, each, strict=True):
        show(f"\n{one.name}, weight {one.weight:g}")
        _show_inside(found)


def _show_together(workloads: Sequence[WeightedWorkload], found: Worth) -> None:
    """One row for each metric: the worst workload's, the mean over time, that of each."""
    from objectives.metrics import MEAN, METRICS

    parts = [MEAN, *(one.name for one in workloads)]
    rows = []
    for name, metric in METRICS.items():
        of_parts = [f"{name}@{part}" for part in parts]
        if any(one in found.metrics for one in of_parts):
            cells = [_value(found.metrics, one) for one in (name, *of_parts)]
            rows.append((name, *cells, metric.unit))
    show_table(["metric", "worst", *parts, "unit"], rows)


def _value(metrics: Mapping[str, float], name: str) -> str:
    from results.words import format_value

    return format_value(metrics[name]) if name in metrics else "-"


def _show_metrics(found: Assessment) -> None:
    from objectives.metrics import METRICS
    from results.words import format_value

    rows = []
    for name, metric in METRICS.items():
        if name in found.metrics:
            low, high = found.bands.get(name, (None, None))
            band = (
                ""
                if low is None or high is None
                else f"{format_value(low)} to {format_value(high)}"
            )
            rows.append((name, format_value(found.metrics[name]), band, metric.unit))
    show_table(["metric", "value", "80 % band", "unit"], rows)


def _show_inside(found: Assessment) -> None:
    """The pools, the classes and where the time went."""
    from results.words import format_value

    pools = [asdict(pool) for pool in found.pools]
    show_table(
        ["pool", *(str(pool["role"]) for pool in pools)],
        [
            (key.replace("_", " "), *(_cell(pool[key]) for pool in pools))
            for key in pools[0]
            if key not in ("role", "batch_steps")
        ],
    )
    if len(found.classes) > 1:
        _show_classes(found.classes)
    if found.hosts is not None:
        cores = asdict(found.hosts).items()
        show("hosts: " + ", ".join(f"{key.replace('_', ' ')} {_cell(n)}" for key, n in cores))
    parts = ", ".join(f"{name} {format_value(ms)}" for name, ms in found.ttft_parts_ms.items())
    show(f"mean TTFT in ms: {parts}")
    if found.binding is not None:
        show(f"binds: {found.binding}")
        shares = sorted(found.binding.shares.items(), key=lambda pair: -pair[1])
        busy = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)
        show(f"busy time of the busiest pool: {busy}")
    for role, told in found.operator_sources.items():
        _show_sources(role, told)
    growth = found.queue_growth
    if growth is not None and growth.saturated:
        show(
            "saturated: more is offered than served, latencies only tell how long the run was; "
            f"waits for admission grew from {format_value(growth.early_s * 1e3)} ms (first third) "
            f"to {format_value(growth.late_s * 1e3)} ms (last third)"
        )
    away = found.metrics.get("queue_full_fraction", 0.0)
    if away > 0:
        show(f"turned away: {away:.1%} of the requests came to a full queue")


def _show_sources(role: str, told: Sequence[OperatorSource]) -> None:
    """Operators read from measured tables, and each that was not with the reason."""
    from objectives.cost import source_counts

    counts = source_counts(told)
    show_table(
        [f"operators of {role}", "measured", "from the fit"],
        [(name, str(read), str(fitted)) for name, (read, fitted) in counts.items()],
    )
    for source in told:
        if not source.measured:
            show(f"from the fit: {source.operator} {source.shape}: {source.origin}")


def _show_classes(classes: tuple[ClassReport, ...]) -> None:
    from results.words import format_value, metric_heading

    names = list(dict.fromkeys(name for each in classes for name in each.metrics))
    show_table(
        ["class", "priority", "requests", *(metric_heading(name) for name in names)],
        [
            (
                each.tenant,
                str(each.priority),
                format_value(each.requests),
                *(format_value(each.metrics[n]) if n in each.metrics else "-" for n in names),
            )
            for each in classes
        ],
    )


def _cell(value: object) -> str:
    from results.words import format_value

    if isinstance(value, float) and math.isnan(value):
        return "-"
    return format_value(value) if isinstance(value, int | float) else str(value)
