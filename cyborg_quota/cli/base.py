# SPDX-License-Identifier: Apache-2.0
"""Base classes of the commands: configuration, engine, admin context and output."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from cliff import command, lister, show
from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.cli import output, projects
from cyborg_quota.cli.errors import DONE, REFUSED, print_line
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.surface import formats
from cyborg_quota.surface.operations import Arguments, Operation, add_to
from cyborg_quota.validation import Context

if TYPE_CHECKING:
    from cyborg_quota.cli.main import Shell


@contextmanager
def progress_bar(total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if that is a terminal. Yields a function that adds a number of finished items."""
    from tqdm import tqdm

    # disable=None: tqdm shows the bar only on a terminal.
    with tqdm(total=total, unit=f" {unit}", disable=None, leave=False, dynamic_ncols=True) as bar:

        def progress(count: int) -> None:
            bar.update(count)

        yield progress


class Command(command.Command):
    """Gives a command its configuration and engine. ``example`` is printed at the end of its help.

    ``has_names``: it has the option --names. What take_action may set: ``status``, the exit status; ``notice``, a line
    for stderr after the command has succeeded; ``refusal``, which is raised after the output; ``noun``, what an empty
    table has none of, which stderr then says (empty: that is no news).
    """

    app: Shell
    example: ClassVar[str] = ""
    arguments: ClassVar[Arguments] = ()
    has_names: ClassVar[bool] = False
    status: int = DONE
    notice: str | None = None
    refusal: exceptions.LimitRefused | None = None
    noun: str = ""

    @property
    def conf(self) -> cfg.ConfigOpts:
        return self.app.conf

    @property
    def engine(self) -> QuotaEngine:
        return self.app.engine

    @property
    def context(self) -> Context:
        return self.app.context

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command with the ids of the projects that the arguments name."""
        projects.resolve(self.app, parsed_args)
        super().run(parsed_args)
        if self.notice is not None:
            self.print_message(self.notice)
        if self.refusal is not None:
            self.app.stdout.flush()
            raise self.refusal
        return self.status

    def print_message(self, text: str) -> None:
        """Print a line beside the output, to stderr."""
        print_line(self.app.NAME, text)

    def get_epilog(self) -> str:
        # cliff's implementation would search all installed distributions for the one that provides the command.
        return f"example:\n  {self.example}" if self.example else ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.allow_abbrev = False  # --project would be --project-domain in a command that has no --project
        if self.has_names:
            parser.add_argument("--names", action="store_true", help="show the names of the projects, from Keystone")
        add_to(parser, self.arguments)
        return parser


class Lister(Command, lister.Lister):
    """A command that prints rows, with the same column names in every format. An empty table prints nothing.

    With --names, a table with the column project_id has also the names. ``has_names`` False: no such option.
    """

    has_names: ClassVar[bool] = True

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        rows = [list(row) for row in data]
        if self.has_names and parsed_args.names:
            column_names, rows = projects.with_names(self.app, column_names, rows)
        if parsed_args.formatter != output.TABLE:
            rows = [formats.machine(row) for row in rows]
        elif not rows and not parsed_args.print_empty:
            with output.known_columns():
                self._generate_columns_and_selector(parsed_args, column_names)  # raises ValueError
            if self.noun:
                self.print_message(formats.nothing(self.noun))
            return DONE
        else:
            rows = [output.human(row) for row in rows]
        with output.known_columns():
            return super().produce_output(parsed_args, column_names, rows)


class ShowOne(Command, show.ShowOne):
    """A command that prints one object."""

    def _load_formatter_plugins(self) -> Any:
        return output.with_csv(super()._load_formatter_plugins())

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        prepare = output.human if parsed_args.formatter == output.TABLE else formats.machine
        with output.known_columns():
            return super().produce_output(parsed_args, column_names, prepare(data))


class Run(Command):
    """A command that is generated from an operation."""

    operation: ClassVar[Operation]
    parsed: argparse.Namespace

    is_host: Final = True

    @property
    def elevated(self) -> Context:
        """The context for what only an admin may do: everybody who runs commands on the host is an admin."""
        return self.context

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.operation.add_to(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        operation, self.parsed = self.operation, parsed_args
        given = {
            name: value for name, value in operation.values(vars(parsed_args)).items() if name not in projects.RESOLVED
        }
        if operation.progress is None:
            shown = operation.run(self, parsed_args, **given)
        else:
            with progress_bar(None, operation.progress) as progress:
                shown = operation.run(self, parsed_args, **given, progress=progress)
        if operation.refuses and shown[1]:
            self.status = REFUSED
        return shown


def generate(operation: Operation) -> Any:
    """The command of an operation."""
    made = operation.command(Run, Command, Lister, ShowOne)
    made.has_names = made.has_names and operation.has_names
    return made
