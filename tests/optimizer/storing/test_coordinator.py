"""One coordinator at a time, in a directory and in a shared storage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine

import optimizer.storing.coordinator as coordinator
from optimizer.storing.coordinator import Lease, coordinating, leading
from spaces.errors import InputError
from tests.conftest import REPOSITORY

STUDY = "a study"
HOLD = (
    "import sys\nfrom optimizer.storing.coordinator import leading\n"
    "with leading(sys.argv[1], sys.argv[2], print, lambda: False) as taken_over:\n"
    "    print('in', flush=True)\n"
    "    for _ in sys.stdin:\n        print(taken_over(), flush=True)\n"
)
# Where SQLite's connections are collected before the engine is.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is given up after 1.5 s, and looked at often."""
    monkeypatch.setattr(coordinator, "LEASE_S", 1.5)
    monkeypatch.setattr(coordinator, "RENEW_S", 0.2)
    monkeypatch.setattr(coordinator, "LOOK_S", 0.05)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/studies.db"


@contextmanager
def holder(url: str, study: str = STUDY) -> Iterator[subprocess.Popen[str]]:
    """Another process that leads a study; a line makes it say whether it still does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, url, study],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        yield process
        process.kill()


def led(url: str, notes: list[str] | None = None) -> None:
    with leading(url, STUDY, (notes if notes is not None else []).append, lambda: False) as lost:
        assert lost() == ""


def pretend(url: str, **columns: object) -> None:
    """Change what the lease says of its holder."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(coordinator._leases.update().values(**columns))
    engine.dispose()


def test_a_second_coordinator_is_refused_and_told_who_the_first_is(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "LEASE_S", 20.0)  # the other renews every five seconds
    notes: list[str] = []
    with (
        holder(url) as other,
        pytest.raises(InputError, match=f"process {other.pid} on ") as caught,
    ):
        led(url, notes)
    assert "another servefront coordinates this study" in str(caught.value)
    assert len(notes) == 1 and "watching for up to 20 s" in notes[0]


def test_another_study_of_the_same_storage_is_free(url: str) -> None:
    with holder(url, "another"):
        led(url)


def test_a_lease_is_given_back_at_the_end(url: str) -> None:
    notes: list[str] = []
    led(url, notes)
    led(url, notes)
    assert notes == []


def test_a_killed_coordinator_of_this_machine_is_succeeded_at_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "LEASE_S", 1000.0)
    with holder(url) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
    led(url)


def test_a_dead_coordinator_of_another_machine_is_succeeded_when_its_lease_ends(
    url: str,
) -> None:
    with holder(url) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
    pretend(url, kernel="elsewhere")
    notes: list[str] = []
    started = time.monotonic()
    led(url, notes)
    assert time.monotonic() - started >= 1.5
    assert len(notes) == 1 and str(other.pid) in notes[0]


def test_a_process_id_that_is_in_use_again_is_no_proof_of_life(url: str) -> None:
    with holder(url) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
    pretend(url, process=os.getppid())
    led(url)


def test_of_many_that_start_together_one_leads(url: str) -> None:
    led(url)  # makes the table
    inside: list[Lease] = []
    refused: list[InputError] = []
    gate = threading.Barrier(6)

    def start() -> None:
        lease = Lease(url, STUDY)
        gate.wait()
        try:
            if lease.take(lambda _: None, lambda: len(inside) + len(refused) >= 6):
                inside.append(lease)
        except InputError as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(inside), len(refused)) == (1, 5)
    inside[0].release()


def test_who_was_out_for_too_long_learns_who_took_over(url: str) -> None:
    with holder(url) as other:
        other.send_signal(signal.SIGSTOP)
        pretend(url, kernel="elsewhere")
        with leading(url, STUDY, lambda _: None, lambda: False) as taken_over:
            other.send_signal(signal.SIGCONT)
            assert other.stdin is not None and other.stdout is not None
            end, answer = time.monotonic() + 60, "\n"
            while answer == "\n" and time.monotonic() < end:
                time.sleep(0.2)
                other.stdin.write("\n")
                other.stdin.flush()
                answer = other.stdout.readline()
            assert answer == f"process {os.getpid()} on {os.uname().nodename}\n"
            assert taken_over() == ""


def test_waiting_for_a_lease_ends_when_it_is_cancelled(url: str) -> None:
    with holder(url):
        pretend(url, kernel="elsewhere")
        with (
            pytest.raises(KeyboardInterrupt),
            leading(url, STUDY, lambda _: None, lambda: True),
        ):
            raise AssertionError("led")


def test_a_study_in_its_directory_needs_no_lease(tmp_path: Path) -> None:
    with leading(None, STUDY, lambda _: None, lambda: False) as taken_over:
        assert taken_over() == ""


def test_a_second_coordinator_of_a_directory_is_refused_until_the_first_is_gone(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from optimizer.storing.coordinator import coordinating\n"
        "with coordinating(Path(sys.argv[1])):\n print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"in\n"
        with (
            pytest.raises(InputError, match="another servefront is working"),
            coordinating(tmp_path),
        ):
            raise AssertionError("two coordinators")
        other.kill()
    with coordinating(tmp_path):
        pass


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"), coordinating(tmp_path / "file/x"):
        raise AssertionError("made a directory in a file")
