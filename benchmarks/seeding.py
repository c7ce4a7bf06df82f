# SPDX-License-Identifier: Apache-2.0
"""Makes large ledgers with SQL in the database. The audit of such a ledger finds no difference."""

from __future__ import annotations

import sqlalchemy as sa

from benchmarks import disk
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import fixtures

_NUMBERS = {
    "mysql": "SELECT seq AS n FROM seq_{first}_to_{last}",
    "postgresql": "SELECT n FROM generate_series({first}, {last}) AS n",
    "sqlite": "WITH RECURSIVE numbers(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
    " SELECT n FROM numbers",
}
_UUID = {
    "mysql": "CONCAT('{prefix}-', LPAD(HEX(n), 12, '0'), '-', LPAD(n, 12, '0'))",
    "postgresql": "'{prefix}-' || lpad(to_hex(n), 12, '0') || '-' || lpad(n::text, 12, '0')",
    "sqlite": "printf('{prefix}-%012x-%012d', n, n)",
}
_NAME = {"mysql": "CONCAT('p', {0})", "postgresql": "'p' || ({0})", "sqlite": "'p' || ({0})"}
_OVERDUE = {
    "mysql": "TIMESTAMP('2001-01-01 00:00:00') + INTERVAL n MICROSECOND",
    "postgresql": "TIMESTAMP '2001-01-01 00:00:00' + n * INTERVAL '1 microsecond'",
    "sqlite": "printf('2001-01-01 00:00:%02d.%06d', n / 1000000, n % 1000000)",
}
_PIECE = 100_000
"""The number of rows of one statement."""


class Seeded:
    """A new database with ``projects`` usage rows of gpu, for the projects p0, p1, ..."""

    def __init__(self, backend: str, name: str, projects: int) -> None:
        self.url = disk.fresh_url(backend, name)
        schema.sync(Database(fixtures.settings(self.url)))
        # (The statements contain percent signs.)
        self._sql = sa.create_engine(self.url, poolclass=sa.NullPool, execution_options={"no_parameters": True})
        self._dialect = self._sql.dialect.name
        self.projects = projects
        for first, last in _pieces(projects):
            self.execute(
                "INSERT INTO projects (project_id, generation)"
                f" SELECT {self._name('n - 1')}, 0 FROM ({self._numbers(first, last)}) AS numbers"
            )
            self.execute(
                "INSERT INTO quota_usages (project_id, resource, pod, reserved, used, subtree, generation)"
                f" SELECT {self._name('n - 1')}, 'gpu', '', 0, 0, 0, 0 FROM ({self._numbers(first, last)}) AS numbers"
            )
        self.analyze()

    def execute(self, statement: str) -> None:
        """Run a SQL statement."""
        with self._sql.begin() as connection:
            connection.exec_driver_sql(statement)

    def scalar(self, statement: str) -> int:
        """Run a query, and return its single integer."""
        with self._sql.connect() as connection:
            return int(connection.exec_driver_sql(statement).scalar_one())

    def ids(self, projects: list[str]) -> dict[str, int]:
        """Return the usage IDs of these projects."""
        names = ", ".join(f"'{name}'" for name in projects)
        with self._sql.connect() as connection:
            query = f"SELECT project_id, id FROM quota_usages WHERE project_id IN ({names})"
            return {row.project_id: row.id for row in connection.exec_driver_sql(query)}

    def add_overdue(self, count: int, spread: int) -> None:
        """Add ``count`` overdue reservations of the first ``spread`` projects, and update the counters."""
        self._add(count, spread, "reserved")
        each, more = divmod(count, spread)
        for number, amount in ((spread, each), (more, 1)):
            self.execute(
                f"UPDATE quota_usages SET reserved = reserved + {amount}, subtree = subtree + {amount}"
                f" WHERE id <= (SELECT most FROM (SELECT MIN(id) + {number} - 1 AS most FROM quota_usages) AS first)"
            )
        self.analyze()

    def add_settled(self, count: int, spread: int) -> None:
        """Add ``count`` reservations that were rolled back."""
        self._add(count, spread, "rolled_back")
        self.analyze()

    def _add(self, count: int, spread: int, state: str) -> None:
        first_id = self.scalar("SELECT MIN(id) FROM quota_usages")
        prefix = "e" if state == "reserved" else "s"
        uuid = _UUID[self._dialect].format(prefix=prefix)
        moment = _OVERDUE[self._dialect]
        is_open = state == "reserved"
        for first, last in _pieces(count):
            self.execute(
                "INSERT INTO reservations (created_at, updated_at, deleted_at, deleted, uuid, usage_id, project_id,"
                " resource, delta, expire, state, consumer_id, group_id, live, claim_ordinal)"
                f" SELECT {moment}, {moment}, {'NULL' if is_open else moment},"
                f" {'false' if is_open else 'true'}, {uuid},"
                f" {first_id} + (n - 1) % {spread}, {self._name(f'(n - 1) % {spread}')}, 'gpu', 1, {moment},"
                f" '{state}', {uuid}, 'g', {'1, 1' if is_open else 'NULL, NULL'}"
                f" FROM ({self._numbers(first, last)}) AS numbers"
            )

    def analyze(self) -> None:
        """Update the planner's statistics, as autovacuum would on a grown database."""
        command = {"mysql": "ANALYZE TABLE reservations, quota_usages", "postgresql": "VACUUM ANALYZE"}
        sql = self._sql.execution_options(isolation_level="AUTOCOMMIT")
        with sql.connect() as connection:
            connection.exec_driver_sql(command.get(self._dialect, "ANALYZE"))

    def _numbers(self, first: int, last: int) -> str:
        return _NUMBERS[self._dialect].format(first=first, last=last)

    def _name(self, number: str) -> str:
        return _NAME[self._dialect].format(number)


def _pieces(count: int) -> list[tuple[int, int]]:
    return [(first, min(first + _PIECE - 1, count)) for first in range(1, count + 1, _PIECE)]
