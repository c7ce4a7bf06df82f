# SPDX-License-Identifier: Apache-2.0
"""The tables of the services, which take a minute to make: made once, and kept as SQL.

A dump belongs to the environment with which it was made: another environment has another directory.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from tests.faults import backups

CELLS = "UPDATE cell_mappings SET database_connection = :url, transport_url = :bus WHERE name = :name"


def keep(databases: Mapping[str, str], directory: pathlib.Path) -> None:
    """Write ``NAME.sql`` for each of {name: URL}; the directory appears when all files are complete."""
    half = directory.with_suffix(".half")
    half.mkdir(parents=True, exist_ok=True)
    for name, url in databases.items():
        backups.dump(url, half / f"{name}.sql")
    half.rename(directory)


def restore(databases: Mapping[str, str], directory: pathlib.Path) -> bool:
    """Load the files, concurrently. Returns False if there are none."""
    if not directory.exists():
        return False
    with ThreadPoolExecutor(len(databases)) as pool:
        list(pool.map(lambda name: backups.load(databases[name], directory / f"{name}.sql"), databases))
    return True


def point_cells(api: str, cells: Mapping[str, str], bus: str) -> None:
    """Set Nova's cells to these databases ({name: URL}), on this message bus; cell0 has none."""
    with sa.create_engine(api, poolclass=sa.NullPool).begin() as connection:
        for name, url in cells.items():
            values = {"url": url, "bus": "none:///" if name == "cell0" else bus, "name": name}
            connection.execute(sa.text(CELLS), values)
