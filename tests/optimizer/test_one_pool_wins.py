"""A split that is slower than one pool is not what a search recommends."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from typer.testing import CliRunner

from optimizer.cli import app
from spaces.documents import dump_yaml


def test_where_one_pool_wins_it_is_on_the_front(tmp_path: Path) -> None:
    """gpt-oss-120b on eight H200, as users of another planner met it (ai-dynamo/dynamo#3774)."""
    job = {
        "model": "gpt-oss-120b",
        "chips": {"h200": 8},
        "engine": "vllm",
        "workload": {"synthetic": {"requests": 120, "input_tokens": 2000, "output_tokens": 300}},
        "load": {"concurrency": 64},
        "space": {
            "topology": ["aggregated", "prefill-decode"],
            "tensor_parallel": [1, 2, 4],
            "pipeline_parallel": 1,
            "data_parallel": 1,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 8192,
        },
        "search": {"trials": 60, "seed": 1, "sampler": "exhaustive"},
    }
    (tmp_path / "job.yaml").write_text(dump_yaml(job))
    told = CliRunner().invoke(
        app, ["optimize", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "study")]
    )
    assert told.exit_code == 0, told.stderr
    metric = "output_tokens_per_s_per_chip"
    with (tmp_path / "study" / "trials.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["state"] == "complete"]
    best = {
        topology: max(float(row[metric]) for row in rows if row["topology"] == topology)
        for topology in ("aggregated", "prefill-decode")
    }
    assert best["aggregated"] > best["prefill-decode"]
    points = json.loads((tmp_path / "study" / "front.json").read_text())["points"]
    first = max(points, key=lambda point: point["metrics"][metric])
    assert first["plan"]["topology"] == "aggregated"
    assert first["metrics"][metric] == best["aggregated"]
