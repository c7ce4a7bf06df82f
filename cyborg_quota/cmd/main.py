# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota: the command line."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from cliff import app, commandmanager
from cliff import help as cliff_help
from oslo_config import cfg

import cyborg_quota
from cyborg_quota import QuotaEngine, exceptions, validation
from cyborg_quota.cmd import base
from cyborg_quota.cmd.errors import BAD_USAGE, BROKEN_PIPE, INTERRUPTED, REFUSED, exit_status, one_line

DESCRIPTION = """\
Quota for the accelerators of OpenStack Cyborg: what every project has attached and
has in flight, and what it may have. Acts with an admin's rights on the database that
[database] connection names, in --config-file or in OS_DATABASE__CONNECTION."""

EPILOG = "exit statuses: 0 done; 1 refused, or found wrong; 2 bad usage"


class Shell(app.App):
    """One run of the command line. ``run(argv)`` returns the exit status and raises nothing."""

    NAME = "cyborg-quota"

    def __init__(self) -> None:
        super().__init__(
            description=DESCRIPTION,
            version=cyborg_quota.__version__,
            command_manager=commandmanager.CommandManager("cyborg_quota.cli"),
            deferred_help=True,
        )
        self.context = validation.admin_context()

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
        parser.add_argument("-h", "--help", action="store_true", dest="deferred_help", help="show this help")
        parser.add_argument("--version", action="version", version=f"{self.NAME} {version}")
        parser.add_argument(
            "--config-file",
            action="append",
            default=[],
            metavar="FILE",
            help="read this configuration; may be repeated, the last one counts "
            "(default: cyborg_quota.conf in ~/.cyborg_quota, ~, /etc/cyborg_quota or /etc)",
        )
        parser.add_argument(
            "--config-dir",
            action="append",
            default=[],
            metavar="DIR",
            help="read all *.conf in this directory",
        )
        parser.add_argument(
            "-v",
            "--verbose",
            action="count",
            dest="verbose_level",
            default=0,
            help="log more than warnings to stderr; twice for all",
        )
        parser.add_argument("--debug", action="store_true", help="log all, and show tracebacks")
        return parser

    @functools.cached_property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration; read at first use, so that --help needs none."""
        arguments: list[str] = []
        for name in ("config_file", "config_dir"):
            for value in getattr(self.options, name):
                arguments += [f"--{name.replace('_', '-')}", value]
        return base.load_conf(cfg.ConfigOpts(), arguments)

    @functools.cached_property
    def engine(self) -> QuotaEngine:
        """The engine as the configuration says."""
        return cyborg_quota.make_engine(self.conf)

    def run(self, argv: Sequence[str]) -> int:
        debug = "--debug" in argv
        try:
            self.options, remainder = self.parser.parse_known_args(list(argv))
            with self._logging():
                return self._dispatch(remainder)
        except SystemExit as ending:  # argparse has said what is wrong, or printed the version
            return ending.code if isinstance(ending.code, int) else BAD_USAGE
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            return _lose_stdout()
        except (exceptions.QuotaError, cfg.Error) as error:
            self._complain(str(error), debug)
            return exit_status(error)
        except Exception as error:
            self._complain(f"Internal error: {error!r}. (--debug shows where.)", debug)
            return REFUSED
        finally:
            if "engine" in self.__dict__:
                self.engine.close()

    def _dispatch(self, argv: list[str]) -> int:
        if self.options.deferred_help:
            argv = ["help", *argv]
        if not argv:
            self._complain("Name a command; --help lists them.", False)
            return BAD_USAGE
        try:
            factory, name, rest = self.command_manager.find_command(argv)
        except ValueError:
            near = ", ".join(self.get_fuzzy_matches(argv[0])) or "none"
            self._complain(f"{' '.join(argv)!a} is no command; near it: {near}. --help lists all.", False)
            return BAD_USAGE
        command = factory(self, self.options, cmd_name=name)
        try:
            return int(command.run(command.get_parser(f"{self.NAME} {name}").parse_args(rest)))
        except cliff_help.HelpExit:
            return 0
        finally:
            self.stdout.flush()

    @contextlib.contextmanager
    def _logging(self) -> Iterator[None]:
        """Warnings, or more, to stderr. [DEFAULT] log_file and its like are the services' business."""
        level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(self.options.verbose_level, 2)]
        if self.options.debug:
            level = logging.DEBUG
        handler = logging.StreamHandler(self.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        root = logging.getLogger()
        before = root.level
        root.addHandler(handler)
        root.setLevel(level)
        # These tell their whole life at INFO and DEBUG.
        for chatty in ("stevedore", "alembic", "matplotlib", "PIL"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        if level > logging.DEBUG:
            # It warns of a Keystone that cannot be reached, which our own message says with the reason.
            logging.getLogger("keystoneauth.identity").setLevel(logging.ERROR)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(before)

    def _complain(self, text: str, debug: bool) -> None:
        if debug:
            traceback.print_exc(file=self.stderr)
        print(f"{self.NAME}: {one_line(text)}", file=self.stderr)


def _lose_stdout() -> int:
    """Whoever read our output has gone. Python would complain when it flushes what is left: to nowhere with it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            # A name that the terminal's encoding lacks is shown escaped; it must not end the program.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return Shell().run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
