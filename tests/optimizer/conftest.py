"""Fixtures of the tests of the search."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_review(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures and pages take a second each time; tests that look at them ask for `review`."""
    if "review" not in request.fixturenames:
        monkeypatch.setattr("optimizer.session.write_review", lambda *_: None)


@pytest.fixture
def review() -> None:
    """Asks for the pictures and pages too."""


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are threads, which see what a test has patched; `processes` are asked for."""
    if "processes" not in request.fixturenames:
        monkeypatch.setattr("optimizer.execution.executor.MOST_THREADS", 1000)


@pytest.fixture
def processes() -> None:
    """Asks for the workers a user has."""
