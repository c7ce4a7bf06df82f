# SPDX-License-Identifier: Apache-2.0
"""The connections that a test opened to the shared PostgreSQL database are kept for the next test of its process.

To start a session and to read the catalogs in it takes longer than most tests. Before a kept connection is used again,
the session is reset: settings, prepared statements and locks. It keeps the plans of the ledger's functions, which take
the server longer than the calls of a short test.
"""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy as sa

MAX_KEPT = 6
"""The maximum number of connections with the same arguments."""

_TRANSACTION_STATUS_IDLE = 0
"""libpq's status of a session that is in no transaction."""

_RESET = (
    "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; DEALLOCATE ALL; UNLISTEN *;"
    " SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES"
)
"""DISCARD ALL without DISCARD PLANS."""

Key = tuple[int, tuple[tuple[str, str], ...]]

_urls: set[str] = set()
_kept: dict[Key, list[Any]] = {}


def keep(url: str) -> None:
    """Keep the connections to this database from now on. It must exist until the process ends."""
    _urls.add(url)


def share(engine: sa.Engine) -> None:
    """Let a new engine use kept connections, if it is one of a database of keep()."""
    if engine.url.render_as_string(hide_password=False) not in _urls:
        return
    close = engine.dialect.do_close
    keys: dict[int, Key] = {}

    def connect(_dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> Any:
        key = os.getpid(), tuple(sorted((name, repr(value)) for name, value in options.items()))
        connection = _take(_kept.get(key, []))
        if connection is None:
            connection = engine.dialect.connect(**options)
        keys[id(connection)] = key
        return connection

    def put_back(connection: Any) -> None:
        key = keys.pop(id(connection), None)
        kept = _kept.setdefault(key, []) if key is not None and key[0] == os.getpid() else None
        if kept is None or len(kept) >= MAX_KEPT or not _is_idle(connection):
            close(connection)
        else:
            kept.append(connection)

    sa.event.listen(engine, "do_connect", connect)
    engine.dialect.do_close = put_back  # type: ignore[method-assign]
    engine.dialect.do_terminate = close  # type: ignore[method-assign]


def _is_idle(connection: Any) -> bool:
    return not connection.closed and connection.info.transaction_status == _TRANSACTION_STATUS_IDLE


def _take(kept: list[Any]) -> Any:
    """Return a kept connection whose session is like a new one; None if there is none."""
    while kept:
        connection = kept.pop()
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(_RESET)
            connection.autocommit = False
        except Exception:  # the server has ended the session
            connection.close()
        else:
            return connection
    return None
