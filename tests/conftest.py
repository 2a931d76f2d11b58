"""Shared fixtures: where the outside data lies, and the small world most tests use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of outside data sets; the test is skipped where it is absent."""
    folder = Path(os.environ.get("SERVEFRONT_DATA", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"outside data not found at {folder}; set SERVEFRONT_DATA")
    return folder


# Properties are judged by the same examples in every run, so that a change is what fails. Set
# HYPOTHESIS_PROFILE=search to look for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
