"""Where a study is kept: a journal file in its directory, or a database shared by URL."""

from __future__ import annotations

import json
import math
import os
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial
from sqlalchemy.exc import OperationalError

from objectives.goals import Objective
from spaces.errors import InputError, StorageUnavailable

JOURNAL = "study.journal"
HIDDEN = "***"
FORCE_EVERY_S = 1.0
SQLITE_PATIENCE_S = 60
CONNECT_S = 10
# A server that answers so will say the same next time.
REFUSED = re.compile("authentication failed|does not exist|no password supplied|no pg_hba.conf")


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


class AnswerLost(Exception):
    """A trial may or may not have been made: the database failed before it said so."""


class Database(RDBStorage):
    """A database in which nobody else asks for trials of our study.

    Optuna makes a trial again when the answer of the database was lost, and then there may be two.
    Here it is told instead, so that the search finds out what is there, as after a kill.
    """

    def _create_new_trial(self, *arguments: Any, **options: Any) -> FrozenTrial:
        self._made = False
        return super()._create_new_trial(*arguments, **options)

    def _get_prepared_new_trial(self, *arguments: Any, **options: Any) -> Any:
        if self._made:
            raise AnswerLost("the answer to a new trial was lost")
        self._made = True
        return super()._get_prepared_new_trial(*arguments, **options)


def open_storage(directory: Path, url: str | None) -> BaseStorage:
    """The storage behind `url`, or the journal of the directory, which is made if need be.

    A wrong URL is told as an `InputError`; as `StorageUnavailable` where it is right as far as
    can be told from here, but nobody answers.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url is None:
        return _open_journal(directory / JOURNAL)
    if re.fullmatch(r"sqlite[^:]*:/*(.*:memory:)?", url):
        raise InputError(
            "a study must outlive the process",
            key="--storage",
            value=url,
            remedy="name a file, for example sqlite:///study.db",
        )
    try:
        return _CachedStorage(Database(url, engine_kwargs=engine_options(url)))
    except StorageInternalError as error:
        raise unavailable(url, error.__cause__ or error) from None
    except OperationalError as error:
        if url.startswith("sqlite") or REFUSED.search(str(error)):
            raise _not_opened(url, error) from None
        raise unavailable(url, error) from None
    except Exception as error:  # the drivers of the databases raise what they like
        raise _not_opened(url, error) from None


@contextmanager
def opened_storage(directory: Path, url: str | None) -> Iterator[BaseStorage]:
    """Like `open_storage`, and the connections are closed at the end."""
    storage = open_storage(directory, url)
    try:
        yield storage
    finally:
        if isinstance(storage, _CachedStorage):  # around a database; Optuna has no other way in
            storage._backend.engine.dispose()


def unavailable(url: str, error: BaseException) -> StorageUnavailable:
    """The error of a database that does not answer; the password is not in it."""
    return StorageUnavailable(_reason(url, error), without_password(url))


def engine_options(url: str) -> dict[str, Any]:
    """How SQLAlchemy connects: a connection that a restart of the server broke is replaced."""
    if url.startswith("sqlite"):
        return {"connect_args": {"timeout": SQLITE_PATIENCE_S}}
    quick = {"connect_args": {"connect_timeout": CONNECT_S}} if "psycopg" in url else {}
    return {"pool_pre_ping": True, **quick}


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


def anchored(url: str) -> str:
    """A storage URL that means the same in every working directory.

    >>> anchored("sqlite:////var/study.db"), anchored("postgresql://host/db")
    ('sqlite:////var/study.db', 'postgresql://host/db')
    """
    scheme, mark, path = url.partition(":///")
    if not scheme.startswith("sqlite") or not mark:
        return url
    return f"{scheme}:///{Path(path).absolute()}"


def without_password(url: str) -> str:
    """A storage URL that may be shown and written down.

    >>> without_password("postgresql+psycopg://me:secret@host/db?sslpassword=secret")
    'postgresql+psycopg://me:***@host/db?sslpassword=***'
    """
    scheme, slashes, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    shown = f"{scheme}{slashes}{user}{colon and ':' + HIDDEN}{at}{place}"
    return re.sub(r"(?i)([?&][^=&]*(?:password|passwd|pwd)=)[^&]*", rf"\1{HIDDEN}", shown)


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


def _not_opened(url: str, error: Exception) -> InputError:
    missing = isinstance(error, ImportError) and url.startswith("postgresql")
    return InputError(
        f"the storage cannot be opened ({_reason(url, error)})",
        key="--storage",
        value=without_password(url),
        remedy="pip install 'servefront[postgres]'"
        if missing
        else "give an Optuna storage URL, for example postgresql+psycopg://user@host/db",
    )


def _reason(url: str, error: BaseException) -> str:
    """What a driver says, though never the URL it was given."""
    return _first_line(error).replace(url, without_password(url))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
