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


class Backup:
    """Makes a backup of the database of ``url`` at once; it can be restored any number of times."""

    def __init__(self, url: str, path: pathlib.Path) -> None:
        self._url = sa.make_url(url)
        self._path = path
        if self._is_sqlite:
            _copy_sqlite(self._database, str(path))
            return
        with path.open("wb") as file:
            self._run(0, "--single-transaction" if self._is_mysql else "--no-owner", stdout=file)

    def restore(self) -> None:
        """Restore the database to the state of the backup; connections to it are closed."""
        if self._is_sqlite:
            _copy_sqlite(str(self._path), self._database)
            return
        backend = "mariadb" if self._is_mysql else "postgresql"
        fixtures._run_admin(backend, f"DROP DATABASE {self._database}{'' if self._is_mysql else ' WITH (FORCE)'}")
        fixtures._run_admin(backend, f"CREATE DATABASE {self._database}")
        with self._path.open("rb") as file:
            self._run(1, *(() if self._is_mysql else ("--quiet", "--set=ON_ERROR_STOP=1")), stdin=file)

    @property
    def _is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    @property
    def _is_mysql(self) -> bool:
        return self._url.get_backend_name() == "mysql"

    @property
    def _database(self) -> str:
        return str(self._url.database)

    def _run(self, which: int, *arguments: str, **files: object) -> None:
        url = self._url
        program = machine.find(PROGRAMS["mariadb" if self._is_mysql else "postgresql"][which])
        user = f"--user={url.username}" if self._is_mysql else f"--username={url.username}"
        command = [program, f"--host={url.host}", f"--port={url.port}", user, *arguments, self._database]
        password = {"MYSQL_PWD" if self._is_mysql else "PGPASSWORD": str(url.password)}
        subprocess.run(
            command,
            env={**os.environ, **password},
            check=True,
            stderr=subprocess.PIPE,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **files},  # type: ignore[call-overload]
        )


def _copy_sqlite(source: str, target: str) -> None:
    with sqlite3.connect(source) as from_file, sqlite3.connect(target) as to_file:
        from_file.backup(to_file)
