# SPDX-License-Identifier: Apache-2.0
"""reconcile: the ledger against Cyborg's own records."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota.cmd import base
from cyborg_quota.cmd.errors import REFUSED

COLUMNS = ("arq", "problem", "instance", "source", "charged", "attached")


class Reconcile(base.Lister):
    """Compare the ledger with Cyborg's own records: what is charged with what is attached.

    Prints a row per ARQ that differs (what is charged, what Cyborg has attached)
    and exits with 1, or nothing and 0. What is in flight is left out: a difference
    is one that is still there after the grace. Writes nothing, unless --heal.

    With --heal the ledger is made as Cyborg's records are, whatever the limits:
    what is attached and not charged is charged, what is charged and not attached is
    released. Prints what it changed. On a cloud that ran before the quota was
    installed, `reconcile --heal --force` charges all that is attached.

    Only charges of this Cyborg's own [cyborg] source are changed. Those of another
    source are left out; those without one are printed and left alone, until
    --claim-source says that they are this Cyborg's.
    """

    example = "cyborg-quota reconcile --heal"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--heal", action="store_true", help="repair what differs")
        parser.add_argument(
            "--force",
            action="store_true",
            help="repair it even if that is more than [cyborg] reconcile_share allows, or Cyborg's records have shrunk",
        )
        parser.add_argument(
            "--claim-source",
            action="store_true",
            help="before that, give [cyborg] source to the charges that have none, such as an older release's; not "
            "where another program charges the same resources without one",
        )
        parser.add_argument(
            "--grace",
            type=_seconds,
            metavar="SECONDS",
            help="how long a difference must last (default: [cyborg] reconcile_grace)",
        )
        parser.add_argument(
            "--cyborg-config-file",
            action="append",
            metavar="FILE",
            help="Cyborg's configuration; may be repeated (default: [cyborg] config_file, or where Cyborg looks)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        from cyborg_quota.integrations.cyborg import cyborg_host, diff

        if parsed_args.cyborg_config_file:
            self.conf.set_override("config_file", parsed_args.cyborg_config_file, group="cyborg")
        records = cyborg_host.records(self.conf)
        reconciler = cyborg_host.reconciler(self.conf, self.engine, records, parsed_args.grace, wait=wait)
        if parsed_args.claim_source:
            count = reconciler.claim_source()
            print(f"{self.app.NAME}: {count} charges had no source, and have it now.", file=self.app.stderr)
        report = reconciler.find()
        for resource_class, reason in sorted(records.uncounted.items()):
            print(f"{self.app.NAME}: resource class {resource_class} is not counted: {reason}", file=self.app.stderr)
        found = report.differences
        if found and parsed_args.heal:
            with base.progress_bar(len(found), "accelerators") as progress:
                found = reconciler.heal(report, force=parsed_args.force, progress=progress)
        elif found:
            self.status = REFUSED
        not_own = [one.arq for one in report.differences if not one.is_own]
        if not_own:
            self.status = REFUSED
            print(
                f"{self.app.NAME}: {len(not_own)} of these have charges of no recorded source, or of another one, and "
                "are not repaired. If they are all this Cyborg's, run: cyborg-quota reconcile --claim-source",
                file=self.app.stderr,
            )
        return COLUMNS, [
            (
                one.arq,
                one.problem,
                "" if one.attached is None else one.attached.instance,
                one.sources,
                diff.shown(one.before),
                diff.shown(one.after),
            )
            for one in found
        ]


def wait(seconds: float) -> None:
    """Let what is in flight settle, and say so where somebody looks."""
    if sys.stderr.isatty():
        print(f"Something differs; looking again in {seconds:.0f} s.", file=sys.stderr)
    time.sleep(seconds)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError("must be between 0 and 3600")
    return value
