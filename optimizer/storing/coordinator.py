"""One coordinator at a time: a lock on a directory, a lease on a study in a shared storage.

Two coordinators of one study would tell each other's trials. The lock is the system's and ends
with the process. The lease is a row beside Optuna's tables that its holder renews; nobody's clock
is compared with another's: who finds a lease watches whether it is renewed.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from optimizer.storing.storage import engine_options, unavailable
from spaces.errors import InputError

LOCK = ".lock"
LEASE_S = 30.0  # a lease that is not renewed for so long is given up
RENEW_S = 5.0
LOOK_S = 0.5

_held: set[str] = set()  # tokens of this process

_leases = Table(
    "servefront_leases",
    MetaData(),
    Column("study", String(512), primary_key=True),
    Column("token", String(32), nullable=False),
    Column("renewals", Integer, nullable=False),
    Column("host", String(255), nullable=False),
    Column("process", Integer, nullable=False),
    Column("kernel", String(255), nullable=False),
)


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


@contextmanager
def leading(
    url: str | None, study: str, note: Callable[[str], None], cancelled: Callable[[], object]
) -> Iterator[Callable[[], str]]:
    """Be the only coordinator of a study in a shared storage, and ask whether one still is.

    Gives a function that says who took the study over, or nothing. A study without a URL is in
    its directory, whose lock is enough. Raises `InputError` when another coordinates it,
    `KeyboardInterrupt` when cancelled.
    """
    if url is None:
        yield lambda: ""
        return
    lease = Lease(url, study)
    try:
        try:
            if not lease.take(note, cancelled):
                raise KeyboardInterrupt
        except SQLAlchemyError as error:
            raise unavailable(url, error) from None
        yield lease.lost
    finally:
        lease.release()


class Lease:
    """The right to coordinate a study of a shared storage, renewed by a thread while it is held.

    `take` and `release` it; `lost` says who has it now when this process was out for so long
    that another took it over.
    """

    def __init__(self, url: str, study: str) -> None:
        self._engine = create_engine(url, **engine_options(url))
        self._study = study
        self._token = uuid.uuid4().hex
        self._renewed_s = 0.0
        self._lost = ""
        self._renewing = threading.Lock()
        self._ended = threading.Event()

    def take(self, note: Callable[[str], None], cancelled: Callable[[], object]) -> bool:
        """Take the lease, from a coordinator that is gone if need be; False when cancelled.

        A holder known to be dead is succeeded at once, another one after `LEASE_S` without a
        renewal. Raises `InputError` when the holder renews it.
        """
        _leases.metadata.create_all(self._engine)
        _held.add(self._token)
        watched, until_s = None, 0.0
        while not cancelled():
            found = self._row()
            if found is None:
                taken = self._insert()
            elif watched is not None and _state(found) != watched:
                raise self._refusal(found)
            elif _is_dead(found) or (watched is not None and time.monotonic() >= until_s):
                taken = self._succeed(found)
            else:
                taken = False
                if watched is None:
                    watched, until_s = _state(found), time.monotonic() + LEASE_S
                    note(
                        f"{_holder(found)} coordinates this study or died doing so; "
                        f"watching for up to {LEASE_S:.0f} s which it is"
                    )
            if taken:
                threading.Thread(target=self._keep, name="lease", daemon=True).start()
                return True
            self._ended.wait(LOOK_S)
        return False

    def lost(self) -> str:
        """Empty while the lease is held; renews it if that is overdue.

        While the storage does not answer the lease counts as held: nothing can be told either.
        """
        if time.monotonic() - self._renewed_s > LEASE_S / 2:
            self._renew()
        return self._lost

    def release(self) -> None:
        """Give the lease back, so that the next coordinator need not wait."""
        self._ended.set()
        _held.discard(self._token)
        mine = (_leases.c.study == self._study) & (_leases.c.token == self._token)
        try:
            with self._engine.begin() as connection:
                connection.execute(_leases.delete().where(mine))
        except SQLAlchemyError:
            pass  # it will be found without renewals
        finally:
            self._engine.dispose()

    def _keep(self) -> None:
        while not self._lost and not self._ended.wait(RENEW_S):
            self._renew()

    def _renew(self) -> None:
        mine = (_leases.c.study == self._study) & (_leases.c.token == self._token)
        change = _leases.update().where(mine).values(renewals=_leases.c.renewals + 1)
        with self._renewing:
            try:
                if self._changes(change):
                    self._renewed_s = time.monotonic()
                elif not self._ended.is_set():
                    found = self._row()
                    self._lost = _holder(found) if found is not None else "somebody"
            except SQLAlchemyError:
                return  # asked again before anything is told

    def _row(self) -> Any:
        with self._engine.begin() as connection:
            query = _leases.select().where(_leases.c.study == self._study)
            return connection.execute(query).one_or_none()

    def _insert(self) -> bool:
        try:
            return self._changes(_leases.insert().values(study=self._study, **self._entry()))
        except IntegrityError:  # another was quicker
            return False

    def _succeed(self, found: Any) -> bool:
        """Replace a lease, unless it was renewed or replaced since it was read."""
        same = (
            (_leases.c.study == self._study)
            & (_leases.c.token == found.token)
            & (_leases.c.renewals == found.renewals)
        )
        return self._changes(_leases.update().where(same).values(**self._entry()))

    def _entry(self) -> dict[str, object]:
        host = socket.gethostname()
        return {
            "token": self._token,
            "renewals": 0,
            "host": host,
            "process": os.getpid(),
            "kernel": _kernel(),
        }

    def _changes(self, statement: Any) -> bool:
        """Whether the statement changed a row; the lease is fresh from before it was sent."""
        asked_s = time.monotonic()
        with self._engine.begin() as connection:
            changed = bool(connection.execute(statement).rowcount)
        if changed:
            self._renewed_s = asked_s
        return changed

    def _refusal(self, found: Any) -> InputError:
        return InputError(
            f"another servefront coordinates this study: {_holder(found)}",
            where=f"study {self._study}",
            remedy="wait for it or stop it, or choose another directory with --out",
        )


def _state(found: Any) -> tuple[str, int]:
    return found.token, found.renewals


def _holder(found: Any) -> str:
    return f"process {found.process} on {found.host}"


def _is_dead(found: Any) -> bool:
    """Whether the holder surely is: it was a process of this kernel, and there is none by its id.

    A holder by the id of this process that is not this process had the id before.
    """
    if not found.kernel or found.kernel != _kernel():
        return False
    if found.process == os.getpid():
        return found.token not in _held
    try:
        os.kill(found.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _kernel() -> str:
    """What process ids are unique in: a boot of a machine and a namespace; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
