"""Short runs and replications, evaluated and stored elsewhere, are those of one process."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from optimizer.directory import read_results, read_run
from optimizer.storing.storage import open_storage
from spaces.errors import InputError
from tests.conftest import REPOSITORY
from tests.optimizer.fidelity.world import fidelity_study, tables_of
from tests.optimizer.postgres import Server

# Connections and sockets are closed when the collector finds their owners.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect the connections of results that were read, while their warnings are ignored."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The tables of the study of one worker, with its journal."""
    directory = tmp_path_factory.mktemp("alone")
    results = fidelity_study(directory).results
    states = [record.state for record in results.records]
    assert "pruned" in states and "complete" in states
    counts = {p.replicated.count for p in results.front.points if p.replicated}
    assert max(counts) == 6
    return tables_of(directory)


def replications(directory: Path, url: str) -> set[str]:
    """Which replications the study holds, by number and point."""
    try:
        name = read_run(directory)["study"]
        study = optuna.load_study(study_name=name, storage=open_storage(directory, url))
    except (InputError, KeyError):
        return set()
    return {key for key in study.user_attrs if key.startswith("replications/")}


def waited(condition: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_processes_find_the_same(tmp_path: Path, processes: None, alone: dict[str, bytes]) -> None:
    fidelity_study(tmp_path, workers=2)
    assert tables_of(tmp_path) == alone


def test_a_cluster_that_loses_a_node_among_the_replications_finds_the_same(
    cluster: Any, tmp_path: Path, alone: dict[str, bytes]
) -> None:
    node = cluster.add_node(num_cpus=1)  # whose first worker may take ten seconds to start
    cluster.wait_for_nodes()
    log = tmp_path / "log"
    log.mkdir()

    def kill() -> None:
        def worked() -> bool:
            names = [file.name for file in log.iterdir()]
            return len(names) >= 20 and any(name.startswith(node.node_id) for name in names)

        waited(worked)
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    fidelity_study(
        tmp_path / "ray", executor=f"ray:{cluster.address}", workers=None, seconds=0.6, log=log
    )
    killer.join()
    assert tables_of(tmp_path / "ray") == alone
    names = [file.name.split(".") for file in log.iterdir()]
    ran = sorted(names, key=lambda name: int(name[-1]))
    assert {at for at, *_ in ran} == {node.node_id, cluster.head_node.node_id}
    assert node.node_id not in {at for at, *_ in ran[-8:]}, "the node was not killed in mid-run"


def test_a_run_in_postgresql_killed_outright_among_the_replications_loses_none(
    server: Server, tmp_path: Path, alone: dict[str, bytes]
) -> None:
    command = [sys.executable, "-m", "tests.optimizer.fidelity.world", str(tmp_path)]
    environment = {"PATH": "", "SERVEFRONT_STORAGE": server.url}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment) as process:
        waited(lambda: len(replications(tmp_path, server.url)) >= 10)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    before = replications(tmp_path, server.url)
    fidelity_study(tmp_path, storage_url=server.url)
    after = replications(tmp_path, server.url)
    assert 10 <= len(before) < len(after), "the run was not killed among the replications"
    assert before < after
    assert tables_of(tmp_path) == alone
    results = read_results(tmp_path, server.url)
    made = sum(r.replicated.count - 1 for r in results.settled if r.replicated)
    assert made == len(after), "each replication is stored once"


def test_a_run_in_postgresql_evaluated_on_ray_finds_the_same(
    server: Server, cluster: Any, tmp_path: Path, alone: dict[str, bytes]
) -> None:
    address = f"ray:{cluster.address}"
    fidelity_study(tmp_path, executor=address, workers=None, storage_url=server.url)
    assert tables_of(tmp_path) == alone
