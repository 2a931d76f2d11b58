"""What the workload folder offers, and what it must not drag in."""

from __future__ import annotations

import subprocess
import sys

import objectives.workload
import objectives.workload.readers


def test_public_names_are_sorted_and_there() -> None:
    for package in (objectives.workload, objectives.workload.readers):
        assert package.__all__ == sorted(package.__all__)
        assert all(hasattr(package, name) for name in package.__all__)


def test_import_is_light() -> None:
    code = (
        "import sys, objectives.workload; "
        "print(sorted({'pandas', 'scipy', 'numba', 'optuna', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
