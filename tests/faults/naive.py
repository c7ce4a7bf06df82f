# SPDX-License-Identifier: Apache-2.0
"""Deliberately wrong implementations: the check of each fault test must detect them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

from tests.faults.journal import ASK, OK, Journal

_INSERT = sa.text(
    "INSERT INTO reservations (uuid, usage_id, project_id, resource, delta, state, deleted, live, group_id)"
    " VALUES (:uuid, :usage_id, :project, 'gpu', 1, 'reserved', :no, 1, :group)"
)
_CHARGE = sa.text("UPDATE quota_usages SET reserved = reserved + 1, subtree = subtree + 1 WHERE id = :id")


class NaiveLedger:
    """Charges one gpu with SQL. Each method has a different error."""

    def __init__(self, url: str, project_id: str, journal: Journal) -> None:
        level = "SERIALIZABLE" if url.startswith("sqlite") else "READ COMMITTED"  # SQLite has no other
        self._sql = sa.create_engine(url, isolation_level=level, pool_size=1)
        self._journal = journal
        self._project_id = project_id
        with self._sql.connect() as connection:
            found = connection.execute(
                sa.text("SELECT id FROM quota_usages WHERE project_id = :p AND resource = 'gpu'"), {"p": project_id}
            )
            self._usage_id = found.scalar_one()

    def reserve_again_with_new_uuid(self) -> None:
        """Repeat the transaction after a broken connection with a new UUID: it is charged twice."""
        with self._recorded() as request:
            for _ in range(2):
                with contextlib.suppress(sa.exc.DBAPIError), self._sql.begin() as connection:
                    self._insert(connection, request)
                    connection.execute(_CHARGE, {"id": self._usage_id})
                    connection.commit()
                    break

    def reserve_in_two_transactions(self, between: Callable[[], None]) -> None:
        """Insert the row in one transaction, and change the counter in the next: a crash between them leaves half."""
        with self._recorded() as request:
            with self._sql.begin() as connection:
                self._insert(connection, request)
            between()
            with self._sql.begin() as connection:
                connection.execute(_CHARGE, {"id": self._usage_id})

    def _insert(self, connection: sa.Connection, request: str) -> None:
        values: dict[str, Any] = {"uuid": str(uuid.uuid4()), "usage_id": self._usage_id, "project": self._project_id}
        connection.execute(_INSERT, {**values, "no": False, "group": request})

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[str]:
        request = f"naive-{uuid.uuid4()}"
        self._journal.write(ASK, "reserve", request, self._project_id, 1)
        yield request
        self._journal.write(OK, "reserve", request, self._project_id, 1)
