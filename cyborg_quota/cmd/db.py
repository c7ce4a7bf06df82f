# SPDX-License-Identifier: Apache-2.0
"""Commands on the database: db sync, version and purge."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cyborg_quota.cmd import base, formats
from cyborg_quota.validation import MAX_EXPIRE_SECONDS

_DAY = 86400


@contextmanager
def open_database(conf: Any, *, verified: bool = True, untimed: bool = False) -> Iterator[Any]:
    """Open the database of [database] connection.

    :param verified: check first that this release can work with the schema.
    :param untimed: run statements without a timeout.
    """
    from cyborg_quota.db import database, schema
    from cyborg_quota.ledger import settings

    database_settings = settings.database_settings(conf)
    if untimed:
        database_settings = dataclasses.replace(database_settings, statement_timeout_seconds=None)
    ledger_database = database.Database(database_settings, verify=schema.check if verified else None)
    try:
        yield ledger_database
    finally:
        ledger_database.close()


class Sync(base.ShowOne):
    """Create the tables, or upgrade them to the revision that this release needs.

    Does nothing if the database is up to date. Refuses, and changes nothing, if
    tables with the same names belong to another application.
    """

    example = "OS_DATABASE__CONNECTION=sqlite:////var/lib/cyborg_quota.db cyborg-quota db sync"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        from cyborg_quota.db import schema

        # No statement timeout: it waits for a sync that runs on another host, and a large table takes long to alter.
        with open_database(self.conf, verified=False, untimed=True) as ledger_database:
            before, after = schema.sync(ledger_database)
        return ("from_revision", "to_revision"), (formats.Optional(before), after)


class Version(base.ShowOne):
    """Show the revision of the database, and the revision that this release needs."""

    example = "cyborg-quota db version"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        from cyborg_quota.db import schema

        with open_database(self.conf, verified=False) as ledger_database:
            revision = schema.version(ledger_database)
        return ("revision", "needed"), (formats.Optional(revision), schema.head())


class Purge(base.ShowOne):
    """Delete reservations that ended long ago, and print the number of deleted rows.

    As long as an ended reservation is kept, a late or repeated call on it gets a
    correct answer; after the purge the answer is "not found".
    """

    example = "cyborg-quota db purge --older-than 90"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--older-than",
            type=_days,
            metavar="DAYS",
            help="delete what ended at least this many days ago (default: [quota] purge_age)",
        )
        parser.add_argument(
            "--bindings-older-than",
            type=_days,
            metavar="DAYS",
            help="also delete the bindings to pods that ended at least this many days ago (default: none)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        days: int | None = parsed_args.older_than
        age = self.conf.quota.purge_age if days is None else days * _DAY
        with base.progress_bar(None, "rows") as progress:
            purged = self.engine.purge(self.context, age, progress=progress)
            if parsed_args.bindings_older_than is not None:
                purged += self.engine.pods.purge_bindings(self.context, parsed_args.bindings_older_than * _DAY)
        return ("purged",), (purged,)


def _days(text: str) -> int:
    days = int(text)
    if not 0 <= days <= MAX_EXPIRE_SECONDS // _DAY:
        raise argparse.ArgumentTypeError(f"{days} is not between 0 and {MAX_EXPIRE_SECONDS // _DAY} days")
    return days
