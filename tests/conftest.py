"""Shared fixtures: where the outside data lies, and the small world most tests use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of outside data sets; the test is skipped where it is absent."""
    folder = Path(os.environ.get("SERVEFRONT_DATA", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"outside data not found at {folder}; set SERVEFRONT_DATA")
    return folder
