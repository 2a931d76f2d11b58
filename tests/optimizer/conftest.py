"""Fixtures of the tests of the search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.optimizer.postgres import Server, binaries


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster with a head of one CPU; tests add nodes of their own."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'servefront[ray]'")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A PostgreSQL server."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    folder = binaries()
    if folder is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: apt-get install postgresql)")
    server = Server(folder)
    yield server
    server.remove()


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
