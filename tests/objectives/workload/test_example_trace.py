"""The example trace is what its script makes, and what the script's description says."""

from __future__ import annotations

import runpy
from pathlib import Path

from objectives.workload import describe, read_trace

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "scripts" / "make_example_trace.py"
EXAMPLE = REPOSITORY / "examples" / "agent_trace.jsonl"


def test_committed_file_is_what_the_script_makes(tmp_path: Path) -> None:
    made = tmp_path / "made.jsonl"
    runpy.run_path(str(SCRIPT))["main"](["--out", str(made)])
    assert made.read_bytes() == EXAMPLE.read_bytes()


def test_example_is_agent_traffic_of_the_stated_size() -> None:
    read = read_trace(EXAMPLE)
    statistics = describe(read.workload)
    inputs, outputs = statistics["input_tokens"], statistics["output_tokens"]
    assert EXAMPLE.stat().st_size < 400_000
    assert (read.dropped, read.warnings) == ({}, ())
    assert 550 <= statistics["requests"] <= 650
    assert 600 <= statistics["span_s"] <= 900
    assert 4096 < read.workload.input_tokens.min() < 5000
    assert 13_000 <= inputs["p50"] <= 17_000
    assert 50_000 <= inputs["max"] <= 60_000
    assert 180 <= outputs["p50"] <= 220


def test_sessions_share_the_system_prompt_and_extend_their_own_context() -> None:
    workload = read_trace(EXAMPLE).workload
    starts = workload.block_offsets[:-1]
    for place in range(8):
        assert (workload.block_ids[starts + place] == place).all()
    reuse = describe(workload)["prefix_reuse"]
    assert 0.85 < reuse["hit_fraction"] < 0.95
