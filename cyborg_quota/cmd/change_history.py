# SPDX-License-Identifier: Apache-2.0
"""The base class of `limit history` and `capacity history`."""

from __future__ import annotations

import abc
import argparse
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from oslo_log import log as logging

from cyborg_quota.cmd import arguments, base, formats, paging
from cyborg_quota.cmd.errors import REFUSED, BadUsage

LOG = logging.getLogger(__name__)

Entry = TypeVar("Entry")
Difference = TypeVar("Difference")


class History(base.Lister, Generic[Entry, Difference]):
    """Lists the entries of one history, newest first, or verifies it."""

    columns: ClassVar[tuple[str, ...]]
    long_columns: ClassVar[tuple[str, ...]] = ()
    """The last of ``columns``: a table has them only with --long, or if -c selects columns."""
    difference_columns: ClassVar[tuple[str, ...]]
    owner: ClassVar[str]
    """The name of the option that selects the entries of one object: project or provider."""
    verified: ClassVar[str]
    """What --verify compares the history with."""
    not_recorded: ClassVar[str]
    """The warning about differences; %d is their number."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.add_owner(parser)
        parser.add_argument(
            "--since",
            type=arguments.moment_or_age,
            metavar="TIME",
            help="only changes since this time (2026-12-01T08:00Z) or of this age (12h, 30d)",
        )
        paging.add_limit(parser)
        parser.add_argument("--marker", metavar="ID", help="start after the entry with this id")
        paging.add_resource(parser)
        if self.long_columns:
            names = " and ".join(self.long_columns)
            parser.add_argument("--long", action="store_true", help=f"also show {names} in a table")
        parser.add_argument(
            "--verify",
            action="store_true",
            help=f"list no entries: replay the history, compare the result with the present {self.verified}, and "
            "print the differences",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        owner = getattr(parsed_args, self.owner)
        filters = {"since": parsed_args.since, "marker": parsed_args.marker, "resource": parsed_args.resource}
        if not parsed_args.verify:
            entries = self.entries(owner, limit=parsed_args.limit, **filters)
            count = self._number_of_columns(parsed_args)
            return self.columns[:count], [self.row(entry)[:count] for entry in entries]
        if any(value is not None for value in (owner, parsed_args.limit, *filters.values())):
            raise BadUsage(
                f"--verify replays the whole history: give no --{self.owner}, --since, --limit, --marker or --resource."
            )
        differences = self.verify()
        if differences:
            self.status = REFUSED
            LOG.warning(self.not_recorded, len(differences))
        return self.difference_columns, [self.difference_row(one) for one in differences]

    def _number_of_columns(self, parsed_args: argparse.Namespace) -> int:
        is_short = parsed_args.formatter == formats.TABLE and not parsed_args.columns
        is_long = not self.long_columns or parsed_args.long or not is_short
        return len(self.columns) - (0 if is_long else len(self.long_columns))

    @abc.abstractmethod
    def add_owner(self, parser: argparse.ArgumentParser) -> None:
        """Add the option ``owner``."""

    @abc.abstractmethod
    def entries(self, owner: str | None, **filters: Any) -> Sequence[Entry]:
        """The entries. ``filters``: since, limit, marker and resource."""

    @abc.abstractmethod
    def verify(self) -> Sequence[Difference]:
        """The changes that are not recorded."""

    @abc.abstractmethod
    def row(self, entry: Entry) -> tuple[Any, ...]:
        """The values of ``columns``."""

    @abc.abstractmethod
    def difference_row(self, difference: Difference) -> tuple[Any, ...]:
        """The values of ``difference_columns``."""
