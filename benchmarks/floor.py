# SPDX-License-Identifier: Apache-2.0
"""The lower bound: the bare driver with the minimal SQL for a reserve and a commit, on our schema and indexes.

This takes four statements and two COMMITs. It is not a quota system: it checks no state, handles no error and no clock
skew, and retries nothing. It measures the cost of the database and the driver. The same holds for maintenance: a batch
of expiry takes three statements, a batch of purge two.
"""

from __future__ import annotations

import collections
import random
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from benchmarks.harness import Cycle, Worker

_NOW = {
    "mysql": "UTC_TIMESTAMP(6)",
    "postgresql": "(statement_timestamp() AT TIME ZONE 'UTC')",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now')",
}
_DAY = {"mysql": "INTERVAL 86400000000 MICROSECOND", "postgresql": "INTERVAL '1 day'"}


def connect(url: str) -> Any:
    """Return a DBAPI connection at READ COMMITTED."""
    parts = sa.make_url(url)
    if parts.get_backend_name() == "sqlite":
        file = sqlite3.connect(str(parts.database))
        file.execute("PRAGMA synchronous = FULL")
        return file
    if parts.get_backend_name() == "postgresql":
        import psycopg2

        return psycopg2.connect(
            host=parts.host, port=parts.port, user=parts.username, password=parts.password, dbname=parts.database
        )
    import pymysql

    connection = pymysql.connect(
        host=parts.host,
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        database=parts.database,
    )
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    return connection


def worker(
    url: str, projects: dict[str, int], size: int = 1, ancestors: Mapping[str, Sequence[int]] | None = None
) -> Worker:
    """Return a worker that reserves and commits one gpu for each of ``size`` consumers.

    ``projects`` maps project IDs to usage IDs; each cycle picks one at random. With ``ancestors`` (the usage IDs of
    each project's ancestors), process n charges project n and its ancestors.
    """
    backend = "postgresql" if url.startswith("postgresql") else "mysql"
    now, day = _NOW[backend], _DAY[backend]
    row = f"({now}, false, %s, %s, %s, 'gpu', 1, {now} + {day}, 'reserved', %s, 'g', 1, 1)"
    insert = (
        "INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state,"
        f" consumer_id, group_id, live, claim_ordinal) VALUES {', '.join([row] * size)}"
    )
    charge = (
        f"UPDATE quota_usages SET reserved = reserved + %s, subtree = subtree + %s, updated_at = {now}"
        " WHERE id = %s AND used + reserved <= %s"
    )
    charge_ancestor = (
        f"UPDATE quota_usages SET subtree = subtree + %s, updated_at = {now} WHERE id = %s AND subtree <= %s"
    )
    settle = (
        f"UPDATE reservations SET state = 'committed', updated_at = {now}"
        f" WHERE uuid IN ({', '.join(['%s'] * size)}) AND state = 'reserved' AND expire > {now}"
    )
    count = f"UPDATE quota_usages SET reserved = reserved - %s, used = used + %s, updated_at = {now} WHERE id = %s"

    def start(number: int) -> Cycle:
        connection = connect(url)
        cursor = connection.cursor()
        rng = random.Random(number)
        names = sorted(projects)

        def cycle() -> None:
            project_id = names[rng.randrange(len(names)) if ancestors is None else number % len(names)]
            usage_id = projects[project_id]
            uuids = [str(uuid.uuid4()) for _ in range(size)]
            cursor.execute(insert, [value for name in uuids for value in (name, usage_id, project_id, name)])
            cursor.execute(charge, (size, size, usage_id, 10**9))
            assert cursor.rowcount == 1
            for ancestor_id in () if ancestors is None else ancestors[project_id]:
                cursor.execute(charge_ancestor, (size, ancestor_id, 10**9))
                assert cursor.rowcount == 1
            connection.commit()
            cursor.execute(settle, uuids)
            assert cursor.rowcount == size
            cursor.execute(count, (size, size, usage_id))
            connection.commit()

        return cycle

    return start


def expire(url: str, max_rows: int, batch_rows: int) -> int:
    """Expire about ``max_rows`` overdue reservations of any project; returns their number."""
    backend = sa.make_url(url).get_backend_name()
    now = _NOW[backend]
    query = (
        f"SELECT id, usage_id, delta FROM reservations WHERE state = 'reserved' AND expire <= {now}"
        f" ORDER BY expire, id LIMIT {batch_rows}"
    )

    def expire_rows(cursor: Any, rows: Sequence[Any]) -> None:
        cursor.execute(
            f"UPDATE reservations SET state = 'expired', updated_at = {now}, deleted_at = {now}, deleted = true,"
            f" live = NULL, claim_ordinal = NULL WHERE id IN ({_numbers(row[0] for row in rows)})"
        )
        sums: collections.Counter[int] = collections.Counter()
        for _, usage_id, delta in rows:
            sums[usage_id] += delta
        cursor.execute(_DISCOUNT[backend].format(now=now, sums=_sums(sums), ids=_numbers(sums)))

    return _in_batches(url, max_rows, query, expire_rows)


def purge(url: str, max_rows: int, batch_rows: int) -> int:
    """Delete about ``max_rows`` ended reservations; returns their number."""
    query = f"SELECT id FROM reservations WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT {batch_rows}"

    def delete_rows(cursor: Any, rows: Sequence[Any]) -> None:
        cursor.execute(f"DELETE FROM reservations WHERE id IN ({_numbers(row[0] for row in rows)})")

    return _in_batches(url, max_rows, query, delete_rows)


def _in_batches(url: str, max_rows: int, query: str, act: Callable[[Any, Sequence[Any]], None]) -> int:
    """Apply ``act`` to the rows of the query, in one transaction per batch; returns the number of rows."""
    connection = connect(url)
    cursor = connection.cursor()
    done = 0
    while done < max_rows:
        cursor.execute(query)
        rows = cursor.fetchall()
        if not rows:
            break
        act(cursor, rows)
        connection.commit()
        done += len(rows)
    connection.close()
    return done


_DISCOUNT = {
    "mysql": "UPDATE quota_usages AS q, ({sums}) AS d SET q.reserved = q.reserved - d.delta,"
    " q.subtree = q.subtree - d.delta, q.updated_at = {now} WHERE q.id = d.id",
    "postgresql": "UPDATE quota_usages AS q SET reserved = q.reserved - d.delta, subtree = q.subtree - d.delta,"
    " updated_at = {now} FROM ({sums}) AS d WHERE q.id = d.id AND q.id IN ({ids})",
    "sqlite": "UPDATE quota_usages AS q SET reserved = q.reserved - d.delta, subtree = q.subtree - d.delta,"
    " updated_at = {now} FROM ({sums}) AS d WHERE q.id = d.id",
}


def _sums(sums: dict[int, int]) -> str:
    (first, delta), *rest = sorted(sums.items())
    values = ", ".join(f"({usage_id}, {delta})" for usage_id, delta in rest)
    return f"SELECT {first} AS id, {delta} AS delta" + (f" UNION ALL VALUES {values}" if rest else "")


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
