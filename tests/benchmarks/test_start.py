"""CPU seconds of commands from their start; run with: pytest -m benchmark tests/benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.benchmark

PLAN = """
model: deepseek-r1
topology: aggregated
pools: [{role: aggregated, chip: h200, replicas: 2, tp: 8, ep: 8, max_num_seqs: 64}]
load: {concurrency: 16}
"""

# Prints the CPU seconds of the process when the event loop is entered, and ends it there.
FIRST_EVENT = """
import importlib, os, sys, time
from optimizer.cli import main
simulator = importlib.import_module("objectives.simulator.simulate")
def entered(*arrays):
    print(time.process_time(), flush=True)
    os._exit(0)
simulator.run = entered
main()
"""


def cpu_seconds(arguments: list[str]) -> float:
    """User and system seconds of the command, median of five runs."""
    taken = []
    for _ in range(5):
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "optimizer.cli", *arguments],
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
        )
        after = os.times()
        taken.append(
            after.children_user
            - before.children_user
            + after.children_system
            - before.children_system
        )
    return median(taken)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["catalog"], ["catalog", "models"]], ids=" ".join
)
def test_words_come_within_half_a_second(arguments: list[str]) -> None:
    seconds = cpu_seconds(arguments)
    print(f"\nservefront {' '.join(arguments)}: {seconds:.2f} CPU seconds")
    assert seconds <= 0.5


def test_the_first_event_comes_within_two_seconds(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    job = REPOSITORY / "examples" / "deepseek-r1-h200.yaml"
    arguments = ["simulate", str(job), "--plan", str(plan)]
    taken = []
    for _ in range(5):
        told = subprocess.run(
            [sys.executable, "-c", FIRST_EVENT, *arguments],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
        taken.append(float(told.stdout.split()[-1]))
    print(f"\nfirst event of servefront simulate: {median(taken):.2f} CPU seconds")
    assert median(taken) <= 2.0
