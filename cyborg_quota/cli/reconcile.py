# SPDX-License-Identifier: Apache-2.0
"""reconcile: compare the ledger with Cyborg's records."""

from __future__ import annotations

import functools
import sys
import time
from typing import TYPE_CHECKING, Any

from cyborg_quota.cli import base
from cyborg_quota.cli.errors import REFUSED
from cyborg_quota.surface import arguments
from cyborg_quota.surface.operations import Argument, Operation, cells

if TYPE_CHECKING:
    from cyborg_quota.cyborg.diff import Report


def _reconcile(
    run: base.Run,
    cyborg_config_file: list[str] | None,
    grace: int | None,
    claim_source: str | None,
    *,
    heal: bool,
    force: bool,
) -> list[tuple[Any, ...]]:
    from cyborg_quota.cyborg import cyborg_host, diff

    if cyborg_config_file:
        run.conf.set_override("config_file", cyborg_config_file, group="cyborg")
    records = cyborg_host.records(run.conf)
    reconciler = cyborg_host.reconciler(run.conf, run.engine, records, grace, wait=wait)
    if claim_source is not None:
        count = reconciler.claim_source(claim_source or None)
        before = f"the source {claim_source}" if claim_source else "none"
        run.print_message(f"set the source of {count} charges that had {before}.")
    report = reconciler.find()
    for resource_class, reason in sorted(records.uncounted.items()):
        run.print_message(f"resource class {resource_class} is not counted: {reason}")
    differences, done = report.differences, set()
    if differences and heal:
        with base.progress_bar(len(differences), "accelerators") as progress:
            changed = reconciler.heal(report, force=force, progress=progress)
        done = {difference.arq for difference in changed if difference.problem != "released, not charged"}
        failed = sum(difference.is_own and difference.arq not in done for difference in report.differences)
        run.print_message(f"Differences repaired: {len(done)}.")
        if failed:
            run.status = REFUSED
            run.print_message(f"{failed} differences were not repaired; the log has the reasons.")
        differences = list({difference.arq: difference for difference in [*report.differences, *changed]}.values())
    elif differences:
        run.status = REFUSED
    _report_others(run, report)
    return [
        (
            difference.arq,
            difference.problem,
            "" if difference.attached is None else difference.attached.instance,
            ", ".join(sorted({charge.source or "none" for charge in difference.charges})),
            diff.format_amounts(difference.before),
            diff.format_amounts(difference.after),
            "repaired" if difference.arq in done else "not repaired",
        )
        for difference in sorted(differences, key=lambda difference: difference.arq)
    ]


def _report_others(run: base.Run, report: Report) -> None:
    """Report the differences that are not repaired with --heal, or not even listed."""
    unclaimed = sum(not difference.is_own for difference in report.differences) + report.omitted_others
    omitted = report.omitted_own + report.omitted_others
    if unclaimed:
        run.status = REFUSED
        run.print_message(
            f"{unclaimed} of these ARQs have charges without a source, or of another source; they are not "
            "repaired. The charges of another program, such as `cyborg-quota reserve`, belong to that program: do "
            "not claim them. If all belong to this Cyborg, run: cyborg-quota reconcile --claim-source, or, for "
            "charges of its old source: cyborg-quota reconcile --claim-source FROM"
        )
    if report.unclaimed:
        run.print_message(
            f"{report.unclaimed} more ARQs are charged correctly, but without a source: their charges will not be "
            "released automatically. If all belong to this Cyborg, run: cyborg-quota reconcile --claim-source"
        )
    if omitted:
        run.status = REFUSED
        run.print_message(
            f"{omitted} further differences are not listed. Run the command again when those above are repaired."
        )


def wait(seconds: float) -> None:
    """Wait for the grace period, so that binds in progress can finish; say so on a terminal."""
    if sys.stderr.isatty():
        print(f"Found differences; comparing again in {seconds:.0f} s.", file=sys.stderr)
    time.sleep(seconds)


Reconcile = base.generate(
    Operation(
        """Compare the charges in the ledger with the accelerators attached in Cyborg.

        If there are differences, prints a row for each ARQ (what is charged, what
        Cyborg has attached) and exits with 1; otherwise prints nothing and exits with
        0. Only a difference that persists for the grace period is reported, so that
        binds in progress are not. Writes nothing, unless --heal is given.

        With --heal, changes the ledger to match Cyborg's records, regardless of the
        limits: charges what is attached and not charged, releases what is charged and
        not attached. It says how many differences were repaired, and the column
        result says which. On a cloud that ran before the quota was
        installed, `reconcile --heal --force` charges all attached accelerators.

        Only charges with the [cyborg] source of this Cyborg are changed. Charges of
        another source are ignored. Charges without a source are printed and not
        changed, until --claim-source assigns them to this Cyborg. If [cyborg] source
        was changed, --claim-source OLD-NAME assigns the charges of the old name. Do not
        run it while another Cyborg uses that name.
        """,
        "cyborg-quota reconcile --heal",
        _reconcile,
        (
            Argument("--heal", action="store_true", help="repair the differences"),
            Argument(
                "--force",
                action="store_true",
                help="repair even if the share of changes is more than [cyborg] reconcile_share allows, or if Cyborg's "
                "records have become fewer",
            ),
            Argument(
                "--claim-source",
                nargs="?",
                const="",
                metavar="FROM",
                help="first set [cyborg] source on the charges whose source is FROM, the old name of this Cyborg; "
                "without FROM, on the charges that have none. Do not use it if another Cyborg or program charges the "
                "same resources with the source FROM, or without a source",
            ),
            Argument(
                "--grace",
                type=functools.partial(arguments.integer, minimum=0, maximum=3600),
                metavar="SECONDS",
                help="how long a difference must persist (default: [cyborg] reconcile_grace)",
            ),
            Argument(
                "--cyborg-config-file",
                action="append",
                metavar="FILE",
                help="Cyborg's configuration; may be repeated (default: [cyborg] config_file, or Cyborg's default "
                "files)",
            ),
        ),
        cells("arq", "problem", "instance", "source", "charged", "attached", "result"),
        has_names=False,
        noun="",
    )
)
