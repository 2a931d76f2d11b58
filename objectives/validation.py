"""Predictions beside measurements: each measured serving point simulated at its own mapping.

A points file is a CSV with one row per measured operating point and the columns `model`,
`hardware`, `engine`, `mode`, `precision_weights`, `decode_tp`, `decode_ep`, `decode_dp`, `pp`,
`num_chips`, `isl_mean`, `osl_mean`, `concurrency`, `spec_decode`, `workload`, `quality`,
`config_id`, `engine_version`, and the measured `tpot_ms_median`, `ttft_ms_median` and
`output_tput_per_chip_tok_s` (empty where a source does not state one). InferenceX publishes such
points for many models and chips.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import cast, get_args

from objectives.assess import assess
from objectives.published_runs import published_runs, run_setting
from objectives.workload import SyntheticSpec, Workload, generate
from spaces import catalog
from spaces.chip import ChipSpec
from spaces.documents import validated
from spaces.errors import InputError
from spaces.feasibility import infeasible
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, EngineName, Load, Pool, Precision
from spaces.precision import KvDtype, WeightsName
from spaces.site import ChipBudget, Site

Row = Mapping[str, str]
MEASURED = {
    "tpot": ("tpot_ms_median", "tpot_p50_ms"),
    "ttft": ("ttft_ms_median", "ttft_p50_ms"),
    "throughput": ("output_tput_per_chip_tok_s", "output_tokens_per_s_per_chip"),
}
# What engines are started with in the published runs, where a row does not say.
STEP_TOKENS, LEAST_SEATS = 8192, 256
LEAST_REQUESTS, MOST_REQUESTS = 40, 10000


@dataclass(frozen=True, slots=True)
class Point:
    """One measured operating point (the median of its repeats) and its prediction.

    `measured` and `predicted` map `tpot` and `ttft` (ms, medians over requests) and `throughput`
    (output tokens/s/chip) to values; what the source does not state is missing from both.
    """

    model: str
    chip: str
    vendor: str
    engine: EngineName
    concurrency: int
    measured: dict[str, float]
    predicted: dict[str, float]


@dataclass(frozen=True, slots=True)
class Validation:
    """The points that could be predicted, and how many rows were not, by reason."""

    rows: int
    points: tuple[Point, ...]
    refused: dict[str, int]


def validate(path: Path) -> Validation:
    """Predict every aggregated closed-loop row of a points file of the best quality grade."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if _in_scope(row)]
    refused: Counter[str] = Counter()
    points = []
    for same in _repeats(rows):
        try:
            points.append(_predict(same))
        except InputError as refusal:
            refused[refusal.rule] += len(same)
    return Validation(len(rows), tuple(points), dict(sorted(refused.items())))


def _in_scope(row: Row) -> bool:
    return (
        row["quality"] == "A"
        and row["mode"] == "agg"
        and row["spec_decode"] == "none"
        and bool(row["concurrency"])
        and row["workload"].startswith("random")
    )


