# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota: the command line."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import logging
import os
import pwd
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from cliff import app, commandmanager
from cliff import help as cliff_help
from oslo_config import cfg

import cyborg_quota
from cyborg_quota import QuotaEngine, exceptions, validation
from cyborg_quota.cli import base, errors
from cyborg_quota.cli.errors import BadUsage, run_program
from cyborg_quota.conf import loading, plugins
from cyborg_quota.limits.sources import keystone_projects
from cyborg_quota.surface import table
from cyborg_quota.surface.operations import Argument, add_to

if TYPE_CHECKING:
    from cyborg_quota.limits.sources.keystone_projects import ProjectDirectory

LOG = logging.getLogger(__name__)

DESCRIPTION = """\
Quota for the accelerators of OpenStack Cyborg: the usage, reservations and limits of
each project. Works with admin rights on the database of [database] connection, which
is set in --config-file or in the environment variable OS_DATABASE__CONNECTION."""

EPILOG = "exit statuses: 0 success; 1 refused, or a check found differences; 2 invalid usage"

_OPTIONS: Final = (
    Argument("-h", "--help", action="store_true", dest="deferred_help", help="show this help"),
    Argument("--version", action="version", version=f"cyborg-quota {cyborg_quota.__version__}"),
    Argument(
        "--config-file",
        action="append",
        default=[],
        metavar="FILE",
        help="read this configuration file; may be repeated, later files take precedence "
        "(default: cyborg_quota.conf in ~/.cyborg_quota, ~, /etc/cyborg_quota or /etc)",
    ),
    Argument(
        "--config-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="read all *.conf files in this directory",
    ),
    Argument(
        "-v",
        "--verbose",
        action="count",
        dest="verbose_level",
        default=0,
        help="log to stderr at INFO; repeat for DEBUG (default: only warnings)",
    ),
    Argument("--debug", action="store_true", help="log at DEBUG, and show tracebacks"),
)


_ON_HOST: Final = {
    "audit": "audit:Audit",
    "capacity import": "capacity_import:Import",
    "capacity show": "capacity_report:Report",
    "check": "quota:Check",
    "commit": "reservation:Commit",
    "db purge": "db:Purge",
    "db sync": "db:Sync",
    "db version": "db:Version",
    "delete": "quota:Delete",
    "expire": "reservation:Expire",
    "extend": "reservation:Extend",
    "heal": "audit:Heal",
    "limits export": "limit_file:Export",
    "limits import": "limit_file:Import",
    "list": "quota:List",
    "pod measure": "pod:Collect",
    "project import": "project:Import",
    "project list": "project:List",
    "reconcile": "reconcile:Reconcile",
    "release": "reservation:Release",
    "replay": "replay:Replay",
    "reserve": "reservation:Reserve",
    "resize": "reservation:Resize",
    "rollback": "reservation:Rollback",
    "set": "quota:Set",
    "show": "quota:Show",
    "simulate": "simulate:Simulate",
    "trace export": "replay_export:Export",
    "transfer": "reservation:Transfer",
    "unset": "quota:Unset",
}
"""The commands that have a module of their own; the others are generated from the table of operations."""

_FORMER: Final = {
    "capacity allocation list": "allocation list",
    "capacity audit": "audit",
    "capacity heal": "heal",
    "capacity inventory list": "inventory list",
    "capacity inventory remove": "inventory delete",
    "capacity inventory set": "inventory set",
    "capacity provider add": "provider create",
    "capacity provider list": "provider list",
    "capacity provider remove": "provider delete",
    "capacity provider set": "provider set",
    "capacity provider show": "provider show",
    "capacity report": "capacity show",
    "limit list": "list",
    "limit over": "list --over",
    "limit override cancel": "override delete",
    "limit override list": "override list",
    "limit set": "set",
    "limit show": "show --ancestors",
    "limit simulate": "simulate",
    "limit tree": "list --tree",
    "limit unset": "unset",
    "pod add": "pod create",
    "pod binding end": "pod binding delete",
    "pod binding move": "pod binding set",
    "pod drain": "pod set --state maintenance",
    "pod enable": "pod set --state available",
    "pod remove": "pod delete",
    "pod usage collect": "pod measure",
    "pod usage list": "pod list",
    "pod usage show": "pod list",
    "project add": "project set",
    "project move": "project set",
    "project orphans": "project list --orphans",
    "project remove": "project delete",
    "usage audit": "audit",
    "usage heal": "heal",
    "usage list": "list --usage",
}
"""What commands were called before, and are called now."""


