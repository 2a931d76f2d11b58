"""Where a study is kept: a journal file in its directory, or a storage shared by URL.

One coordinator at a time works in a directory, held by a lock that the system releases however
the process ends.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend

from objectives.goals import Objective
from spaces.errors import InputError

JOURNAL = "study.journal"
LOCK = ".lock"
HIDDEN = ":***"
FORCE_EVERY_S = 1.0


class Journal(JournalFileBackend):
    """The journal of a directory in which nobody else writes.

    What is appended survives the end of the process at once; it is forced to the disk once a
    second, since waiting for the disk a dozen times a trial can take longer than the trial.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._forced_s = -math.inf

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records, each a line of JSON, in one write."""
        lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in logs]
        with self._path.open("ab", buffering=0) as file:
            file.write("".join(lines).encode())
            if time.monotonic() - self._forced_s >= FORCE_EVERY_S:
                os.fsync(file.fileno())
                self._forced_s = time.monotonic()


@contextmanager
def coordinating(directory: Path) -> Iterator[None]:
    """Be the only coordinator of a directory, which is made if need be.

    Raises `InputError` when another process is.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = (directory / LOCK).open("w")
    except OSError as error:
        raise InputError(
            f"the study directory cannot be written ({error.strerror})",
            where=str(directory),
            remedy="choose another with --out",
        ) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                "another servefront is working in this study directory",
                where=str(directory),
                remedy="wait for it or stop it, or choose another directory with --out",
            ) from None
        yield


def open_storage(directory: Path, url: str | None) -> BaseStorage:
    """The storage behind `url`, or the journal of the directory, which is made if need be.

    A wrong URL is told as an `InputError`.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url is None:
        return _open_journal(directory / JOURNAL)
    try:
        return get_storage(url)
    except Exception as error:  # the drivers of the databases raise what they like
        raise InputError(
            f"the storage cannot be opened ({_first_line(error)})",
            key="--storage",
            value=without_password(url),
            remedy="give an Optuna storage URL, for example postgresql+psycopg://user@host/db",
        ) from None


def open_study(storage: BaseStorage, name: str, objectives: Sequence[Objective]) -> optuna.Study:
    """The study of that name, made if need be."""
    there = name in optuna.get_all_study_names(storage)
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        directions=[objective.direction for objective in objectives],
        load_if_exists=True,
    )
    if not there:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*set_metric_names", ExperimentalWarning)
            study.set_metric_names([objective.metric for objective in objectives])
    return study


def repair_journal(directory: Path) -> int:
    """Cut a record off the journal's end that a kill left torn; how many bytes that were.

    Records are written in one piece each, so only the last can be torn. What it said is asked
    again. Only the coordinator may call this.
    """
    journal = directory / JOURNAL
    if not journal.is_file():
        return 0
    with journal.open("r+b") as file:
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        last = whole[whole.rfind(b"\n", 0, len(whole) - 1) + 1 :]
        if last and not _is_record(last):
            whole = whole[: len(whole) - len(last)]
        if len(whole) < len(content):
            file.truncate(len(whole))
    return len(content) - len(whole)


def without_password(url: str) -> str:
    """A storage URL that may be shown and written down.

    >>> without_password("postgresql+psycopg://me:secret@host/db")
    'postgresql+psycopg://me:***@host/db'
    """
    scheme, slashes, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{slashes}{user}{colon and HIDDEN}{at}{place}"


def _open_journal(journal: Path) -> BaseStorage:
    try:
        return JournalStorage(Journal(journal))
    except (ValueError, KeyError) as error:
        raise InputError(
            f"the journal is damaged ({_first_line(error)})",
            where=str(journal),
            remedy="restore it from a copy, or start anew with --out NEWDIR",
        ) from None


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
