# SPDX-License-Identifier: Apache-2.0
"""Backs up and restores a database with the commands that the operator guide names."""

from __future__ import annotations

import os
import pathlib
import shutil
import sqlite3
import subprocess

import sqlalchemy as sa

from tests import fixtures
from tests.servers import machine

PROGRAMS = {"sqlite": (), "mariadb": ("mariadb-dump", "mariadb"), "postgresql": ("pg_dump", "psql")}


def missing_program(backend: str) -> str | None:
    """Return the reason why no backup can be made here; None if one can be made."""
    for program in PROGRAMS[backend]:
        if shutil.which(program, path=machine.search_path()) is None:
            return f"no {program} (bindep.txt names the packages)"
    return None


def dump(url: str, path: pathlib.Path) -> None:
    """Write the database as SQL; not for SQLite."""
    with path.open("wb") as file:
        _run(url, 0, "--single-transaction" if _is_mysql(url) else "--no-owner", stdout=file)


def load(url: str, path: pathlib.Path) -> None:
    """Run the SQL on an empty database."""
    with path.open("rb") as file:
        _run(url, 1, *(() if _is_mysql(url) else ("--quiet", "--set=ON_ERROR_STOP=1")), stdin=file)


class Backup:
    """Makes a backup of the database of ``url`` at once; it can be restored any number of times."""

    def __init__(self, url: str, path: pathlib.Path) -> None:
        self._url = url
        self._backend = sa.make_url(url).get_backend_name()
        self._database = str(sa.make_url(url).database)
        self._path = path
        if self._backend == "sqlite":
            _copy_sqlite(self._database, str(path))
        else:
            dump(url, path)

    def restore(self) -> None:
        """Restore the database to the state of the backup; connections to it are closed."""
        if self._backend == "sqlite":
            _copy_sqlite(str(self._path), self._database)
            return
        backend, force = ("mariadb", "") if _is_mysql(self._url) else ("postgresql", " WITH (FORCE)")
        fixtures._run_admin(backend, f"DROP DATABASE {self._database}{force}")
        fixtures._run_admin(backend, f"CREATE DATABASE {self._database}")
        load(self._url, self._path)


def _is_mysql(url: str) -> bool:
    return sa.make_url(url).get_backend_name() == "mysql"


def _run(url: str, which: int, *arguments: str, **files: object) -> None:
    kind, user, variable = (
        ("mariadb", "user", "MYSQL_PWD") if _is_mysql(url) else ("postgresql", "username", "PGPASSWORD")
    )
    where = sa.make_url(url)
    first = ["--no-defaults"] if _is_mysql(url) else []
    command = [machine.find(PROGRAMS[kind][which]), *first, f"--host={where.host}", f"--port={where.port}"]
    subprocess.run(
        [*command, f"--{user}={where.username}", *arguments, str(where.database)],
        env={**os.environ, variable: str(where.password)},
        check=True,
        stderr=subprocess.PIPE,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **files},  # type: ignore[call-overload]
    )


def _copy_sqlite(source: str, target: str) -> None:
    with sqlite3.connect(source) as from_file, sqlite3.connect(target) as to_file:
        from_file.backup(to_file)