class Shell(app.App):
    """One run of the command line. ``run(argv)`` returns the exit status and raises nothing."""

    NAME = "cyborg-quota"

    def __init__(self) -> None:
        manager = commandmanager.CommandManager("")
        for words, operation in table.operations().items():
            manager.add_command(words, base.generate(operation))
        for words, attribute in _ON_HOST.items():  # (loaded when they are called)
            manager.commands[words] = metadata.EntryPoint(words, f"cyborg_quota.cli.{attribute}", "cyborg_quota.cli")
        super().__init__(
            description=DESCRIPTION,
            version=cyborg_quota.__version__,
            command_manager=manager,
            deferred_help=True,
        )
        self.context = validation.admin_context(_os_user())

    def build_option_parser(
        self,
        description: str | None,
        version: str | None,
        argparse_kwargs: dict[str, Any] | None = None,
    ) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=self.NAME,
            description=description,
            epilog=EPILOG,
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **(argparse_kwargs or {}),
        )
        add_to(parser, _OPTIONS)
        return errors.raise_errors(parser)

    @functools.cached_property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration, read at first use: --help works without it."""
        given = (("--config-file", self.options.config_file), ("--config-dir", self.options.config_dir))
        return loading.load(
            cfg.ConfigOpts(), [part for name, paths in given for path in paths for part in (name, path)]
        )

    @functools.cached_property
    def engine(self) -> QuotaEngine:
        """The engine, made from the configuration."""
        return cyborg_quota.make_engine(self.conf)

    @functools.cached_property
    def uses_keystone(self) -> bool:
        """Whether [oslo_limit] has credentials for Keystone."""
        return plugins.has_credentials(self.conf)

    @functools.cached_property
    def directory(self) -> ProjectDirectory:
        """The projects of Keystone, connected at first use. Raises ConfigurationError. ``uses_keystone`` is true."""
        return keystone_projects.make_directory(self.conf)

    def run(self, argv: Sequence[str]) -> int:
        try:
            return run_program(self.NAME, lambda: self._run(argv), debug="--debug" in argv, next_step=_next_step)
        finally:
            if "engine" in self.__dict__:
                self.engine.close()

    def _run(self, argv: Sequence[str]) -> int:
        self.options, remainder = self.parser.parse_known_args(list(argv))
        with self._logging():
            return self._dispatch(remainder)

    def _dispatch(self, argv: list[str]) -> int:
        if not argv and not self.options.deferred_help:
            raise BadUsage("A command is missing. Run with --help for a list.")
        try:
            if self.options.deferred_help:
                self._check_command(argv)
                words = itertools.takewhile(lambda word: not word.startswith("-"), argv)
                factory, name, rest = self.command_manager.find_command(["help", *words])
            else:
                factory, name, rest = self.command_manager.find_command(argv)
                if name == "help":
                    self._check_command(rest)
        except ValueError:
            similar = ", ".join(self.get_fuzzy_matches(argv[0])) or "none"
            former = [now for words, now in _FORMER.items() if argv[: words.count(" ") + 1] == words.split()]
            hint = f"It is `{former[0]}` now." if former else f"Similar commands: {similar}."
            raise BadUsage(f"{' '.join(argv)!a} is no command. {hint} Run with --help for a list.") from None
        command = factory(self, self.options, cmd_name=name)
        try:
            parser = errors.raise_errors(command.get_parser(f"{self.NAME} {name}"))
            return int(command.run(parser.parse_intermixed_args(rest)))
        except cliff_help.HelpExit:
            return 0
        except exceptions.LimitRefused as error:
            for problem in error.problems[error.MAX_SHOWN :]:
                LOG.info("Not allowed: %s.", problem)
            raise
        finally:
            self.stdout.flush()

    def _check_command(self, argv: list[str]) -> None:
        """Raise ValueError unless --help can describe ``argv``: a command, or the first words of one."""
        names = (tuple(name.split()) for name, _ in self.command_manager)
        if argv and not any(name[: len(argv)] == tuple(argv) for name in names):
            self.command_manager.find_command(argv)

    @contextlib.contextmanager
    def _logging(self) -> Iterator[None]:
        """Log to stderr at the level of -v and --debug. (The logging options of [DEFAULT] are for the services.)"""
        verbosity = 2 if self.options.debug else min(self.options.verbose_level, 2)
        level = (logging.WARNING, logging.INFO, logging.DEBUG)[verbosity]
        handler = logging.StreamHandler(self.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        root = logging.getLogger()
        previous_level = root.level
        root.addHandler(handler)
        root.setLevel(level)
        # These libraries log too much at INFO and DEBUG.
        for name in ("stevedore", "alembic", "matplotlib", "PIL"):
            logging.getLogger(name).setLevel(logging.WARNING)
        if level > logging.DEBUG:
            # They warn when Keystone cannot be reached, and of an error of the database that they do not know; our own
            # messages report that with the reason.
            for name in ("keystoneauth.identity", "oslo_db.sqlalchemy.exc_filters"):
                logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(previous_level)


def _next_step(error: Exception) -> str:
    """The command that helps after an error whose text also reaches those who have no command line."""
    if isinstance(error, exceptions.LimitRefused) and len(error.problems) > error.MAX_SHOWN:
        return " With -v before the command, the others are logged."
    step = getattr(error, "next_step", "")
    return step and f" {step}"


def _os_user() -> str:
    """The user of the operating system who runs the command, for the history of limits: os:root (sudo: alice)."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user may have no entry
        user = str(os.getuid())
    sudo_user = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return f"os:{user} (sudo: {sudo_user})" if sudo_user else f"os:{user}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    errors.open_streams()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            # Escape characters that the terminal's encoding lacks, instead of raising UnicodeEncodeError.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return Shell().run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
