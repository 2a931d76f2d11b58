"""Attention and experts on unlike chips, with drafts: from a job to a front and a report."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from optimizer.cli import app
from spaces.documents import dump_yaml

JOB: dict[str, Any] = {
    "model": "deepseek-v3",
    "chips": {"h200": 24, "mi355x": 16},
    "precision": {"kv": ["fp8"]},
    "workload": {
        "synthetic": {
            "requests": 60,
            "input_tokens": 2000,
            "output_tokens": 100,
            "shared_prefix_tokens": 1000,
        }
    },
    "load": {"concurrency": [4, 16]},
    "speculation": {"depth": [0, 1], "acceptance": [0.8]},
    "space": {
        "topology": ["prefill-decode+afd", "prefill-midfill-decode+afd"],
        "shared_gb": 2000,
        "retention": "write-through",
        "micro_batches": [1, 3],
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "data_parallel": [1, 8],
        "pools": {
            "prefill": {"chips": "h200"},
            "midfill": {"chips": "h200"},
            "decode-attention": {"chips": "h200"},
            "decode-experts": {"chips": "mi355x"},
        },
    },
    "search": {"trials": 16, "seed": 1, "sampler": "qmc"},  # goes everywhere
}


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    (folder / "job.yaml").write_text(dump_yaml(JOB))
    result = call("optimize", folder / "job.yaml", "--out", folder / "study")
    assert result.exit_code == 0, result.stderr
    return folder / "study"


def test_the_usual_choice_is_the_estimate(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(dump_yaml(JOB | {"search": {"trials": 16}}))
    result = call("optimize", tmp_path / "job.yaml", "--dry-run")
    assert "sampler estimate" in result.stdout, result.stderr


def test_both_topologies_are_simulated_with_and_without_drafts(study: Path) -> None:
    with (study / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["state"] for row in rows} == {"complete"}
    assert {row["topology"] for row in rows} == set(JOB["space"]["topology"])
    assert {row["speculation_depth"] for row in rows} == {"0", "1"}
    for row in rows:
        chips = row["decode_attention_chip"], row["decode_experts_chip"]
        assert chips == ("h200", "mi355x")
        assert float(row["chips"]) <= 40


def test_the_front_is_told_drawn_and_chosen_from(study: Path, tmp_path: Path) -> None:
    assert "mi355x experts" in call("front", study).stdout
    assert "mi355x experts" in (study / "report.html").read_text()
    plan = tmp_path / "plan.yaml"
    assert call("choose", study, "--knee", "--out", plan).exit_code == 0
    told = call("simulate", study.parent / "job.yaml", "--plan", plan, "--json")
    assert told.exit_code == 0, told.stderr
    roles = [pool["role"] for pool in json.loads(told.stdout)["pools"]]
    assert roles[-2:] == ["decode-attention", "decode-experts"]


def test_what_no_engine_runs_is_not_exported(study: Path, tmp_path: Path) -> None:
    point = json.loads((study / "front.json").read_text())["points"][0]["point_id"]
    told = call("export", f"{study}:{point}", "--target", "vllm", "--out", tmp_path / "deploy")
    assert told.exit_code == 2
    assert "splits decode into attention and expert pools" in told.stderr
    assert not (tmp_path / "deploy").exists()
