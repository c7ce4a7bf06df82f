# SPDX-License-Identifier: Apache-2.0
"""Base classes of the commands: configuration, engine, admin context and output."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from cliff import command, lister, show
from oslo_config import cfg

import cyborg_quota
from cyborg_quota import exceptions
from cyborg_quota.cmd import formats, projects
from cyborg_quota.cmd.errors import DONE, one_line
from cyborg_quota.conf import loading
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.validation import Context

if TYPE_CHECKING:
    from cyborg_quota.cmd.main import Shell


def load_conf(
    conf: cfg.ConfigOpts, arguments: Sequence[str], prog: str = loading.PROJECT, **more: Any
) -> cfg.ConfigOpts:
    """Read files, environment and ``arguments`` into ``conf``. Raises cfg.Error, also for an invalid value."""
    return loading.load(conf, arguments, prog, version=cyborg_quota.__version__, **more)


@contextmanager
def progress_bar(total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if that is a terminal. Yields a function that adds a number of finished items."""
    from tqdm import tqdm

    # disable=None: tqdm shows the bar only on a terminal.
    with tqdm(total=total, unit=f" {unit}", disable=None, leave=False, dynamic_ncols=True) as bar:

        def progress(count: int) -> None:
            bar.update(count)

        yield progress


class _Command(command.Command):
    """Gives a command its configuration and engine. ``example`` is printed at the end of its help.

    ``has_names``: it has the option --names. ``notice``: a line for stderr after the command has succeeded, which
    take_action may set.
    """

    app: Shell
    example: ClassVar[str] = ""
    has_names: ClassVar[bool] = False
    notice: str | None = None

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
        self.notice = projects.new_project_notice(self.app, parsed_args)
        status = int(super().run(parsed_args) or DONE)
        if self.notice is not None:
            self.print_message(self.notice)
        return status

    def print_message(self, text: str) -> None:
        """Print a line beside the output, to stderr."""
        print(f"{self.app.NAME}: {one_line(text)}", file=self.app.stderr)

    def get_epilog(self) -> str:
        # cliff's implementation would search all installed distributions for the one that provides the command.
        return f"example:\n  {self.example}" if self.example else ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        if self.has_names:
            parser.add_argument("--names", action="store_true", help="show the names of the projects, from Keystone")
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command. By default, it has none."""


class Command(_Command):
    """A command without output."""


class _Display(_Command):
    status: int = DONE

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command and return ``self.status``, which take_action may set."""
        super().run(parsed_args)
        return self.status


class Lister(_Display, lister.Lister):
    """A command that prints rows, with the same column names in every format. An empty table prints nothing.

    With --names, a table with the column project_id has also the names. ``has_names`` False: no such option.
    """

    has_names: ClassVar[bool] = True

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        rows = [list(row) for row in data]
        if self.has_names and parsed_args.names:
            column_names, rows = projects.with_names(self.app, column_names, rows)
        if parsed_args.formatter != formats.TABLE:
            rows = [formats.machine(row) for row in rows]
        elif not rows and not parsed_args.print_empty:
            with formats.known_columns():
                self._generate_columns_and_selector(parsed_args, column_names)  # raises ValueError
            return DONE
        else:
            rows = [formats.human(row) for row in rows]
        with formats.known_columns():
            return super().produce_output(parsed_args, column_names, rows)


class Previewer(Lister):
    """A command that prints rows, and then raises ``refusal`` if take_action has set it."""

    refusal: exceptions.LimitRefused | None = None

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Print the rows first, then raise the refusal of the enforcement model."""
        super().run(parsed_args)
        if self.refusal is not None:
            self.app.stdout.flush()
            raise self.refusal
        return self.status


class ShowOne(_Display, show.ShowOne):
    """A command that prints one object."""

    def _load_formatter_plugins(self) -> Any:
        return formats.with_csv(super()._load_formatter_plugins())

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        prepare = formats.human if parsed_args.formatter == formats.TABLE else formats.machine
        with formats.known_columns():
            return super().produce_output(parsed_args, column_names, prepare(data))
