# SPDX-License-Identifier: Apache-2.0
"""A recorded client: the statements of the release before revision b2e0.

It represents the conductors that still run the old release during an upgrade. These are the statements that the old
release sent for a reserve, a commit, a rollback and a first use, in its order and with its columns: it knew neither the
column ``told`` nor the tables of limits. Do not bring them up to date.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from tests.faults.journal import ASK, OK, Journal

PAUSE_SECONDS = 0.005
"""Between two requests."""

_FIRST_PROJECT = "INSERT INTO projects (project_id, parent_id, generation) VALUES (:project, NULL, 0)"
_FIRST_USAGE = (
    "INSERT INTO quota_usages (project_id, resource, reserved, used, subtree, generation)"
    " VALUES (:project, 'gpu', 0, 0, 0, 0)"
)
_INSERT = (
    "INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state,"
    " consumer_id, group_id, live, place) VALUES (CURRENT_TIMESTAMP, :no, :uuid, :usage_id, :project, 'gpu', 1,"
    " '2099-01-01 00:00:00', 'reserved', :consumer, :request, 1, 1)"
)
_CHARGE = (
    "UPDATE quota_usages SET reserved = reserved + :reserved, used = used + :used, subtree = subtree + :subtree"
    " WHERE id = :usage_id AND generation = :generation AND used + reserved <= :room AND used >= :least_used"
    " AND reserved >= :least_reserved"
)
_COMMIT = "UPDATE reservations SET state = 'committed' WHERE uuid = :uuid AND state = 'reserved'"
_ROLLBACK = (
    "UPDATE reservations SET state = 'rolled_back', deleted = :yes, live = NULL, place = NULL,"
    " deleted_at = CURRENT_TIMESTAMP WHERE uuid = :uuid AND state = 'reserved'"
)
_EXPIRE = _ROLLBACK.replace("'rolled_back'", "'expired'")
_AGAIN = ("deadlock", "lock wait", "lost connection", "locked", "changed", "1412", "1020", "canceling", "prepared")
"""An error that the old release retried: the table was altered during a statement."""


class OldRelease:
    """Reserves one gpu of a project, and settles it."""

    def __init__(self, url: str, journal: Journal, limit: int) -> None:
        options: dict[str, Any] = {"connect_args": {"timeout": 30}} if url.startswith("sqlite") else {}
        if not url.startswith("sqlite"):
            options["isolation_level"] = "READ COMMITTED"
        self._sql = sa.create_engine(url, pool_size=1, **options)
        if url.startswith("sqlite"):
            sa.event.listen(self._sql, "connect", lambda one, _: setattr(one, "isolation_level", None))
            sa.event.listen(self._sql, "begin", lambda one: one.exec_driver_sql("BEGIN IMMEDIATE"))
        self._journal = journal
        self._limit = limit

    def work(self, project_id: str, rng: random.Random, is_over: Callable[[], bool]) -> None:
        """Reserve and settle, until ``is_over()``."""
        usage_id, generation = self._first_use(project_id)
        while not is_over():
            time.sleep(rng.uniform(0, 2 * PAUSE_SECONDS))
            request = f"old-{uuid.uuid4()}"
            facts: dict[str, Any] = {"project": project_id, "uuid": str(uuid.uuid4()), "request": request}
            facts |= {"usage_id": usage_id, "generation": generation}
            if self._call("reserve", request, project_id, lambda: self._reserve(facts)):  # noqa: B023
                call = rng.choice(["commit", "rollback", "rollback"])
                self._call(call, request, project_id, lambda: self._settle(facts, call))  # noqa: B023

    def _call(self, call: str, request: str, project_id: str, act: Callable[[], bool]) -> bool:
        self._journal.write(ASK, call, request, project_id, 1)
        for _ in range(200):
            try:
                is_done = act()
                break
            except sa.exc.DBAPIError as error:
                if not any(word in str(error).lower() for word in _AGAIN):
                    self._journal.write(type(error).__name__, call, request, project_id, 1, detail=str(error)[:200])
                    return False
                time.sleep(0.01)
        else:
            self._journal.write("DatabaseUnavailable", call, request, project_id, 1)
            return False
        self._journal.write(OK if is_done else "OverQuota", call, request, project_id, 1)
        return is_done

    def _first_use(self, project_id: str) -> tuple[int, int]:
        for statement in (_FIRST_PROJECT, _FIRST_USAGE):
            try:
                with self._sql.begin() as connection:
                    connection.execute(sa.text(statement), {"project": project_id})
            except sa.exc.IntegrityError:
                pass  # another process created it first
        with self._sql.begin() as connection:
            query = sa.text("SELECT id, generation FROM quota_usages WHERE project_id = :project AND resource = 'gpu'")
            row = connection.execute(query, {"project": project_id}).one()
            return int(row.id), int(row.generation)

    def _reserve(self, facts: dict[str, Any]) -> bool:
        with self._sql.connect() as connection, connection.begin() as transaction:
            if connection.execute(
                sa.text("SELECT 1 FROM reservations WHERE uuid = :uuid"), {"uuid": facts["uuid"]}
            ).first():
                return True  # the answer to the previous attempt was lost
            connection.execute(sa.text(_INSERT), {**facts, "no": False, "consumer": facts["request"]})
            if self._charge(connection, facts, reserved=1, used=0):
                return True
            transaction.rollback()
            return False

    def _settle(self, facts: dict[str, Any], call: str) -> bool:
        with self._sql.begin() as connection:
            statement, used = {"commit": (_COMMIT, 1), "rollback": (_ROLLBACK, 0), "expire": (_EXPIRE, 0)}[call]
            parameters = {"uuid": facts["uuid"], **({} if used else {"yes": True})}
            if connection.execute(sa.text(statement), parameters).rowcount:
                assert self._charge(connection, facts, reserved=-1, used=used)
            return True

    def _charge(self, connection: sa.Connection, facts: dict[str, Any], *, reserved: int, used: int) -> bool:
        growth = reserved + used
        parameters = {
            "usage_id": facts["usage_id"],
            "generation": facts["generation"],
            "reserved": reserved,
            "used": used,
            "subtree": growth,
            "room": self._limit - growth if growth > 0 else 2**31 - 1,
            "least_used": max(0, -used),
            "least_reserved": max(0, -reserved),
        }
        return connection.execute(sa.text(_CHARGE), parameters).rowcount == 1


_ROWS = "SELECT id, resource, reserved, used FROM quota_usages WHERE project_id = :project ORDER BY resource"
_SUMS = (
    "SELECT COALESCE(SUM(CASE WHEN state = 'reserved' AND delta > 0 THEN delta END), 0) AS reserved,"
    " COALESCE(SUM(CASE WHEN state = 'committed' THEN delta END), 0) AS used"
    " FROM reservations WHERE usage_id = :id AND state IN ('reserved', 'committed')"
)
_SET_COUNTERS = "UPDATE quota_usages SET reserved = :reserved, used = :used, subtree = :subtree WHERE id = :id"


def heal(sql: sa.Engine, project_id: str) -> list[str]:
    """``usage heal`` of the release before limits per pod. Returns the resources that it (and ``usage audit``) reports.

    The project has no children. To this release, a scoped name is a resource of which nothing is reserved.
    """
    healed = []
    with sql.begin() as connection:
        for row in connection.execute(sa.text(_ROWS), {"project": project_id}).all():
            sums = connection.execute(sa.text(_SUMS), {"id": row.id}).one()
            reserved, used = int(sums.reserved), int(sums.used)
            if (reserved, used) != (row.reserved, row.used):
                values = {"id": row.id, "reserved": reserved, "used": used, "subtree": reserved + used}
                connection.execute(sa.text(_SET_COUNTERS), values)
                healed.append(str(row.resource))
    return healed
