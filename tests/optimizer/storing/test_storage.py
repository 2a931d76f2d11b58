"""The state on disk survives kills, and belongs to one process at a time."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from objectives.goals import parse_objective
from optimizer.storing.storage import (
    JOURNAL,
    open_storage,
    open_study,
    repair_journal,
    without_password,
)
from spaces.errors import InputError

OBJECTIVES = [parse_objective("minimize ttft_p95_ms"), parse_objective("minimize chips")]


def filled(directory: Path, trials: int = 3) -> optuna.Study:
    study = open_study(open_storage(directory, None), "s", OBJECTIVES)
    for _ in range(trials):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        study.tell(trial, [1.0, 2.0])
    return study


@pytest.mark.parametrize(
    "torn", [b'{"op_code":4,"tri', b'{"op_code":4,"trial_id":0}\x00\x00\n', b"\x00" * 50, b"[1]\n"]
)
def test_a_torn_last_record_is_cut_off_and_the_rest_is_kept(tmp_path: Path, torn: bytes) -> None:
    filled(tmp_path)
    journal = tmp_path / JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole + torn)
    assert repair_journal(tmp_path) == len(torn)
    assert journal.read_bytes() == whole
    assert len(filled(tmp_path).trials) == 6


def test_a_whole_journal_is_left_alone(tmp_path: Path) -> None:
    filled(tmp_path)
    assert repair_journal(tmp_path) == 0
    assert repair_journal(tmp_path / "nowhere") == 0


def test_records_reach_other_readers_at_once_and_the_disk_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[int] = []
    monkeypatch.setattr("optimizer.storing.storage.os.fsync", forced.append)
    study = filled(tmp_path, trials=30)
    reader = optuna.load_study(
        study_name="s", storage=JournalStorage(JournalFileBackend(str(tmp_path / JOURNAL)))
    )
    assert reader.trials == study.trials
    assert 1 <= len(forced) <= 5


def test_a_journal_damaged_in_the_middle_is_told(tmp_path: Path) -> None:
    filled(tmp_path)
    journal = tmp_path / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:3], b"rubbish\n", *lines[3:]]))
    with pytest.raises(InputError, match=r"study.journal: the journal is damaged"):
        open_storage(tmp_path, None)


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite:////no/such/folder/x.db", "nosuchdb://me:secret@host/db"]
)
def test_a_storage_that_cannot_be_opened_is_told_without_its_password(
    tmp_path: Path, url: str
) -> None:
    with pytest.raises(InputError, match="the storage cannot be opened") as caught:
        open_storage(tmp_path, url)
    assert "secret" not in str(caught.value)
    assert caught.value.remedy


def test_only_the_password_of_a_url_is_hidden() -> None:
    assert without_password("sqlite:///runs/x.db") == "sqlite:///runs/x.db"
    assert without_password("mysql+x://me@host/db") == "mysql+x://me@host/db"
    assert without_password("a://me:p@ss@host:1/db") == "a://me:***@host:1/db"
    assert without_password("a://h/db?user=u&password=p&sslpassword=q&x=1") == (
        "a://h/db?user=u&password=***&sslpassword=***&x=1"
    )
    assert "secret" not in without_password("a://h:5/db?user=a@b&PASSWORD=secret")


def test_a_study_carries_its_directions_and_metric_names(tmp_path: Path) -> None:
    filled(tmp_path)
    study = open_study(open_storage(tmp_path, None), "s", OBJECTIVES)
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MINIMIZE"]
    assert study.metric_names == ["ttft_p95_ms", "chips"]
