# SPDX-License-Identifier: Apache-2.0
"""The tables of the services, which take a minute to make: made once, and kept as SQL.

A dump belongs to the environment with which it was made: another environment has another directory.
"""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Mapping

import sqlalchemy as sa

from tests.servers import machine

TIMEOUT_SECONDS = 120.0
CELLS = "UPDATE cell_mappings SET database_connection = :url, transport_url = :bus WHERE name = :name"


def keep(databases: Mapping[str, str], directory: pathlib.Path) -> None:
    """Write ``NAME.sql`` for each of {name: URL}; the directory appears when all files are complete."""
    half = directory.with_suffix(".half")
    half.mkdir(parents=True, exist_ok=True)
    for name, url in databases.items():
        command = [machine.find("mariadb-dump"), "--no-defaults", *_login(url)]
        with (half / f"{name}.sql").open("wb") as out:
            subprocess.run(command, check=True, stdout=out, env=_environ(url), timeout=TIMEOUT_SECONDS)
    half.rename(directory)


def restore(databases: Mapping[str, str], directory: pathlib.Path) -> bool:
    """Load the files, concurrently. Returns False if there are none."""
    if not directory.exists():
        return False
    running = []
    for name, url in databases.items():
        command = [machine.find("mariadb"), "--no-defaults", *_login(url)]
        with (directory / f"{name}.sql").open("rb") as text:
            running.append(subprocess.Popen(command, stdin=text, env=_environ(url)))
    statuses = [process.wait(TIMEOUT_SECONDS) for process in running]
    assert not any(statuses), statuses
    return True


def point_cells(api: str, cells: Mapping[str, str], bus: str) -> None:
    """Set Nova's cells to these databases ({name: URL}), on this message bus; cell0 has none."""
    with sa.create_engine(api, poolclass=sa.NullPool).begin() as connection:
        for name, url in cells.items():
            values = {"url": url, "bus": "none:///" if name == "cell0" else bus, "name": name}
            connection.execute(sa.text(CELLS), values)


def _login(url: str) -> list[str]:
    where = sa.make_url(url)
    return [f"--host={where.host}", f"--port={where.port}", f"--user={where.username}", str(where.database)]


def _environ(url: str) -> dict[str, str]:
    return {"MYSQL_PWD": str(sa.make_url(url).password), "PATH": machine.search_path()}
