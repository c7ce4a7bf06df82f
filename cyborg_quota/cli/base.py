# SPDX-License-Identifier: Apache-2.0
"""The commands, as operations generate them: configuration, engine, admin context and output."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from cliff import command, lister, show
from oslo_config import cfg
from stevedore import extension

from cyborg_quota import exceptions
from cyborg_quota.cli import output, projects
from cyborg_quota.cli.errors import DONE, REFUSED, print_line
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.surface import arguments, formats
from cyborg_quota.surface.operations import Operation
from cyborg_quota.validation import Context

if TYPE_CHECKING:
    from cyborg_quota.cli.main import Shell


@contextmanager
def progress_bar(total: int | None, unit: str) -> Iterator[Any]:
    """Show a progress bar on stderr if that is a terminal. Yields a function that adds a number of finished items."""
    from tqdm import tqdm

    # disable=None: tqdm shows the bar only on a terminal.
    with tqdm(total=total, unit=f" {unit}", disable=None, leave=False, dynamic_ncols=True) as bar:
        yield bar.update


class Run(command.Command):
    """A command that is generated from an operation; gives its call the configuration and the engine.

    What the call may set: ``status``, the exit status; ``notice``, a line for stderr after the command has succeeded;
    ``refusal``, which is raised after the output; ``noun``, what an empty table has none of, which stderr then says
    (empty: that is no news).
    """

    app: Shell
    operation: ClassVar[Operation]
    parsed: argparse.Namespace
    status: int = DONE
    notice: str | None = None
    refusal: exceptions.LimitRefused | None = None
    noun: str
    is_host: Final = True

    @property
    def conf(self) -> cfg.ConfigOpts:
        return self.app.conf

    @property
    def engine(self) -> QuotaEngine:
        return self.app.engine

    @property
    def context(self) -> Context:
        """The context of an admin, as everybody is who runs commands on the host."""
        return self.app.context

    elevated = context

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
        return f"example:\n  {self.operation.example}"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.allow_abbrev = False  # a later release may have another option that begins alike
        if self.operation.has_names and isinstance(self, Lister):
            parser.add_argument("--names", action="store_true", help="show the names of the projects, from Keystone")
        self.operation.add_to(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        operation, self.parsed = self.operation, parsed_args
        given = operation.values(vars(parsed_args))
        given.pop(arguments.FORCE_PROJECT.name, None)  # (projects.resolve has used it)
        if operation.progress is None:
            shown = operation.run(self, parsed_args, **given)
        else:
            with progress_bar(None, operation.progress) as progress:
                shown = operation.run(self, parsed_args, **given, progress=progress)
        if operation.refuses and shown[1]:
            self.status = REFUSED
        return shown


class Lister(lister.Lister):
    """A command that prints rows, with the same column names in every format. An empty table prints nothing.

    With --names, a table with the column project_id has also the names.
    """

    app: Shell
    noun: str

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        rows = [list(row) for row in data]
        if getattr(parsed_args, "names", False):
            column_names, rows = projects.with_names(self.app, column_names, rows)
        if parsed_args.formatter != output.TABLE:
            rows = [formats.machine(row) for row in rows]
        elif not rows and not parsed_args.print_empty:
            with output.known_columns():
                self._generate_columns_and_selector(parsed_args, column_names)  # raises ValueError
            if self.noun:
                print_line(self.app.NAME, formats.nothing(self.noun))
            return DONE
        else:
            rows = [output.human(row) for row in rows]
        with output.known_columns():
            return super().produce_output(parsed_args, column_names, rows)


class ShowOne(show.ShowOne):
    """A command that prints one object."""

    app: Shell

    def _load_formatter_plugins(self) -> Any:
        plugins, none = super()._load_formatter_plugins(), cast(Any, None)  # no entry point, and no plugin to load
        # cliff has CSV only for lists. (An entry point would add it to every cliff program.)
        plugins.extensions.append(extension.Extension("csv", none, none, output.CSV()))
        return plugins

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        prepare = output.human if parsed_args.formatter == output.TABLE else formats.machine
        with output.known_columns():
            return super().produce_output(parsed_args, column_names, prepare(data))


def generate(operation: Operation, show_one: type = ShowOne) -> Any:
    """The command of an operation. ``show_one``: the class that prints what it returns, if that is one record."""
    return operation.command(Run, command.Command, Lister, show_one)
