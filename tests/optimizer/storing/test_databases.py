"""Studies in databases: a real PostgreSQL server that comes and goes, and SQLite."""

from __future__ import annotations

import gc
import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from optimizer.cli import app
from optimizer.directory import read_results
from optimizer.storing.storage import open_storage
from results.trials import TrialRecord
from spaces.documents import dump_yaml
from spaces.errors import InputError, StorageUnavailable
from tests.conftest import REPOSITORY
from tests.optimizer.postgres import ENCODED, PASSWORD, Server
from tests.optimizer.toy import TRIALS, Silent, job_data, job_of, run, searched

# Connections are closed when the collector finds their engines.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SMALL = {"trials": 10, "batch_size": 4}
VARIABLE = "SERVEFRONT_STORAGE"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect the connections of results that were read, while their warnings are ignored."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table of the study that nothing happened to."""
    return searched(job_of(), tmp_path_factory.mktemp("whole")).table


def table(directory: Path) -> str:
    return (directory / "trials.csv").read_bytes().decode()


def waited(condition: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def toy(directory: Path, url: str, seconds: float) -> subprocess.Popen[str]:
    """The study in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.optimizer.toy", str(directory), str(seconds)],
        cwd=REPOSITORY,
        env={"PATH": "", VARIABLE: url},
        stderr=subprocess.PIPE,
        text=True,
    )


def told(url: str, directory: Path) -> int:
    try:
        return len(read_results(directory, url).records)
    except InputError:
        return 0


def test_a_study_in_postgresql_is_the_study_of_the_journal_and_nobody_learns_the_password(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, review: None, whole: str
) -> None:
    directory = tmp_path / "same"
    run(job_of(), directory, storage_url=server.url)
    assert table(directory) == whole
    assert not (directory / "study.journal").exists()
    for file in directory.iterdir():
        content = file.read_bytes()
        assert ENCODED.encode() not in content and PASSWORD.encode() not in content, file
    assert ":***@127.0.0.1" in json.loads((directory / "run.json").read_text())["storage"]
    with pytest.raises(InputError, match="needs its password") as caught:
        read_results(directory)
    assert VARIABLE in caught.value.remedy
    monkeypatch.setenv(VARIABLE, server.url)
    assert len(read_results(directory).records) == len(whole.splitlines()) - 1
    found = CliRunner().invoke(app, ["front", str(directory)])
    assert found.exit_code == 0 and ENCODED not in found.output
    monkeypatch.setenv(VARIABLE, "postgresql+psycopg://me:x@elsewhere/db")
    with pytest.raises(InputError, match="needs its password"):
        read_results(directory)


def test_two_coordinators_do_not_share_a_study(server: Server, tmp_path: Path, whole: str) -> None:
    first, second = tmp_path / "a" / "study", tmp_path / "b" / "study"
    with toy(first, server.url, 0.5) as process:
        waited(lambda: told(server.url, first) > 0)
        watch = Silent()
        with pytest.raises(InputError, match=f"process {process.pid} on ") as caught:
            run(job_of(), second, storage_url=server.url, watch=watch)
        assert "another servefront coordinates this study" in str(caught.value)
        assert len(watch.notes) == 1
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    done = told(server.url, first)
    assert 0 < done < TRIALS
    run(job_of(), second, storage_url=server.url)
    assert table(second) == whole


def test_a_coordinator_killed_outright_loses_nothing(
    server: Server, tmp_path: Path, whole: str
) -> None:
    directory = tmp_path / "killed"
    with toy(directory, server.url, 0.1) as process:
        waited(lambda: told(server.url, directory) > 3)
        process.kill()
    assert 3 < told(server.url, directory) < TRIALS
    watch = Silent()
    run(job_of(), directory, storage_url=server.url, watch=watch, workers=2)
    assert watch.notes == []  # it was a process of this machine: no need to wait for its lease
    assert table(directory) == whole


def test_a_server_that_crashes_in_mid_run_is_waited_for(
    server: Server, tmp_path: Path, whole: str
) -> None:
    class Crashing(Silent):
        def told(self, trial: Any) -> None:
            super().told(trial)
            if len(self.records) == 9 and not self.notes:
                server.stop()
                threading.Timer(2.0, server.start).start()

    watch = Crashing()
    run(job_of(), tmp_path / "crashed", storage_url=server.url, watch=watch)
    assert table(tmp_path / "crashed") == whole
    assert any("the storage does not answer" in note for note in watch.notes)
    assert not any(ENCODED in note or PASSWORD in note for note in watch.notes)


def test_a_server_that_stays_away_ends_the_run_with_the_state_safe(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: str
) -> None:
    class Ending(Silent):
        def told(self, trial: Any) -> None:
            super().told(trial)
            if len(self.records) == 6:
                server.stop()

    monkeypatch.setattr("optimizer.storing.patience.PATIENCE_S", 1.0)
    with pytest.raises(StorageUnavailable, match="does not answer"):
        run(job_of(), tmp_path / "away", storage_url=server.url, watch=Ending())
    job = tmp_path / "job.yaml"
    job.write_text(dump_yaml(job_data()))
    call = ["optimize", str(job), "--out", str(tmp_path / "x"), "--storage", server.url]
    found = CliRunner().invoke(app, call)
    assert found.exit_code == 1 and "does not answer" in found.stderr
    assert ENCODED not in found.output
    server.start()
    run(job_of(), tmp_path / "away", storage_url=server.url)
    assert table(tmp_path / "away") == whole


@pytest.mark.parametrize("part", ["password", "database"])
def test_what_the_server_refuses_is_wrong_input(server: Server, tmp_path: Path, part: str) -> None:
    url = server.url_with("wrong") if part == "password" else f"{server.url}x"
    with pytest.raises(InputError, match="the storage cannot be opened") as caught:
        open_storage(tmp_path, url)
    assert "wrong@" not in str(caught.value) and ENCODED not in str(caught.value)


class Killed(BaseException):
    """The process is gone."""


def failing(
    monkeypatch: pytest.MonkeyPatch, commits: Iterator[int], error: Callable[[], BaseException]
) -> None:
    """Each commit by which the iterator is at 0 is done, but its answer is lost."""
    commit = Session.commit

    def committed(self: Session) -> None:
        commit(self)
        if next(commits) == 0:
            raise error()

    monkeypatch.setattr(Session, "commit", committed)


def test_a_search_in_a_database_killed_after_any_commit_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(search=SMALL)
    expected = searched(job, tmp_path / "whole").records
    url, chance, kills = f"sqlite:///{tmp_path}/studies.db", random.Random(3), 0
    records: tuple[TrialRecord, ...] = ()
    while not records:
        with monkeypatch.context() as patch:
            failing(patch, itertools.count(chance.randrange(15, 60), -1), Killed)
            try:
                records = run(job, tmp_path / "killed", storage_url=url).results.records
            except Killed:
                kills += 1
    assert kills >= 3
    assert list(records) == expected


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_answers_of_a_database_that_get_lost_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    job = job_of(search=SMALL)
    expected = searched(job, tmp_path / "whole").records
    url, chance = f"sqlite:///{tmp_path}/studies.db", random.Random(seed)
    monkeypatch.setattr("optimizer.storing.patience.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("optimizer.storing.patience.LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr("time.sleep", lambda _: None)
    lost = itertools.chain(  # once the study has been found for the first time
        itertools.repeat(1, 40), (int(chance.random() > 0.04) for _ in itertools.count())
    )
    failing(monkeypatch, lost, lambda: OperationalError("insert", {}, Exception("gone")))
    watch = Silent()
    outcome = run(job, tmp_path / "study", storage_url=url, watch=watch)
    assert list(outcome.results.records) == expected
    assert watch.notes and "gone" in watch.notes[0]


def test_a_database_in_memory_is_refused(tmp_path: Path) -> None:
    for url in ("sqlite://", "sqlite:///:memory:", "sqlite+pysqlite:///:memory:"):
        with pytest.raises(InputError, match="must outlive the process"):
            open_storage(tmp_path, url)


def test_a_relative_path_of_sqlite_means_the_same_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(job_of(search=SMALL), tmp_path / "study", storage_url="sqlite:///studies.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_results(tmp_path / "study").records == outcome.results.records
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("kept", ["journal", "postgresql"])
def test_a_study_opens_in_the_dashboard_of_optuna(
    request: pytest.FixtureRequest, tmp_path: Path, kept: str
) -> None:
    dashboard = pytest.importorskip("optuna_dashboard", reason="optuna-dashboard not installed")
    url = None if kept == "journal" else request.getfixturevalue("server").url
    outcome = run(job_of(search=SMALL), tmp_path / "shown", storage_url=url)
    name = outcome.results.study.study_name
    served = dashboard.wsgi(open_storage(tmp_path / "shown", url))

    def answer(path: str) -> Any:
        environment = {"PATH_INFO": path, "QUERY_STRING": ""}
        setup_testing_defaults(environment)
        status: list[str] = []
        body = b"".join(served(environment, lambda line, *_: status.append(line)))
        assert status == ["200 OK"], (path, status, body[:200])
        return body

    summaries = json.loads(answer("/api/studies"))["study_summaries"]
    (study,) = [entry for entry in summaries if entry["study_name"] == name]
    detail = json.loads(answer(f"/api/studies/{study['study_id']}"))
    assert detail["objective_names"] == [goal.metric for goal in job_of().goals]
    shown = {trial["number"]: trial["values"] for trial in detail["trials"]}
    assert sorted(shown) == [record.trial for record in outcome.results.records]
    for record in outcome.results.records:
        if record.state == "complete":
            values = [record.metrics[goal.metric] for goal in job_of().goals]
            assert [float(value) for value in shown[record.trial]] == values
    assert b"<html" in answer("/dashboard/").lower()
