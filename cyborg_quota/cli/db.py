# SPDX-License-Identifier: Apache-2.0
"""Commands on the database: db sync, version and purge."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from cyborg_quota.cli import base
from cyborg_quota.surface import arguments, formats
from cyborg_quota.surface.operations import Argument, Operation, cells
from cyborg_quota.validation import MAX_EXPIRE_SECONDS

_DAY: Final = 86400
_days: Final = functools.partial(arguments.integer, minimum=0, maximum=MAX_EXPIRE_SECONDS // _DAY)


@contextmanager
def open_database(conf: Any, *, verified: bool = True, untimed: bool = False) -> Iterator[Any]:
    """Open the database of [database] connection.

    :param verified: check first that this release can work with the schema.
    :param untimed: run statements without a timeout.
    """
    from cyborg_quota.db import database, schema, settings

    chosen = settings.database_settings(conf)
    if untimed:
        chosen = dataclasses.replace(chosen, statement_timeout_seconds=None)
    ledger_database = database.Database(chosen, verify=schema.check if verified else None)
    try:
        yield ledger_database
    finally:
        ledger_database.close()


def _sync(run: base.Run) -> tuple[Any, ...]:
    from cyborg_quota.db import schema

    # No statement timeout: it waits for a sync that runs on another host, and a large table takes long to alter.
    with open_database(run.conf, verified=False, untimed=True) as ledger_database:
        before, after = schema.sync(ledger_database)
    return formats.Optional(before), after


Sync = base.generate(
    Operation(
        """Create the tables, or upgrade them to the revision that this release needs.

        Does nothing if the database is up to date. Refuses, and changes nothing, if
        tables with the same names belong to another application.
        """,
        "OS_DATABASE__CONNECTION=sqlite:////var/lib/cyborg_quota.db cyborg-quota db sync",
        _sync,
        columns=cells("from_revision", "to_revision"),
        is_list=False,
    )
)


def _version(run: base.Run) -> tuple[Any, ...]:
    from cyborg_quota.db import schema

    with open_database(run.conf, verified=False) as ledger_database:
        return formats.Optional(ledger_database.read(schema.revision_of)), schema.HEAD


Version = base.generate(
    Operation(
        "Show the revision of the database, and the revision that this release needs.",
        "cyborg-quota db version",
        _version,
        columns=cells("revision", "needed"),
        is_list=False,
    )
)


def _purge(run: base.Run, older_than: int | None, progress: Callable[[int], None]) -> tuple[int]:
    age = run.conf.quota.purge_age if older_than is None else older_than * _DAY
    return (run.engine.purge(run.context, age, progress=progress),)


Purge = base.generate(
    Operation(
        """Delete reservations that ended long ago, and print the number of deleted rows.

        As long as an ended reservation is kept, a late or repeated call on it gets a
        correct answer; after the purge the answer is "not found".
        """,
        "cyborg-quota db purge --older-than 90",
        _purge,
        (
            Argument(
                "--older-than",
                type=_days,
                metavar="DAYS",
                help="delete what ended at least this many days ago (default: [quota] purge_age)",
            ),
        ),
        cells("purged"),
        is_list=False,
        progress="rows",
    )
)
