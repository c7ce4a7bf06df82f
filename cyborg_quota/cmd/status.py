# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota-status: whether what is installed can run, asked before it is started.

cyborg-quota-status upgrade check [--json]      exits with 0 (all well), 1 (look at it) or 2 (it cannot run)
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

import cyborg_quota
from cyborg_quota import exceptions, validation
from cyborg_quota.cmd.db import open_database
from cyborg_quota.cmd.errors import BAD_USAGE, one_line
from cyborg_quota.cmd.reconcile import wait
from cyborg_quota.conf import loading

PROG: Final = "cyborg-quota-status"
ABOUT: Final = """\
Asks whether the installed cyborg_quota can run, with its configuration. `cyborg-quota-status upgrade check` does it;
`cyborg-quota-status upgrade --help` tells what is looked at, and what the exit status means.
"""
HELP: Final = """\
Asks whether the installed cyborg_quota can run, with its configuration: before a service is
started, after an upgrade, and whenever something looks wrong. It writes nothing. What it looks at:

  database          are its tables those of this release?
  limits            does the limit driver answer?
  project tree      has it edges of another limit driver?
  counters          do they agree with the reservations?
  Cyborg's version  has it all that cyborg_quota needs, and do the tests run with it?
  resource classes  can all that device profiles ask for be charged?
  Cyborg's records  does the ledger agree with what is attached?
"""
EXITS: Final = """\
exit status:
  0  all is well
  1  it can run, and somebody should look at what is a Warning
  2  it cannot run: see what is a Failure
"""

Result = upgradecheck.Result
SUCCESS: Final = upgradecheck.Code.SUCCESS
WARNING: Final = upgradecheck.Code.WARNING
FAILURE: Final = upgradecheck.Code.FAILURE


class Checks(upgradecheck.UpgradeCommands):
    """Each look is one line of the table. An error that is ours is the look's result, not its end."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._upgrade_checks = (
            ("database", (Checks._select_rows, {"look": self._database})),
            ("limits", (Checks._select_rows, {"look": self._limits})),
            ("project tree", (Checks._select_rows, {"look": self._tree})),
            ("counters", (Checks._select_rows, {"look": self._counters})),
            ("Cyborg's version", (Checks._select_rows, {"look": self._version})),
            ("resource classes", (Checks._select_rows, {"look": self._classes})),
            ("Cyborg's records", (Checks._select_rows, {"look": self._records})),
        )

    def _select_rows(self, look: Callable[[], Result]) -> Result:
        try:
            return look()
        except (exceptions.QuotaError, cfg.Error) as error:
            return Result(FAILURE, str(error))

    def _database(self) -> Result:
        from cyborg_quota.db import schema

        with open_database(self._conf, verified=False) as database:
            revision = schema.version(database)
        if revision == schema.head():
            return Result(SUCCESS, f"at revision {revision}")
        if revision is None or revision in schema.REVISIONS:
            return Result(FAILURE, f"at revision {revision or 'none'}, needed is {schema.head()}: cyborg-quota db sync")
        return Result(WARNING, f"at revision {revision}, which a newer release of cyborg_quota has made")

    def _engine(self) -> cyborg_quota.QuotaEngine:
        return cyborg_quota.make_engine(self._conf)

    def _limits(self) -> Result:
        """Whoever has no limit of its own still gets an answer out of a driver that works."""
        engine = self._engine()
        try:
            usages = engine.get_usages(validation.admin_context(), PROG)
        finally:
            engine.close()
        found = ", ".join(f"{resource} {usage.limit}" for resource, usage in sorted(usages.items()))
        return Result(SUCCESS, f"[limits] driver {self._conf.limits.driver} answers; of a new project: {found}")

    def _tree(self) -> Result:
        engine = self._engine()
        try:
            warning = engine.administration.ignored_edges_warning(validation.admin_context())
        finally:
            engine.close()
        return Result(SUCCESS, "no edge is ignored") if warning is None else Result(WARNING, warning)

    def _counters(self) -> Result:
        engine = self._engine()
        try:
            drifts = engine.audit(validation.admin_context())
        finally:
            engine.close()
        if drifts:
            return Result(WARNING, f"{len(drifts)} differ from the reservations: cyborg-quota usage audit, then heal")
        return Result(SUCCESS, "agree with the reservations")

    def _version(self) -> Result:
        from cyborg_quota.integrations.cyborg import compatibility

        compatibility.check_services()
        version = compatibility.version()
        if compatibility.is_tested(version):
            return Result(SUCCESS, version)
        tested = " and ".join(map(str, compatibility.TESTED))
        return Result(WARNING, f"{version} has all that cyborg_quota needs; the tests run with Cyborg {tested}")

    def _classes(self) -> Result:
        from cyborg_quota.integrations.cyborg import cyborg_host, mapping

        records = cyborg_host.records(self._conf)
        refused: dict[str, str] = {}
        for group in records.groups():
            for name in mapping.classes_of(group):
                try:
                    records.resource_map.deltas(group, name)
                except mapping.ClassNotCounted as error:
                    refused[name] = error.reason
        if refused:
            return Result(WARNING, "; ".join(f"{name} cannot be bound: {why}" for name, why in sorted(refused.items())))
        return Result(SUCCESS, "every device profile's can be charged")

    def _records(self) -> Result:
        from cyborg_quota.integrations.cyborg import cyborg_host

        engine = self._engine()
        try:
            report = cyborg_host.reconciler(self._conf, engine, cyborg_host.records(self._conf), wait=wait).find()
        finally:
            engine.close()
        if report.differences:
            return Result(
                WARNING, f"{len(report.differences)} of {report.compared} accelerators differ: cyborg-quota reconcile"
            )
        return Result(SUCCESS, f"agree with the ledger on {report.compared} accelerators")


def _add_command(conf: Any, checks: Checks) -> None:
    """As oslo.upgradecheck does, with help that helps, and nothing taken for `check` that is not."""

    def add(subparsers: Any) -> None:
        layout = {"formatter_class": argparse.RawDescriptionHelpFormatter, "description": HELP, "epilog": EXITS}
        upgrade = subparsers.add_parser("upgrade", help="upgrade check: look at all of it", **layout)
        upgrade.add_argument("check", choices=["check"], help="look at all of it")
        upgrade.add_argument("--json", action="store_true", help="print JSON, not a table")
        upgrade.set_defaults(action_fn=checks.check)

    conf.register_cli_opt(cfg.SubCommandOpt("command", title="command", handler=add))
    upgradecheck.CONF = conf  # where it looks for --json


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks; returns the exit status."""
    logging.getLogger().addHandler(logging.NullHandler())  # what a library logs is in the table, or of no interest
    conf: Any = cfg.ConfigOpts()
    _add_command(conf, Checks(conf))
    try:
        loading.load(
            conf,
            list(sys.argv[1:] if argv is None else argv),
            PROG,
            version=cyborg_quota.__version__,
            description=ABOUT,
        )
        return int(upgradecheck.run(conf))
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else BAD_USAGE
    except (exceptions.QuotaError, cfg.Error) as error:
        print(f"{PROG}: {one_line(str(error))}", file=sys.stderr)
        return BAD_USAGE


if __name__ == "__main__":
    sys.exit(main())
