"""Trials and fronts as tables and files; `read_front` brings a front back without its study.

Files of the same trials have the same bytes: rows are sorted, floats are written in the shortest
form that reads back to the same number, and nothing tells the time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pydantic import ConfigDict

from objectives.goals import Objective, parse_objective
from objectives.interval_sources import BANDED
from objectives.metrics import METRICS, split_name
from results.files import write_atomically
from results.front import ParetoFront, knee
from results.trials import Replicated, TrialRecord
from results.words import describe_load, describe_plan, metric_heading, value_text
from spaces.documents import Document, read_text, validated
from spaces.errors import InputError
from spaces.plan import LOAD_AXES, DeploymentPlan, Load, Pool, Role
from spaces.precision import KvDtype

if TYPE_CHECKING:
    import pandas as pd

MAIN_METRICS = (
    "ttft_p50_ms",
    "ttft_p95_ms",
    "tpot_p50_ms",
    "tokens_per_s_per_user_p50",
    "output_tokens_per_s_per_chip",
    "usd_per_m_output_tokens",
)
_TIER_SIZES = (
    "host_gb_per_chip",
    "swap_gb_per_chip",
    "ssd_gb_per_chip",
    "shared_gb",
    "idle_limit_s",
)
_POOL_COUNTS = ("replicas", "tp", "pp", "ep", "dp", "max_num_seqs", "max_num_batched_tokens")


class _StoredPoint(Document):
    model_config = ConfigDict(ser_json_inf_nan="strings", allow_inf_nan=True)

    trial: int
    point_id: str
    plan_id: str
    plan: DeploymentPlan
    load: Load | None = None
    metrics: dict[str, float]
    bands: dict[str, tuple[float, float]]
    violations: dict[str, float]
    replicated: Replicated | None = None


class _StoredFront(Document):
    objectives: tuple[str, ...]
    reference_point: tuple[float, ...]
    hypervolume: float
    points: tuple[_StoredPoint, ...]


def write_results(directory: Path, trials: Sequence[TrialRecord], front: ParetoFront) -> None:
    """Write `trials.csv`, `front.csv` and `front.json`, each in one step."""
    write_atomically(directory / "trials.csv", to_csv(trials_frame(trials)))
    write_atomically(directory / "front.csv", to_csv(front_frame(front)))
    write_atomically(directory / "front.json", front_json(front))


def read_front(directory: Path) -> ParetoFront:
    """The front in `front.json` of a study directory; a damaged file is an `InputError`."""
    path = directory / "front.json"
    text = read_text(path)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"the file must be JSON ({error})", where=str(path)) from None
    if not isinstance(data, dict):
        raise InputError("the file must hold a JSON object", where=str(path))
    stored = validated(_StoredFront, data, str(path))
    return ParetoFront(
        tuple(_restored(point) for point in stored.points),
        tuple(parse_objective(text) for text in stored.objectives),
        stored.reference_point,
        stored.hypervolume,
    )


def front_json(front: ParetoFront) -> str:
    """The front as a JSON document.

    A value that is not finite is written as the string `Infinity`, `-Infinity` or `NaN`, since
    JSON has no such numbers.
    """
    stored = _StoredFront(
        objectives=tuple(str(objective) for objective in front.objectives),
        reference_point=front.reference_point,
        hypervolume=front.hypervolume,
        points=tuple(_stored(point) for point in front.points),
    )
    return stored.model_dump_json(indent=2, exclude_none=True) + "\n"


def to_csv(frame: pd.DataFrame) -> str:
    """A table as CSV text with a header line; an empty cell means no value."""
    return frame.to_csv(index=False, lineterminator="\n")


def trials_frame(trials: Sequence[TrialRecord]) -> pd.DataFrame:
    """One row for each trial, in order of trial number, whatever became of it.

    Columns: `trial`, `state`, `reason`, `same_as`, `feasible`, `violations` (a JSON object), then
    those of `front_frame`.
    """
    rows = [_fate(t) | _row(t) for t in sorted(trials, key=lambda trial: trial.trial)]
    return _frame(rows, [*_fate_columns(), *_columns(), *_of_workloads(trials)])


def front_frame(front: ParetoFront) -> pd.DataFrame:
    """One row for each point of the front, in its order: the plan, its load, metrics and bands.

    The columns are the same for every study, but for those of several workloads
    (`ttft_p95_ms@chat` and its band), which stand behind the others; a role that a plan lacks
    and a metric without a value leave their cells empty. Of points that were replicated stand,
    behind all, their number of replications, the share of them in which no contender beat the
    point, and of each metric the mean (`_mean`) and half the width of its confidence interval
    (`_ci`); the other columns are those of the trial, which is the first replication.
    """
    rows = [_row(point) | _replication_cells(point) for point in front.points]
    replication = dict.fromkeys(name for p in front.points for name in _replication_cells(p))
    return _frame(rows, [*_columns(), *_of_workloads(front.points), *replication])


def front_rows_for_terminal(front: ParetoFront) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a compact table for people; the knee is marked in the last column."""
    metrics = main_metrics(front.objectives)
    headings = ["point", "deployment", "load", *map(metric_heading, metrics), ""]
    best = knee(front) if front.points else None
    rows = [
        [
            point.plan.point_id,
            describe_plan(point.plan),
            describe_load(point.plan),
            *(value_text(point, metric) for metric in metrics),
            "knee" if point is best else "",
        ]
        for point in front.points
    ]
    return headings, rows


