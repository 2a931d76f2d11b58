"""The command line: its commands, what goes to stdout and stderr, and its exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from objectives.assess import Assessment
from optimizer.cli import app
from optimizer.job import load_job
from spaces.documents import dump_yaml
from spaces.plan import DeploymentPlan, load_plan
from tests.conftest import REPOSITORY
from tests.optimizer.test_job import WRONG
from tests.optimizer.toy import CHIP, MODEL, assessed, job_data

COMMANDS = (
    "init",
    "optimize",
    "simulate",
    "front",
    "report",
    "choose",
    "export",
    "catalog",
    "trace",
    "validate",
    "calibrate",
)
FEW = {"trials": 10, "batch_size": 4}


def call(*arguments: object) -> Any:
    """What `servefront` with these arguments writes and how it exits."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def formula(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Assessment]], None]:
    """Replaces the simulator, at first by the toy's formula."""

    def use(assess: Callable[..., Assessment]) -> None:
        monkeypatch.setattr("optimizer.evaluate.assess", assess)
        monkeypatch.setattr("objectives.assess.assess", assess)

    use(lambda plan, *_, **__: assessed(plan))
    return use


@pytest.fixture
def job(tmp_path: Path, formula: object) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(dump_yaml(job_data(search=FEW)))
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study, for commands that only read it."""
    from tests.optimizer.toy import job_of, run

    directory = tmp_path_factory.mktemp("study")
    run(job_of(space={"topology": "aggregated"}), directory)
    return directory


def changed(job: Path, **keys: Any) -> Path:
    job.write_text(dump_yaml(job_data(**({"search": FEW} | keys))))
    return job


def test_help_lists_every_command_and_each_has_its_own() -> None:
    listed = call("--help").stdout
    assert all(command in listed for command in COMMANDS)
    for command in COMMANDS:
        result = call(command, "--help")
        assert result.exit_code == 0 and "Usage:" in result.stdout


def test_version_is_told() -> None:
    assert call("--version").stdout.startswith("servefront 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["optimize"],
        ["front", "x", "--format", "xml"],
        ["optimize", "--workers", 0],
    ],
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    assert call(*arguments).exit_code == 2


def test_light_commands_import_nothing_heavy() -> None:
    code = (
        "import resource, sys; sys.argv = ['servefront', *sys.argv[1:]]\n"
        "from optimizer.cli import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "heavy = {'optuna', 'numba', 'pandas', 'matplotlib', 'scipy', 'plotly', 'moocore'}\n"
        "print(used.ru_utime + used.ru_stime, *sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    for arguments in (["--help"], ["catalog"], ["catalog", "chips"], ["catalog", "models", MODEL]):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
        seconds, *heavy = done.stderr.splitlines()[-1].split()
        assert heavy == [], arguments
        assert float(seconds) < 1.0, arguments


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_job_exits_2_with_one_message_and_no_traceback(tmp_path: Path, case: str) -> None:
    keys, key, _ = WRONG[case]
    job = tmp_path / "job.yaml"
    data = {name: value for name, value in job_data(**keys).items() if value is not None}
    job.write_text(dump_yaml(data))
    result = call("optimize", job, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert result.stderr.startswith(f"error: {job}: {key}")
    assert not (tmp_path / "out").exists()


def test_optimize_shows_the_front_and_says_what_to_do_next(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = call("optimize", job, "--out", out, "--workers", 2)
    assert result.exit_code == 0, result.stderr
    front = json.loads((out / "front.json").read_text())
    for point in front["points"]:
        assert point["point_id"] in result.stdout
    assert "knee" in result.stdout
    assert f"{out}/report.html" in result.stderr
    assert f"servefront choose {out}" in result.stderr and "servefront export" in result.stderr
    assert "10/10 evaluations" in result.stderr


def test_optimize_writes_below_runs_unless_told_otherwise(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("optimize", job, "--trials", 10).exit_code == 0
    assert (tmp_path / "runs" / "toy" / "front.json").is_file()


def test_a_changed_job_exits_2_and_can_be_forked(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert call("optimize", job, "--out", out).exit_code == 0
    refused = call("optimize", job, "--out", out, "--seed", 7)
    assert refused.exit_code == 2
    assert "search.seed: 1 -> 7" in refused.stderr and "--fork NEWDIR" in refused.stderr
    forked = call("optimize", job, "--out", out, "--seed", 7, "--fork", tmp_path / "new")
    assert forked.exit_code == 0, forked.stderr
    assert f"evaluations of {out} holds for this job (" in forked.stderr
    assert (
        "the seed" in forked.stderr and "points of the old front are tried first" in forked.stderr
    )
    assert json.loads((tmp_path / "new" / "run.json").read_text())["seed"] == 7
    grown = call("optimize", job, "--out", out, "--trials", 12)
    assert grown.exit_code == 0 and "going on with a study of 10 evaluations" in grown.stderr


def test_constraints_nobody_meets_exit_3_with_the_nearest_miss(job: Path, tmp_path: Path) -> None:
    changed(job, constraints=["ttft_p95_ms <= 1"])
    result = call("optimize", job, "--out", tmp_path / "out")
    assert result.exit_code == 3
    assert "meets the constraints" in result.stderr
    assert "ttft_p95_ms <= 1: missed" in result.stderr and "nearest miss: trial" in result.stderr
    assert (tmp_path / "out" / "trials.csv").is_file()


def test_a_model_too_large_for_the_chips_exits_3(job: Path, tmp_path: Path) -> None:
    changed(job, model="deepseek-r1", chips={"h100": 8})
    result = call("optimize", job, "--out", tmp_path / "out")
    assert result.exit_code == 3
    assert "x memory (nearest miss: " in result.stderr


def test_failed_evaluations_exit_4_with_their_reasons(
    job: Path, tmp_path: Path, formula: Callable[[Callable[..., Assessment]], None]
) -> None:
    def sometimes(plan: DeploymentPlan, *_: object, **__: object) -> Assessment:
        if plan.topology == "aggregated":
            raise ZeroDivisionError("float division by zero")
        return assessed(plan)

    formula(sometimes)
    result = call("optimize", job, "--out", tmp_path / "out")
    assert result.exit_code == 4
    assert " x ZeroDivisionError: float division by zero" in result.stderr
    assert "knee" in result.stdout


def test_nothing_but_failures_exits_4_too(
    job: Path, tmp_path: Path, formula: Callable[[Callable[..., Assessment]], None]
) -> None:
    def never(*_: object, **__: object) -> Assessment:
        raise ZeroDivisionError("float division by zero")

    formula(never)
    result = call("optimize", job, "--out", tmp_path / "out")
    assert result.exit_code == 4
    assert "10 evaluations failed:\n  10 x ZeroDivisionError" in result.stderr


def test_an_internal_failure_exits_1_in_one_line_and_shows_more_on_demand(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a law is broken")

    monkeypatch.setattr("optimizer.session.results_of", broken)
    result = call("optimize", job, "--out", tmp_path / "a")
    assert result.exit_code == 1
    assert "internal failure: RuntimeError: a law is broken" in result.stderr
    assert "Traceback" not in result.stderr and "--debug" in result.stderr
    assert "Traceback" in call("--debug", "optimize", job, "--out", tmp_path / "b").stderr


def test_ctrl_c_exits_130_with_the_state_saved_and_the_results_written(
    job: Path, tmp_path: Path, formula: Callable[[Callable[..., Assessment]], None]
) -> None:
    calls = iter(range(100))

    def interrupted(plan: DeploymentPlan, *_: object, **__: object) -> Assessment:
        if next(calls) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return assessed(plan)

    formula(interrupted)
    out = tmp_path / "out"
    result = call("optimize", job, "--out", out, "--workers", 1)
    assert result.exit_code == 130
    assert "the state is saved" in result.stderr
    with (out / "trials.csv").open() as file:
        done = len(list(csv.DictReader(file)))
    assert 4 <= done < 10
    formula(lambda plan, *_, **__: assessed(plan))
    assert call("optimize", job, "--out", out).exit_code == 0
    assert call("optimize", job, "--out", tmp_path / "whole").exit_code == 0
    tables = [(folder / "trials.csv").read_bytes() for folder in (out, tmp_path / "whole")]
    assert tables[0] == tables[1]


def test_dry_run_tells_the_space_and_the_time_and_starts_nothing(
    job: Path, tmp_path: Path
) -> None:
    result = call("optimize", job, "--out", tmp_path / "out", "--dry-run")
    assert result.exit_code == 0
    for words in ("topology", "decode.layout", "concurrency 10", "legal points", "s each"):
        assert words in result.stdout
    assert not (tmp_path / "out").exists()


def test_simulate_answers_for_one_plan(job: Path, study: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    assert call("choose", study, "--out", plan).exit_code == 0
    told = call("simulate", job, "--plan", plan)
    assert told.exit_code == 0
    assert (
        "ttft_p95_ms" in told.stdout
        and "binds: aggregated pool: compute (the formula)" in told.stdout
    )
    document = json.loads(call("simulate", job, "--plan", plan, "--json").stdout)
    assert {"metrics", "bands", "pools", "binds", "run"} <= document.keys()
    assert set(document["run"]) == {
        "simulated_requests",
        "simulation_cpu_s",
        "seed",
        "saturated",
        "queue_growth",
    }
    assert document["metrics"] == assessed(load_plan(plan)).metrics
    assert document["pools"][0]["role"] == "aggregated"


def plan_data(**keys: Any) -> dict[str, Any]:
    pool = {"role": "aggregated", "chip": CHIP, "replicas": 2, "tp": 2}
    return {"model": MODEL, "topology": "aggregated", "pools": [pool]} | keys


@pytest.mark.parametrize(
    ("keys", "code", "words"),
    [
        ({"load": {"concurrency": 4}}, 0, "concurrency 4"),
        ({}, 2, "load: the plan has no load"),
        ({"model": "qwen3-32b"}, 2, "model: the plan must be for the job's model"),
        ({"modle": MODEL}, 2, "did you mean model"),
        (
            {
                "load": {"concurrency": 4},
                "pools": [{"role": "aggregated", "chip": CHIP, "replicas": 9}],
            },
            3,
            "9 h100 are planned, the budget has 8",
        ),
        (
            {"load": {"concurrency": 4}, "pools": [{"role": "aggregated", "chip": "b200"}]},
            3,
            "no b200 is in the budget",
        ),
        (
            {"load": {"concurrency": 4}, "pools": [{"role": "aggregated", "chip": "b2000"}]},
            2,
            "did you mean b200",
        ),
        ({"load": {"concurrency": 4}, "engine": "sglang"}, 0, "concurrency 4"),
    ],
)
def test_simulate_judges_the_plan_file(
    job: Path, tmp_path: Path, keys: dict[str, Any], code: int, words: str
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(dump_yaml(plan_data(**keys)))
    result = call("simulate", job, "--plan", plan)
    assert result.exit_code == code, result.stderr
    assert words in (result.stdout if code == 0 else result.stderr)


def test_a_plan_without_a_load_takes_the_jobs_single_one(job: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(dump_yaml(plan_data()))
    changed(job, load={"concurrency": 7})
    assert "concurrency 7" in call("simulate", job, "--plan", plan).stdout


def test_front_is_shown_as_table_csv_and_json(study: Path) -> None:
    document = json.loads(call("front", study, "--format", "json").stdout)
    assert document == json.loads((study / "front.json").read_text())
    text = call("front", study, "--format", "csv").stdout
    assert text == (study / "front.csv").read_text()
    points = [row["point_id"] for row in csv.DictReader(io.StringIO(text))]
    table = call("front", study).stdout
    assert points and all(point in table for point in points)


def test_report_is_written_again(study: Path) -> None:
    page = (study / "report.html").read_bytes()
    (study / "report.html").unlink()
    assert call("report", study).exit_code == 0
    assert (study / "report.html").read_bytes() == page


def test_choose_takes_the_extreme_under_conditions_and_writes_its_plan(
    study: Path, tmp_path: Path
) -> None:
    out = tmp_path / "plan.yaml"
    fastest = call("choose", study, "--max", "tokens_per_s_per_user_p50", "--out", out)
    assert fastest.exit_code == 0
    front = json.loads((study / "front.json").read_text())["points"]
    best = max(front, key=lambda point: point["metrics"]["tokens_per_s_per_user_p50"])
    assert load_plan(out).point_id == best["point_id"]
    condition = f"tokens_per_s_per_user_p50 <= {best['metrics']['tokens_per_s_per_user_p50'] - 1}"
    other = call("choose", study, "--max", "tokens_per_s_per_user_p50", "--where", condition)
    assert other.exit_code == 0 and best["point_id"] not in other.stderr
    assert "pools:" in other.stdout


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--where", "chips<=0"], 3, "none of"),
        (["--where", "chip<=8"], 2, "did you mean chips"),
        (["--min", "tfft_p95_ms"], 2, "did you mean"),
        (["--knee", "--max", "chips"], 2, "one of --knee, --min and --max"),
    ],
)
def test_choose_tells_what_is_wrong(
    study: Path, options: list[str], code: int, words: str
) -> None:
    result = call("choose", study, *options)
    assert result.exit_code == code
    assert words in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("target", ["vllm", "dynamo"])
def test_export_takes_a_plan_or_a_point(study: Path, tmp_path: Path, target: str) -> None:
    plan = tmp_path / "plan.yaml"
    call("choose", study, "--knee", "--out", plan)
    point_id = load_plan(plan).point_id
    for what, out in ((plan, tmp_path / "a"), (f"{study}:{point_id}", tmp_path / "b")):
        result = call("export", what, "--target", target, "--out", out)
        assert result.exit_code == 0, result.stderr
        assert sorted(result.stdout.split()) == sorted(str(path) for path in out.iterdir())
    first, second = (sorted((tmp_path / name).iterdir()) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_export_tells_an_unknown_point_and_target(study: Path, tmp_path: Path) -> None:
    unknown = call("export", f"{study}:beef", "--target", "vllm", "--out", tmp_path / "x")
    assert unknown.exit_code == 2 and "no such point" in unknown.stderr
    plan = tmp_path / "plan.yaml"
    call("choose", study, "--out", plan)
    target = call("export", plan, "--target", "vlm", "--out", tmp_path / "x")
    assert target.exit_code == 2 and "did you mean vllm" in target.stderr


@pytest.mark.parametrize("command", ["front", "report", "choose"])
def test_a_directory_without_a_study_exits_2(tmp_path: Path, command: str) -> None:
    result = call(command, tmp_path)
    assert result.exit_code == 2 and "there is no study here" in result.stderr


def test_init_writes_a_job_that_loads(tmp_path: Path) -> None:
    out = tmp_path / "jobs" / "job.yaml"
    arguments = ["--model", "deepseek-ai/DeepSeek-R1", "--chips", "H200:16", "--chips", "gb200:8"]
    result = call("init", *arguments, "--workload", "fixed-8k1k", "--out", out)
    assert result.exit_code == 0, result.stderr
    job = load_job(out)
    assert (job.model, list(job.chips)) == ("deepseek-r1", ["h200", "gb200"])
    assert job.workload[0].preset == "fixed-8k1k"
    again = call("init", *arguments, "--workload", "fixed-8k1k", "--out", out)
    assert again.exit_code == 2 and "must not exist yet" in again.stderr


def test_init_names_a_trace_relative_to_the_job(tmp_path: Path) -> None:
    trace = tmp_path / "my trace: 1.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 9, "output_length": 2}\n')
    out = tmp_path / "job.yaml"
    arguments = ["--model", MODEL, "--chips", f"{CHIP}:8", "--workload", trace, "--out", out]
    assert call("init", *arguments).exit_code == 0
    assert str(tmp_path) not in out.read_text()
    assert load_job(out).workload[0].trace == str(trace)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--model", "kimi-k33", "--model: must be one of the catalogue's models"),
        ("--chips", "h1000:8", "did you mean h100"),
        ("--chips", "h100", "KIND:N"),
        ("--chips", "h100:0", "at least 1"),
        ("--workload", "fixed-1k2k", "did you mean fixed-1k"),
    ],
)
def test_init_tells_what_is_wrong_and_writes_nothing(
    tmp_path: Path, option: str, value: str, words: str
) -> None:
    options = {"--model": MODEL, "--chips": f"{CHIP}:8", "--workload": "fixed-1k1k"}
    arguments = [part for pair in (options | {option: value}).items() for part in pair]
    result = call("init", *arguments, "--out", tmp_path / "job.yaml")
    assert result.exit_code == 2
    assert words in result.stderr and "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("section", ["models", "chips", "engines", "workloads"])
def test_catalog_lists_and_shows_entries_with_their_sources(section: str) -> None:
    entries = json.loads(call("catalog", section, "--json").stdout)[section]
    listed = call("catalog", section).stdout
    assert entries and all(entry["name"] in listed for entry in entries)
    overview = call("catalog").stdout
    assert all(entry["name"] in overview for entry in entries)
    name = entries[0]["name"]
    assert json.loads(call("catalog", section, name, "--json").stdout) == entries[0]
    assert "source" in call("catalog", section, name).stdout


def test_catalog_marks_estimates_and_tells_unknown_names() -> None:
    chips = call("catalog", "chips").stdout
    assert "1.3*" in next(line for line in chips.splitlines() if "a100" in line)
    assert "long-context*" in call("catalog", "workloads").stdout
    unknown = call("catalog", "chips", "h1000")
    assert unknown.exit_code == 2 and "did you mean h100" in unknown.stderr


def test_trace_tells_format_rows_and_statistics(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    row = '{"timestamp": %d, "input_length": 100, "output_length": %d}\n'
    trace.write_text("".join(row % (1000 * n, n) for n in range(5)))
    document = json.loads(call("trace", trace, "--json").stdout)
    assert document["format"] == "mooncake-jsonl"
    rows = document["rows"]
    assert (rows["read"], rows["kept"]) == (5, 4)
    assert rows["dropped"] == {"no output tokens: failed request": 1}
    assert document["statistics"]["input_tokens"]["mean"] == 100
    told = call("trace", trace)
    assert told.exit_code == 0 and "mooncake-jsonl" in told.stdout
    trace.write_text("rubbish\n")
    assert call("trace", trace).exit_code == 2


def test_a_reader_that_goes_away_is_no_failure() -> None:
    command = f"{sys.executable} -m optimizer.cli catalog models | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=REPOSITORY)
    assert "Traceback" not in done.stderr and "failure" not in done.stderr
