"""The example of GPUs that prefill, RDUs that decode and Xeon hosts, in a short form."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from optimizer.cli import app
from spaces.documents import dump_yaml, read_yaml
from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two trials of few requests, with fewer layouts."""
    folder = tmp_path_factory.mktemp("unlike")
    job = read_yaml(REPOSITORY / "examples" / "agents-gpu-rdu-xeon.yaml")
    job["workload"] |= {"requests": 40}
    job["load"] |= {"concurrency": 4}
    job["space"] |= {"data_parallel": 1, "pipeline_parallel": 1, "max_num_seqs": 16}
    job["search"] = {"trials": 2, "seed": 1, "batch_size": 2}
    path = folder / "job.yaml"
    path.write_text(dump_yaml(job))
    done = CliRunner().invoke(app, ["optimize", str(path), "--out", str(folder / "out")])
    assert done.exit_code == 0, done.output
    return folder / "out"


def test_each_part_of_the_work_is_on_its_own_kind_of_processor(study: Path) -> None:
    with (study / "trials.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["state"] == "complete"]
    assert len(rows) == 2
    for row in rows:
        assert (row["prefill_chip"], row["prefill_engine"]) == ("h200", "vllm")
        assert (row["decode_chip"], row["decode_engine"]) == ("sn50", "sambanova")
        assert row["decode_kv_dtype"] in ("bf16", "fp8")
        assert float(row["tool_core_utilization"]) > 0
        assert float(row["decode_kv_copied_gb"]) > 0
        assert float(row["power_kw"]) > 0


def test_its_plan_cannot_be_exported_and_says_why(study: Path) -> None:
    plan = study.parent / "plan.yaml"
    chosen = CliRunner().invoke(app, ["choose", str(study), "--knee", "--out", str(plan)])
    assert chosen.exit_code == 0, chosen.output
    out = str(study.parent / "deploy")
    done = CliRunner().invoke(app, ["export", str(plan), "--target", "vllm", "--out", out])
    assert done.exit_code == 2
    assert "runs vllm, but got 'sambanova'" in done.stderr