def main_metrics(objectives: Sequence[Objective]) -> tuple[str, ...]:
    """The metrics to show where there is no room for all: the usual six and the objectives."""
    wanted = [objective.metric for objective in objectives]
    return (*MAIN_METRICS, *(name for name in wanted if name not in MAIN_METRICS))


def _frame(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd  # half a second that commands without tables need not wait for

    frame = pd.DataFrame(rows, columns=list(columns))
    return frame.astype({name: kind for name in columns if (kind := _kind(name))})


def _fate(trial: TrialRecord) -> dict[str, object]:
    violations = {rule: _jsonable(size) for rule, size in trial.violations.items()}
    values = (
        trial.trial,
        trial.state,
        trial.reason,
        trial.same_as,
        trial.feasible,
        json.dumps(violations),
    )
    return dict(zip(_fate_columns(), values, strict=True))


def _fate_columns() -> tuple[str, ...]:
    return ("trial", "state", "reason", "same_as", "feasible", "violations")


def _row(trial: TrialRecord) -> dict[str, object]:
    unknown = {name for name in trial.metrics if split_name(name)[0] not in METRICS}
    assert not unknown, f"metrics without a column: {sorted(unknown)}"
    plan = trial.plan
    row: dict[str, object] = {
        "point_id": plan.point_id,
        "plan_id": plan.plan_id,
        "topology": plan.topology,
        "engine": "+".join(plan.engines),
        "weights": plan.precision.weights,
        "kv_dtype": "+".join(_kv_formats(plan)),
        **plan.kv.choices(),
        "midfill_threshold_tokens": plan.midfill_tokens if plan.has_midfill else None,
        "router": plan.router,
        "max_queued_requests": plan.max_queued_requests,
        "when_full": plan.when_full,
        "host_kind": plan.hosts.kind if plan.hosts else None,
        "host_count": plan.hosts.count if plan.hosts else None,
        "micro_batches": plan.ping_pong if plan.splits_decode else None,
        "speculation_depth": plan.speculation.depth if plan.speculation else 0,
        "speculation_acceptance": _acceptance(plan),
    }
    for pool in plan.pools:
        row |= _pool_cells(plan, pool)
    if plan.load is not None:
        row |= {axis: getattr(plan.load, axis) for axis in LOAD_AXES}
    row |= trial.metrics
    for name, (low, high) in trial.bands.items():
        row |= {_band_column(name, "lo"): low, _band_column(name, "hi"): high}
    return row


def _kv_formats(plan: DeploymentPlan) -> list[KvDtype]:
    return list(dict.fromkeys(plan.settings(pool).precision.kv for pool in plan.pools))


def _replication_cells(point: TrialRecord) -> dict[str, object]:
    found = point.replicated
    if found is None:
        return {}
    cells: dict[str, object] = {"replications": found.count, "front_share": found.front_share}
    for name, mean in found.means.items():
        cells |= {f"{name}_mean": mean, f"{name}_ci": found.half_widths[name]}
    return cells


def _acceptance(plan: DeploymentPlan) -> str | None:
    """A draft head's name, or the rates of the positions with spaces between."""
    if plan.speculation is None:
        return None
    told = plan.speculation.acceptance
    return told if isinstance(told, str) else " ".join(f"{rate:g}" for rate in told)


def _pool_cells(plan: DeploymentPlan, pool: Pool) -> dict[str, object]:
    own = plan.settings(pool)
    settings = {name: getattr(pool, name) for name in ("chip", *_POOL_COUNTS)}
    settings |= {"engine": own.engine, "kv_dtype": own.precision.kv}
    return {_pool_column(pool.role, name): value for name, value in settings.items()}


def _pool_column(role: Role, setting: str) -> str:
    return f"{role.replace('-', '_')}_{setting}"


def _columns() -> list[str]:
    own = ("chip", "engine", *_POOL_COUNTS, "kv_dtype")
    pools = [_pool_column(role, setting) for role in get_args(Role) for setting in own]
    moves = ["retention", "fetch", "layerwise", "prefetch", "handoff"]
    tiers = [*_TIER_SIZES, *moves, "midfill_threshold_tokens"]
    drafts = ["micro_batches", "speculation_depth", "speculation_acceptance"]
    routing = ["router", "max_queued_requests", "when_full"]
    hosts = ["host_kind", "host_count"]
    settings = ["engine", "weights", "kv_dtype", *tiers, *routing, *hosts, *drafts]
    bands = [f"{name}_{end}" for name in BANDED for end in ("lo", "hi")]
    return ["point_id", "plan_id", "topology", *pools, *settings, *LOAD_AXES, *METRICS, *bands]


def _of_workloads(trials: Sequence[TrialRecord]) -> list[str]:
    """The columns of single workloads and their means that any of the trials has."""
    names = dict.fromkeys(name for trial in trials for name in trial.metrics if "@" in name)
    banded = {name for trial in trials for name in trial.bands}
    bands = [_band_column(name, end) for name in names if name in banded for end in ("lo", "hi")]
    return [*names, *bands]


def _band_column(name: str, end: str) -> str:
    metric, workload = split_name(name)
    return f"{metric}_{end}@{workload}" if workload else f"{metric}_{end}"


def _kind(column: str) -> str:
    """The pandas type of a column of numbers, which may lack some; empty for other columns."""
    pool_counts = {_pool_column(role, name) for role in get_args(Role) for name in _POOL_COUNTS}
    counts = {"trial", "same_as", "concurrency", "midfill_threshold_tokens"} | {
        "speculation_depth",
        "micro_batches",
        "max_queued_requests",
        "host_count",
    }
    if column in counts | pool_counts:
        return "Int64"
    metric = split_name(column)[0].removesuffix("_lo").removesuffix("_hi")
    return "float64" if metric in {*METRICS, *_TIER_SIZES, *LOAD_AXES} else ""


def _stored(point: TrialRecord) -> _StoredPoint:
    return _StoredPoint(
        trial=point.trial,
        point_id=point.plan.point_id,
        plan_id=point.plan.plan_id,
        plan=point.plan,
        load=point.plan.load,
        metrics=dict(point.metrics),
        bands=dict(point.bands),
        violations=dict(point.violations),
        replicated=point.replicated,
    )


def _restored(point: _StoredPoint) -> TrialRecord:
    return TrialRecord(
        trial=point.trial,
        plan=point.plan,
        state="complete",
        metrics=point.metrics,
        bands=point.bands,
        violations=point.violations,
        replicated=point.replicated,
    )


def _jsonable(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
