"""The command as a pod runs it: ended by SIGTERM in mid-run and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from spaces.documents import dump_yaml
from tests.conftest import REPOSITORY
from tests.optimizer.toy import job_data

BATCH = 4
ENDLESS = 2_000


def evicted_and_replaced(folder: Path, *options: str) -> None:
    """Run `optimize` with `options`, end it by SIGTERM once it has told a trial, go on without
    them, and compare with a run that was left alone.
    """
    job = folder / "job.yaml"
    search = {"trials": ENDLESS, "batch_size": BATCH, "sampler": "random"}
    job.write_text(dump_yaml(job_data(constraints=[], search=search)))
    command = [sys.executable, "-m", "optimizer.cli", "optimize", str(job), "--out"]
    out = folder / "evicted"
    with subprocess.Popen(
        [*command, str(out), *options],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        journal, end = out / "study.journal", time.monotonic() + 600
        while not (journal.is_file() and b'"outcome"' in journal.read_bytes()):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, talk = process.communicate(timeout=300)
    assert process.returncode == 130, talk
    assert "interrupted (SIGTERM): the state is saved" in talk
    done = len((out / "trials.csv").read_text().splitlines()) - 1
    assert 0 < done < ENDLESS
    budget = str(BATCH * (done // BATCH + 2))
    for directory in (out, folder / "whole"):
        again = [*command, str(directory), "--trials", budget]
        subprocess.run(again, cwd=REPOSITORY, check=True, capture_output=True)
    assert (out / "trials.csv").read_bytes() == (folder / "whole" / "trials.csv").read_bytes()
