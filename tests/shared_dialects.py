# SPDX-License-Identifier: Apache-2.0
"""The engines of the shared databases of a test process ask the server only once what all of them must know.

At its first connection, each engine of SQLAlchemy asks for the version, the default schema and much more, and each
engine of the ledger checks the revision of the schema. Both are a fifth of the processor time of a short test.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from cyborg_quota.db import schema

_check = schema.check

_urls: set[str] = set()
_checked: set[str] = set()
_learned: dict[str, dict[str, Any]] = {}
"""The attributes that SQLAlchemy's dialect sets at the first connection to a database."""


def keep(url: str) -> None:
    """Share what the engines of this database learn. Its schema must remain the same until the process ends."""
    _urls.add(url)
    schema.check = _check_once


def share(engine: sa.Engine) -> None:
    """Let a new engine use what others have learned, if it is one of a database of keep()."""
    url = _url(engine)
    if url not in _urls:
        return
    dialect: Any = engine.dialect
    if url in _learned:
        dialect.__dict__.update(_learned[url])
        dialect.initialize = lambda _connection: None
        return
    initialize = dialect.initialize

    def initialize_and_learn(connection: sa.Connection) -> None:
        before = dict(dialect.__dict__)
        initialize(connection)
        learned = {name: value for name, value in dialect.__dict__.items() if before.get(name, ...) is not value}
        if "_hstore_oids" in dialect.__dict__:  # psycopg2: read even before
            learned["_hstore_oids"] = dialect.__dict__["_hstore_oids"]
        _learned[url] = learned

    dialect.initialize = initialize_and_learn


def _check_once(connection: sa.Connection) -> None:
    url = _url(connection.engine)
    if url in _checked:
        return
    _check(connection)
    if url in _urls:
        _checked.add(url)


def _url(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=False)
