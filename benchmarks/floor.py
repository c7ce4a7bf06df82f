# SPDX-License-Identifier: Apache-2.0
"""The bare driver doing the least SQL for a reserve and a commit, on our own schema, indexes and rows kept.

Four statements and two COMMITs. Nothing here is a quota system: no state is looked at, no error understood, no clock
skew or retry thought of. It is what the database and the driver cost, whatever is built on them. The same for upkeep:
a batch of expiry in three statements, a batch of purge in two.
"""

from __future__ import annotations

import collections
import random
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Sequence
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
    """A DBAPI connection at READ COMMITTED."""
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


def worker(url: str, projects: dict[str, int], size: int = 1) -> Worker:
    """Reserve and commit one gpu for each of ``size`` consumers of one of the projects ({project_id: usage id})."""
    backend = "postgresql" if url.startswith("postgresql") else "mysql"
    now, day = _NOW[backend], _DAY[backend]
    row = f"({now}, false, %s, %s, %s, 'gpu', 1, {now} + {day}, 'reserved', %s, 'g', 1, 1)"
    insert = (
        "INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state,"
        f" consumer_id, group_id, live, place) VALUES {', '.join([row] * size)}"
    )
    charge = (
        f"UPDATE quota_usages SET reserved = reserved + %s, subtree = subtree + %s, updated_at = {now}"
        " WHERE id = %s AND used + reserved <= %s"
    )
    settle = (
        f"UPDATE reservations SET state = 'committed', updated_at = {now}"
        f" WHERE uuid IN ({', '.join(['%s'] * size)}) AND state = 'reserved' AND expire > {now}"
    )
    count = f"UPDATE quota_usages SET reserved = reserved - %s, used = used + %s, updated_at = {now} WHERE id = %s"

    def start(number: int) -> Cycle:
        connection = connect(url)
        cursor = connection.cursor()
        chance = random.Random(number)
        names = sorted(projects)

        def cycle() -> None:
            project_id = names[chance.randrange(len(names))]
            usage_id = projects[project_id]
            uuids = [str(uuid.uuid4()) for _ in range(size)]
            cursor.execute(insert, [value for one in uuids for value in (one, usage_id, project_id, one)])
            cursor.execute(charge, (size, size, usage_id, 10**9))
            assert cursor.rowcount == 1
            connection.commit()
            cursor.execute(settle, uuids)
            assert cursor.rowcount == size
            cursor.execute(count, (size, size, usage_id))
            connection.commit()

        return cycle

    return start


def expire(url: str, most: int, batch_rows: int) -> int:
    """Expire about so many overdue reservations, whatever project they are of; how many."""
    backend = sa.make_url(url).get_backend_name()
    now = _NOW[backend]
    query = (
        f"SELECT id, usage_id, delta FROM reservations WHERE state = 'reserved' AND expire <= {now}"
        f" ORDER BY expire, id LIMIT {batch_rows}"
    )

    def end(cursor: Any, rows: Sequence[Any]) -> None:
        cursor.execute(
            f"UPDATE reservations SET state = 'expired', updated_at = {now}, deleted_at = {now}, deleted = true,"
            f" live = NULL, place = NULL WHERE id IN ({_numbers(row[0] for row in rows)})"
        )
        sums: collections.Counter[int] = collections.Counter()
        for _, usage_id, delta in rows:
            sums[usage_id] += delta
        cursor.execute(_DISCOUNT[backend].format(now=now, sums=_sums(sums), ids=_numbers(sums)))

    return _in_batches(url, most, query, end)


def purge(url: str, most: int, batch_rows: int) -> int:
    """Delete about so many ended reservations; how many."""
    query = f"SELECT id FROM reservations WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT {batch_rows}"

    def delete(cursor: Any, rows: Sequence[Any]) -> None:
        cursor.execute(f"DELETE FROM reservations WHERE id IN ({_numbers(row[0] for row in rows)})")

    return _in_batches(url, most, query, delete)


def _in_batches(url: str, most: int, query: str, act: Callable[[Any, Sequence[Any]], None]) -> int:
    """Do it to what the query finds, a transaction each time, until it finds nothing or so many are done."""
    connection = connect(url)
    cursor = connection.cursor()
    done = 0
    while done < most:
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
