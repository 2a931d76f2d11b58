"""The files of a study: their columns, their round trip, their bytes."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.goals import Objective
from objectives.interval_sources import BANDED
from objectives.metrics import METRICS
from results.front import ParetoFront, pareto_front
from results.tables import (
    front_frame,
    front_rows_for_terminal,
    read_front,
    to_csv,
    trials_frame,
    write_results,
)
from results.trials import TrialRecord
from spaces.errors import InputError
from spaces.plan import DeploymentPlan, KvTiers, Load, Pool, Precision

SPEED = Objective("tokens_per_s_per_user_p50", "maximize")
THROUGHPUT = Objective("output_tokens_per_s_per_chip", "maximize")
AGGREGATED = DeploymentPlan(
    model="m",
    topology="aggregated",
    pools=(Pool(role="aggregated", chip="h200", replicas=4, tp=8),),
    load=Load(request_rate=0.1),
)
SPLIT = DeploymentPlan(
    model="m",
    engine="sglang",
    topology="prefill-decode",
    pools=(
        Pool(role="prefill", chip="h100", replicas=2, tp=4, max_num_batched_tokens=4096),
        Pool(role="decode", chip="h200", dp=32, ep=32, max_num_seqs=64),
    ),
    precision=Precision(weights="fp8", kv="fp8"),
    kv=KvTiers(host_gb_per_chip=200.5),
    load=Load(concurrency=128),
)


def complete(number: int, plan: DeploymentPlan, speed: float, throughput: float) -> TrialRecord:
    return TrialRecord(
        number,
        plan,
        "complete",
        metrics={SPEED.metric: speed, THROUGHPUT.metric: throughput, "ttft_p50_ms": 1 / 3},
        bands={SPEED.metric: (speed / 1.1, speed * 1.1)},
        violations={"ttft_p95_ms <= 2000": -0.25},
    )


TRIALS = [
    complete(0, AGGREGATED, 0.1 + 0.2, 20.0),
    complete(1, SPLIT, 10.0, 1e-17),
    TrialRecord(2, SPLIT, "infeasible", violations={"memory": 0.5}, reason='too "big",\nby half'),
    TrialRecord(3, SPLIT, "failed", reason="broke off", violations={"memory": math.inf}),
    TrialRecord(4, AGGREGATED, "complete", {SPEED.metric: 0.3}, same_as=0),
]
FRONT = pareto_front(TRIALS, (SPEED, THROUGHPUT))


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_front_csv_holds_the_plan_in_columns() -> None:
    split, single = read_csv(to_csv(front_frame(FRONT)))
    expected = {
        "point_id": SPLIT.point_id,
        "plan_id": SPLIT.plan_id,
        "topology": "prefill-decode",
        "prefill_chip": "h100",
        "prefill_replicas": "2",
        "prefill_tp": "4",
        "prefill_pp": "1",
        "prefill_max_num_batched_tokens": "4096",
        "decode_chip": "h200",
        "decode_ep": "32",
        "decode_dp": "32",
        "decode_max_num_seqs": "64",
        "aggregated_chip": "",
        "aggregated_tp": "",
        "engine": "sglang",
        "weights": "fp8",
        "kv_dtype": "fp8",
        "host_gb_per_chip": "200.5",
        "concurrency": "128",
        "request_rate": "",
        "tokens_per_s_per_user_p50": "10.0",
        "output_tokens_per_s_per_chip": "1e-17",
    }
    assert {name: split[name] for name in expected} == expected
    assert (single["aggregated_tp"], single["concurrency"]) == ("8", "")
    assert single["request_rate"] == "0.1"


def test_columns_are_the_same_for_every_study() -> None:
    empty = ParetoFront((), (SPEED, THROUGHPUT), (), 0.0)
    columns = list(front_frame(FRONT).columns)
    assert list(front_frame(empty).columns) == columns
    assert columns[:3] == ["point_id", "plan_id", "topology"]
    assert set(METRICS) < set(columns)
    assert {f"{name}_{end}" for name in BANDED for end in ("lo", "hi")} < set(columns)
    assert not any(f"{name}_lo" in columns for name in METRICS.keys() - set(BANDED))
    first = ["trial", "state", "reason", "same_as", "feasible", "violations"]
    assert list(trials_frame(TRIALS).columns) == [*first, *columns]


def test_every_setting_of_tiers_and_queues_has_a_column() -> None:
    """A plan that differs in one of them differs in its row."""
    columns = set(front_frame(FRONT).columns)
    below = {"shared_gb_per_s"}  # a fact of the site
    assert set(KvTiers.model_fields) - below <= columns
    assert {"router", "max_queued_requests", "when_full"} <= columns


def test_trials_csv_has_a_row_for_each_trial_whatever_became_of_it() -> None:
    rows = read_csv(to_csv(trials_frame(TRIALS[::-1])))
    states = ["complete", "complete", "infeasible", "failed", "complete"]
    assert [row["trial"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row["state"] for row in rows] == states
    assert [row["feasible"] for row in rows] == ["True", "True", "False", "False", "True"]
    assert [row["same_as"] for row in rows] == ["", "", "", "", "0"]
    assert rows[2]["reason"] == 'too "big",\nby half'
    assert json.loads(rows[0]["violations"]) == {"ttft_p95_ms <= 2000": -0.25}
    assert json.loads(rows[3]["violations"]) == {"memory": "inf"}


@settings(max_examples=30, deadline=None)
@given(st.floats(min_value=1e-300, allow_infinity=False), st.floats(min_value=1e-300))
def test_figures_survive_csv_and_json(speed: float, other: float) -> None:
    trial = TrialRecord(
        0,
        AGGREGATED,
        "complete",
        metrics={SPEED.metric: speed, "ttft_p50_ms": other},
        bands={SPEED.metric: (speed, math.inf)},
        violations={"ttft_p50_ms >= 1": -other},
    )
    front = pareto_front([trial], (SPEED,))
    (row,) = read_csv(to_csv(front_frame(front)))
    assert float(row[SPEED.metric]) == speed
    assert float(row["ttft_p50_ms"]) == other
    assert float(row[f"{SPEED.metric}_hi"]) == math.inf
    with TemporaryDirectory() as folder:
        write_results(Path(folder), [trial], front)
        assert read_front(Path(folder)) == front


def test_front_json_brings_back_plans_loads_and_metrics(tmp_path: Path) -> None:
    write_results(tmp_path, TRIALS, FRONT)
    assert read_front(tmp_path) == FRONT
    data = json.loads((tmp_path / "front.json").read_text())
    assert data["objectives"] == [str(SPEED), str(THROUGHPUT)]
    assert data["reference_point"] == [0.0, 0.0]
    assert data["hypervolume"] == FRONT.hypervolume
    point = data["points"][0]
    assert point["plan_id"] == SPLIT.plan_id and point["point_id"] == SPLIT.point_id
    assert point["load"] == {"concurrency": 128}
    assert point["metrics"][SPEED.metric] == 10.0
    assert point["bands"][SPEED.metric] == [10.0 / 1.1, 10.0 * 1.1]
    assert DeploymentPlan.model_validate(point["plan"]) == SPLIT


def test_the_same_trials_give_the_same_bytes(tmp_path: Path) -> None:
    write_results(tmp_path / "a", TRIALS, FRONT)
    write_results(tmp_path / "b", TRIALS[::-1], pareto_front(TRIALS[::-1], FRONT.objectives))
    names = ["front.csv", "front.json", "trials.csv"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_an_empty_study_is_written_and_read(tmp_path: Path) -> None:
    empty = pareto_front([], (SPEED, THROUGHPUT))
    write_results(tmp_path, [], empty)
    assert read_front(tmp_path) == empty
    assert read_csv((tmp_path / "trials.csv").read_text()) == []


def test_a_place_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "front.json").mkdir()
    with pytest.raises(InputError, match=r"front\.json: the file cannot be written"):
        write_results(tmp_path, TRIALS, FRONT)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "must be JSON"),
        ("[]", "must hold a JSON object"),
        ('{"objectives": [], "points": [], "reference_point": []}', "hypervolume"),
        ('{"objectives": ["push x"], "points": [], "reference_point": [], "hypervolume": 0}',
         "push x"),
    ],
)  # fmt: skip
def test_a_damaged_front_is_an_input_error(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "front.json").write_text(text)
    with pytest.raises(InputError, match=told):
        read_front(tmp_path)


def test_a_missing_front_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must exist"):
        read_front(tmp_path)


def test_a_metric_without_a_column_is_not_dropped_silently() -> None:
    stray = TrialRecord(0, AGGREGATED, "complete", metrics={"made_up": 1.0})
    with pytest.raises(AssertionError, match="made_up"):
        trials_frame([stray])


def test_the_terminal_table_names_plans_and_marks_one_knee() -> None:
    front = pareto_front(TRIALS, (SPEED, Objective("ttft_p50_ms", "minimize"), THROUGHPUT))
    headings, rows = front_rows_for_terminal(front)
    assert headings[:4] == ["point", "deployment", "load", "TTFT p50 ms"]
    assert "$/M output tokens" in headings
    assert [row[1] for row in rows] == ["2x[TP4] h100 -> 1x[DPAEP32] h200", "4x[TP8] h200"]
    assert [row[2] for row in rows] == ["concurrency 128", "0.1 requests/s"]
    assert [row[-1] for row in rows].count("knee") == 1
    assert all(len(row) == len(headings) for row in rows)
    assert rows[0][headings.index("$/M output tokens")] == "-"


def test_the_terminal_table_shows_every_objective() -> None:
    power = Objective("power_kw", "minimize")
    headings, rows = front_rows_for_terminal(ParetoFront((), (SPEED, power), (), 0.0))
    assert "power kW" in headings
    assert rows == []


def test_modules_load_without_the_heavy_libraries() -> None:
    code = (
        "import sys, results, results.tables, results.plots, results.report, results.choice\n"
        "heavy = {'pandas', 'matplotlib', 'plotly', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'loaded at import: {heavy}' if heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
