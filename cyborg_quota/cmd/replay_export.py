# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota replay export: write the ledger's history as a trace."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, TextIO

from cyborg_quota import spool
from cyborg_quota.cmd import arguments, base
from cyborg_quota.cmd.db import open_database
from cyborg_quota.cmd.errors import BadUsage


@contextlib.contextmanager
def exported(conf: Any, since_seconds: int | None) -> Iterator[tuple[TextIO, Any]]:
    """Write the trace of the configured ledger to a temporary file; yields it, and the span of time that it covers."""
    from cyborg_quota.replay import export

    with contextlib.ExitStack() as stack:
        with (
            spool.writing(),
            open_database(conf, untimed=True) as database,
            base.progress_bar(None, "events") as progress,
        ):
            file = tempfile.NamedTemporaryFile(  # noqa: SIM115 (closed at exit)
                "w+", encoding="utf-8", newline="", prefix="cyborg-quota-", suffix=".csv"
            )
            stack.callback(spool.close, file)
            span = export.write(database, file, since_seconds, progress)  # type: ignore[arg-type]
            file.flush()
            file.seek(0)
        yield file, span  # type: ignore[misc]


class Export(base.Command):
    """Write the history of the ledger as a trace, for `replay` and `limit simulate`.

    A replay of the trace, without limits and on an empty database, ends with the
    same used and reserved amounts. Each reservation becomes a consumer, named by
    its UUID. With --since, what was held at that time is reserved at time 0. The
    trace contains no refused requests, because the ledger does not store them,
    and nothing that a purge has deleted ([quota] purge_age).
    """

    example = "cyborg-quota replay export trace.csv --since 30d"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", nargs="?", metavar="FILE", help="the file to write; - is stdout (default: stdout)")
        add_since(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        with exported(self.conf, parsed_args.since) as (trace, _):
            if parsed_args.file in (None, "-"):
                shutil.copyfileobj(trace, self.app.stdout)
                return
            try:
                with open(parsed_args.file, "w", encoding="utf-8", newline="") as target:
                    shutil.copyfileobj(trace, target)
            except OSError as error:
                raise BadUsage(f"Cannot write {parsed_args.file!a}: {error.strerror}.") from None


def add_since(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        type=arguments.duration,
        metavar="TIME",
        help="only the last TIME of the ledger's history: 30d, 12h, 45m or 90s (default: all that is stored)",
    )


def add_chart(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chart",
        metavar="FILE",
        help="draw the amounts held under both limits, with a panel for each project and resource, as FILE.png or "
        "FILE.svg (needs cyborg_quota[chart])",
    )
