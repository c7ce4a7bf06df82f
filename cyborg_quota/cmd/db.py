# SPDX-License-Identifier: Apache-2.0
"""Commands on the database itself."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cyborg_quota.cmd import base, formats
from cyborg_quota.names import MAX_EXPIRE_SECONDS

_DAY = 86400


@contextmanager
def open_database(conf: Any, *, verified: bool = True, patient: bool = False) -> Iterator[Any]:
    """The database that ``conf`` names.

    ``verified``: it must have a schema that this code can work with. ``patient``: a statement may take its time.
    """
    from cyborg_quota.db import database, schema
    from cyborg_quota.ledger import settings

    how = settings.database_settings(conf)
    if patient:
        how = dataclasses.replace(how, statement_timeout_seconds=None)
    ledger_database = database.Database(how, verify=schema.check if verified else None)
    try:
        yield ledger_database
    finally:
        ledger_database.close()


class Sync(base.ShowOne):
    """Make the tables, or bring them to the revision that this release needs.

    Does nothing on a database that is current. Refuses, and changes nothing,
    where the tables of our names are somebody else's.
    """

    example = "OS_DATABASE__CONNECTION=sqlite:////var/lib/cyborg_quota.db cyborg-quota db sync"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        from cyborg_quota.db import schema

        # Another host's sync is waited for, and a large table takes longer to alter than any charge.
        with open_database(self.conf, verified=False, patient=True) as ledger_database:
            before, after = schema.sync(ledger_database)
        return ("from_revision", "to_revision"), (formats.Optional(before), after)


class Version(base.ShowOne):
    """Show the database's revision, and the one that this release needs."""

    example = "cyborg-quota db version"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        from cyborg_quota.db import schema

        with open_database(self.conf, verified=False) as ledger_database:
            revision = schema.version(ledger_database)
        return ("revision", "needed"), (formats.Optional(revision), schema.head())


class Purge(base.ShowOne):
    """Delete reservations that ended long ago, and say how many rows went.

    Until then, a late or repeated call gets a true answer about them.
    """

    example = "cyborg-quota db purge --older-than 90"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--older-than",
            type=_days,
            metavar="DAYS",
            help="ended so many days ago (default: [quota] purge_age)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        days: int | None = parsed_args.older_than
        age = self.conf.quota.purge_age if days is None else days * _DAY
        with base.progress_bar(None, "rows") as progress:
            return ("purged",), (self.engine.purge(self.context, age, progress=progress),)


def _days(text: str) -> int:
    days = int(text)
    if not 0 <= days <= MAX_EXPIRE_SECONDS // _DAY:
        raise argparse.ArgumentTypeError(f"{days} is not between 0 and 100 years' days")
    return days
