"""servefront calibrate: a fit that helps, its file, and the commands that take it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from objectives.validation import predict_all, read_points
from objectives.validation.points import THROUGHPUT
from spaces.calibration import load_calibration
from spaces.documents import dump_yaml, parse_yaml
from spaces.plan import Load, Precision
from tests.objectives.validation.rows import AGGREGATED, write_rows
from tests.optimizer.cli.test_cli import call
from tests.spaces.worlds import plan_of

COLUMN_OF = {
    "tpot": "tpot_ms_median",
    "ttft": "ttft_ms_median",
    THROUGHPUT: "output_tput_per_chip_tok_s",
}
SLOWER = 1.4


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stack whose steps take longer than predicted, by one factor, at eight loads."""
    folder = tmp_path_factory.mktemp("points")
    asked = [AGGREGATED | {"concurrency": n} for n in (1, 2, 3, 4, 6, 8, 12, 16)]
    rows = []
    file = read_points(write_rows(folder / "asked.csv", asked))
    for row, found in zip(asked, predict_all(file.points).predicted, strict=True):
        slow = {COLUMN_OF[name]: found.values[name] * SLOWER for name in ("tpot", "ttft")}
        rate = found.values[THROUGHPUT] / SLOWER
        rows.append(row | slow | {COLUMN_OF[THROUGHPUT]: rate})
    return write_rows(folder / "points.csv", rows)


@pytest.fixture(scope="module")
def fitted(points: Path) -> Path:
    out = points.parent / "cal.yaml"
    result = call("calibrate", points, "--out", out)
    assert result.exit_code == 0, result.stderr
    return out


def test_the_file_says_what_it_was_fitted_to_and_how(points: Path, fitted: Path) -> None:
    found = load_calibration(fitted)
    assert found.command == "servefront calibrate points.csv --out cal.yaml"
    assert found.fitted
    assert found.data is not None
    assert (found.data.file, found.data.points) == ("points.csv", 8)
    assert found.pairs[0].chip == "h200"


def test_a_calibration_takes_most_of_the_error_away(points: Path, fitted: Path) -> None:
    before = json.loads(call("validate", points, "--json").stdout)
    after = json.loads(call("validate", points, "--json", "--calibration", fitted).stdout)
    assert before["overall"]["tpot"]["median_ape_pct"] > 20
    assert after["overall"]["tpot"]["median_ape_pct"] < 10
    assert (before["in_sample"], after["in_sample"]) == (False, True)
    assert "IN SAMPLE" in after["how"]


def simulated_tpot_ms(folder: Path, **own: str) -> float:
    """What `simulate` answers for one plan under a job with keys of its own."""
    deployed = plan_of("llama-3.3-70b", "h200", tp=4).at(Load(concurrency=4))
    deployed = deployed.model_copy(update={"precision": Precision(weights="fp8")})
    plan, path = folder / "plan.yaml", folder / "job.yaml"
    plan.write_text(deployed.to_yaml())
    job = {
        "model": "llama-3.3-70b",
        "chips": {"h200": 4},
        "workload": {"synthetic": {"requests": 40, "input_tokens": 922, "output_tokens": 115}},
        "load": {"concurrency": 4},
    }
    path.write_text(dump_yaml(job | own))
    result = call("simulate", path, "--plan", plan, "--json")
    assert result.exit_code == 0, result.stderr
    found: float = json.loads(result.stdout)["metrics"]["tpot_p50_ms"]
    return found


def test_jobs_and_single_plans_take_a_calibration(fitted: Path, tmp_path: Path) -> None:
    shipped = simulated_tpot_ms(tmp_path)
    own = simulated_tpot_ms(tmp_path, calibration=str(fitted))
    assert 1.1 < own / shipped < 1.6


def test_own_operators_and_steps_change_what_simulate_answers(tmp_path: Path) -> None:
    products = pd.DataFrame({"m": [1, 2, 4, 8, 16, 32], "n": 8192, "k": 8192, "latency_us": 80.0})
    steps = pd.DataFrame({"decode_requests": [1, 2, 4, 8] * 5, "latency_ms": 40.0})
    steps = steps.assign(decode_kv_tokens=1000 * steps["decode_requests"], model="llama-3.3-70b")
    steps = steps.assign(hardware="H200", engine="vllm", tp=4)
    chunks = dict.fromkeys(("prefill_tokens", "prefill_requests", "prefill_kv_tokens"), 0)
    files = {
        "ops.csv": products.assign(system="h200", backend="vllm", op="gemm", dtype="fp8"),
        "steps.csv": steps.assign(**chunks),
    }
    for name, table in files.items():
        table.to_csv(tmp_path / name, index=False)
    answers = [simulated_tpot_ms(tmp_path)]
    for number in (1, 2):
        paths = [tmp_path / name for name in list(files)[:number]]
        result = call("calibrate", *paths, "--out", tmp_path / "cal.yaml")
        assert result.exit_code == 0, result.stderr
        answers.append(simulated_tpot_ms(tmp_path, calibration=str(tmp_path / "cal.yaml")))
    assert answers[0] < answers[1] < answers[2]
    found = load_calibration(tmp_path / "cal.yaml")
    assert found.command == "servefront calibrate ops.csv steps.csv --out cal.yaml"
    assert [(table.kind, table.file) for table in found.tables] == [
        ("operators", "ops.csv"),
        ("steps", "steps.csv"),
    ]
    assert "product fp8" in result.stdout


def test_cross_validation_scores_pairs_that_its_fits_have_not_seen(points: Path) -> None:
    """With one pair nothing is left to fit: its points are as the cost model has them."""
    result = call("validate", points, "--json", "--cross-validate")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["cross_validated"]
    assert found["overall"]["tpot"]["median_ape_pct"] > 20


def test_a_constant_that_the_cost_model_lacks_is_one_message(
    points: Path, fitted: Path, tmp_path: Path
) -> None:
    data = parse_yaml(fitted.read_text(), "cal")
    data["constants"] = {"engines.by_engine.vllm.no_such_us": 1.0}
    path = tmp_path / "old.yaml"
    path.write_text(dump_yaml(data))
    result = call("validate", points, "--calibration", path)
    assert result.exit_code == 2
    assert "constants.engines.by_engine.vllm.no_such_us" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("validate", "--cross-validate", "--calibration"), "leave out one of the two"),
        (("calibrate", "--plan"), "points.csv"),
    ],
)
def test_wrong_options_are_one_message(
    points: Path, fitted: Path, arguments: tuple[str, ...], message: str
) -> None:
    command, *options = arguments
    out = ("--out", points.parent / "x.yaml") if command == "calibrate" else ()
    result = call(command, points, *options, points if command == "calibrate" else fitted, *out)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_points_without_any_prediction_cannot_be_fitted(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "p.csv", [AGGREGATED | {"model": "No-Such-Model"}])
    result = call("calibrate", path, "--out", tmp_path / "c.yaml")
    assert (result.exit_code, "can be predicted" in result.stderr) == (2, True)