def _repeats(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of the same configuration, load and software, together."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = (row["config_id"], row["concurrency"], row["engine_version"])
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _predict(rows: list[Row]) -> Point:
    measured = _medians(rows)
    plan, site = _deployment(rows[0])
    refusal = infeasible(plan, site)
    if refusal is not None:
        raise InputError(f"infeasible: {refusal.rule}")
    assert plan.load is not None
    assert plan.load.concurrency is not None
    workload = _workload(rows[0], plan.load.concurrency)
    metrics = assess(plan, site, workload).metrics
    chip = site.chips[plan.pools[0].chip]
    return Point(
        model=site.model.name,
        chip=chip.name,
        vendor=chip.vendor,
        engine=plan.engine,
        concurrency=plan.load.concurrency,
        measured=measured,
        predicted={name: metrics[MEASURED[name][1]] for name in measured},
    )


def _medians(rows: list[Row]) -> dict[str, float]:
    values = {
        name: [float(row[column]) for row in rows if row[column]]
        for name, (column, _) in MEASURED.items()
    }
    found = {name: median(these) for name, these in values.items() if these}
    if not found:
        raise InputError("no median latency and no throughput is stated")
    return found


def _deployment(row: Row) -> tuple[DeploymentPlan, Site]:
    """The row's mapping as a plan, at a site that is just large enough."""
    model, chip = catalog.model(row["model"]), catalog.chip(row["hardware"])
    engine = catalog.engine(row["engine"])
    tp, ep, dp = (int(row[f"decode_{size}"] or 1) for size in ("tp", "ep", "dp"))
    pp, chips = int(row["pp"] or 1), int(float(row["num_chips"]))
    if tp * dp * pp != chips:
        raise InputError("the mapping contradicts the chip count")
    concurrency = int(float(row["concurrency"]))
    setting = run_setting(
        row["workload"],
        engine=cast(EngineName, engine.name),
        chip=chip.name,
        model=model.name,
        weights=row["precision_weights"],
        tp=tp,
        attention_dp=dp > 1,
    )
    step_tokens = setting.step_tokens or (setting.inputs_a_step or 0) * int(row["isl"] or 0)
    pool = Pool(
        role="aggregated",
        chip=chip.name,
        tp=tp,
        pp=pp,
        ep=ep,
        dp=dp,
        max_num_seqs=max(LEAST_SEATS, -(-concurrency // dp)),
        max_num_batched_tokens=max(step_tokens or STEP_TOKENS, -(-concurrency // dp)),
    )
    plan = DeploymentPlan(
        model=model.name,
        engine=cast(EngineName, engine.name),
        topology="aggregated",
        pools=(pool,),
        precision=_precision(row, model, chip, setting.kv),
        load=Load(concurrency=concurrency),
        prefix_caching=False,
        hbm_fraction=setting.hbm_fraction or engine.hbm_fraction,
    )
    engine = engine.model_copy(
        update={
            "admission_steps": setting.admission_steps_at(concurrency),
            "admission_together": setting.admission_together,
        }
    )
    longest = int(1.25 * (float(row["isl_mean"]) + float(row["osl_mean"])))
    site = Site(
        model=model,
        chips={chip.name: chip},
        engines={plan.engine: engine},
        budget={chip.name: ChipBudget(0, chips)},
        longest_request_tokens=longest,
        longest_input_tokens=longest,
    )
    return plan, site


def _precision(row: Row, model: ModelSpec, chip: ChipSpec, published: KvDtype | None) -> Precision:
    """Formats of a row, which names one for the weights and hardly ever one for KV.

    Four-bit weights are mxfp4 where the checkpoint's own are, else the vendor's format. KV is
    as `published` where the row's launch script is known, else taken as fp8 on chips with fp4
    units and as bf16 elsewhere.
    """
    asked = row["precision_weights"]
    native = model.native_weights.routed_experts
    four_bit = "mxfp4" if native == "mxfp4" or chip.vendor == "AMD" else "nvfp4"
    weights = {"fp4": four_bit}.get(asked, asked)
    if weights not in get_args(WeightsName):
        raise InputError("unknown weight format", value=asked)
    kv = row["precision_kv"] or published or ("fp8" if chip.fp4_tflops else "bf16")
    return Precision(
        weights="native" if weights == native else cast(WeightsName, weights),
        kv=cast(KvDtype, kv),
    )


def _workload(row: Row, concurrency: int) -> Workload:
    """Requests as the load generator drew them: lengths uniform around the stated means."""
    spread = 1 / 9 if "InferenceX" in row["workload"] else 1.0  # [0.8, 1.0] and [0, 1] x nominal
    asked = published_runs().requests_per_user * concurrency
    spec = {
        "requests": min(MOST_REQUESTS, max(LEAST_REQUESTS, asked)),
        "input_tokens": _uniform(float(row["isl_mean"]), spread),
        "output_tokens": _uniform(float(row["osl_mean"]), spread),
    }
    return generate(validated(SyntheticSpec, spec, "points"), seed=1)


def _uniform(mean: float, spread: float) -> dict[str, list[int]]:
    low, high = max(1, round(mean * (1 - spread))), max(1, round(mean * (1 + spread)))
    return {"uniform": [low, high]}
