"""A PostgreSQL server of its own on loopback, for tests that need a real one."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

PASSWORD = "s3cret/of:tests"
ENCODED = "s3cret%2Fof%3Atests"


def binaries() -> Path | None:
    """The folder of initdb and pg_ctl, which Debian keeps out of PATH, if there is one."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return versions[-1].parent if versions else None


class Server:
    """A server with one user and a password, which can be stopped and started again.

    PostgreSQL refuses to run as root, so root runs it as `postgres` or `nobody`.
    """

    def __init__(self, folder: Path) -> None:
        self._bin = folder
        self._home = Path(tempfile.mkdtemp(prefix="servefront-postgres-"))
        self._user = _other_user()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        secret = self._home / "password"
        secret.write_text(PASSWORD)
        if self._user is not None:
            for path in (self._home, secret):
                shutil.chown(path, self._user)
        options = ["--username=me", f"--pwfile={secret}", "--auth=scram-sha-256", "--no-sync"]
        self._call("initdb", "-D", str(self._data), *options)
        self.start()

    @property
    def url(self) -> str:
        """The URL of the storage, with the password."""
        return self.url_with(ENCODED)

    def url_with(self, password: str) -> str:
        """The URL with another password."""
        return f"postgresql+psycopg://me:{password}@127.0.0.1:{self._port}/postgres"

    @property
    def _data(self) -> Path:
        return self._home / "data"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = f"-c listen_addresses=127.0.0.1 -p {self._port} -k {self._home} -F"
        log = str(self._home / "log")
        self._call("pg_ctl", "start", "-w", "-D", str(self._data), "-l", log, "-o", settings)

    def stop(self) -> None:
        """End it as a crash would, with all its connections."""
        self._call("pg_ctl", "stop", "-D", str(self._data), "-m", "immediate")

    def remove(self) -> None:
        """Stop the server and delete what it kept."""
        self.stop()
        shutil.rmtree(self._home)

    def _call(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._bin / program), *arguments],
            check=True,
            user=self._user,
            cwd=self._home,
            stdout=subprocess.DEVNULL,
            timeout=120,
        )


def _other_user() -> str | None:
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
