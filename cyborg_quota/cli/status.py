# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota-status: checks whether the installed release can run, before it is started.

cyborg-quota-status upgrade check [--json]      exits with 0 (success), 1 (warnings) or 2 (failures)
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

import cyborg_quota
from cyborg_quota import exceptions, validation
from cyborg_quota.cli.db import open_database
from cyborg_quota.cli.errors import open_streams, run_program
from cyborg_quota.cli.reconcile import wait
from cyborg_quota.conf import loading

PROG: Final = "cyborg-quota-status"
ABOUT: Final = """\
Checks whether the installed cyborg_quota can run with its configuration: `cyborg-quota-status upgrade check`.
`cyborg-quota-status upgrade --help` explains the checks and the exit statuses.
"""
HELP: Final = """\
Checks whether the installed cyborg_quota can run with its configuration. Run it before a service
is started, after an upgrade, and to diagnose a problem. It writes nothing. The checks:

  configuration     Does something read each option in the files?
  database          Do the tables have the revision of this release?
  limits            Does the limit driver answer, and does it limit anything?
  total limits      Is each of them enforced?
  counters          Do the counters of usage and of inventories match the reservations?
  Cyborg's version  Does it have all that cyborg_quota needs, and is it a tested version?
  resource classes  Can all resource classes of the device profiles be charged?
  Cyborg's records  Does the ledger match the attached accelerators?

On a host without Cyborg, the last three are not checked (Success), unless [cyborg] config_file
or --cyborg-config-file says that Cyborg should be there. So the command also serves as a health check of the ledger.
"""
EXITS: Final = """\
exit status:
  0  all checks succeeded
  1  it can run, but at least one check is a Warning that needs attention
  2  it cannot run: at least one check is a Failure
"""

Result = upgradecheck.Result
SUCCESS, WARNING, FAILURE = upgradecheck.Code.SUCCESS, upgradecheck.Code.WARNING, upgradecheck.Code.FAILURE


class Checks(upgradecheck.UpgradeCommands):
    """The checks, one row of the table each. A QuotaError in a check makes its result a Failure."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._upgrade_checks = (
            ("configuration", (Checks._run_check, {"check": self._configuration})),
            ("database", (Checks._run_check, {"check": self._database})),
            ("limits", (Checks._run_check, {"check": self._limits})),
            ("total limits", (Checks._run_check, {"check": self._total_limits})),
            ("counters", (Checks._run_check, {"check": self._counters})),
            ("Cyborg's version", (Checks._run_check, {"check": self._version, "is_of_cyborg": True})),
            ("resource classes", (Checks._run_check, {"check": self._classes, "is_of_cyborg": True})),
            ("Cyborg's records", (Checks._run_check, {"check": self._records, "is_of_cyborg": True})),
        )

    def _run_check(self, check: Callable[[], Result], *, is_of_cyborg: bool = False) -> Result:
        from cyborg_quota.cyborg import compatibility

        is_installed = any(importlib.metadata.distributions(name=compatibility.DISTRIBUTION))
        if is_of_cyborg and not self._conf.cyborg.config_file and not is_installed:
            return Result(SUCCESS, "not checked: Cyborg is not installed in this Python environment")
        try:
            return check()
        except (exceptions.QuotaError, cfg.Error) as error:
            return Result(FAILURE, str(error))

    def _configuration(self) -> Result:
        from cyborg_quota.conf import check

        # The limit driver registers its options when it is made. Its errors are reported by the check "limits".
        with contextlib.suppress(exceptions.QuotaError, cfg.Error), self._engine():
            pass
        unknown = "; ".join(check.find(self._conf))
        return Result(FAILURE, unknown) if unknown else Result(SUCCESS, "every option of the files is read")

    def _database(self) -> Result:
        from cyborg_quota.db import schema

        with open_database(self._conf, verified=False) as database:
            revision = database.read(schema.revision_of)
        if revision == schema.HEAD:
            return Result(SUCCESS, f"at revision {revision}")
        if revision is not None and revision not in schema.REVISIONS:
            return Result(WARNING, f"at revision {revision}, made by a newer release of cyborg_quota")
        needed = f"this release needs {schema.HEAD}; run: cyborg-quota db sync"
        return Result(FAILURE, f"at revision {revision or 'none'}, {needed}")

    def _engine(self) -> contextlib.closing[cyborg_quota.QuotaEngine]:
        return contextlib.closing(cyborg_quota.make_engine(self._conf))

    def _limits(self) -> Result:
        """Query the limits of a project that does not exist: a working driver answers with its defaults."""
        with self._engine() as engine:
            usages = engine.get_usages(validation.admin_context(), PROG)
        limits = ", ".join(f"{resource} {usage.limit}" for resource, usage in sorted(usages.items()))
        if self._conf.limits.driver == "noop":
            return Result(WARNING, "[limits] driver is noop: nothing is limited; set another driver")
        return Result(SUCCESS, f"[limits] driver {self._conf.limits.driver} answers; limits of a new project: {limits}")

    def _total_limits(self) -> Result:
        if self._conf.limits.driver != "database":
            return Result(SUCCESS, f"[limits] driver {self._conf.limits.driver} has none")
        with self._engine() as engine:
            totals = ", ".join(total.resource for total in engine.limits.list_total_limits(validation.admin_context()))
        return Result(SUCCESS, f"enforced: {totals}" if totals else "none is set")

    def _counters(self) -> Result:
        with self._engine() as engine:
            drifts = engine.audit(validation.admin_context())
        warning = f"{len(drifts)} differ from the reservations: cyborg-quota audit, then heal"
        return Result(WARNING, warning) if drifts else Result(SUCCESS, "agree with the reservations")

    def _version(self) -> Result:
        from cyborg_quota.cyborg import compatibility

        compatibility.check_services()
        version = compatibility.version()
        if compatibility.major(version) in compatibility.TESTED:
            return Result(SUCCESS, version)
        return Result(
            WARNING, f"{version} has all that cyborg_quota needs; tested with Cyborg {compatibility.TESTED_TEXT}"
        )

    def _classes(self) -> Result:
        from cyborg_quota.conf import resource_rules
        from cyborg_quota.cyborg import cyborg_host

        records = cyborg_host.records(self._conf)
        refused: dict[str, str] = {}
        for group in records.groups():
            try:
                records.resource_map.deltas(group)
            except resource_rules.ClassNotCounted as error:
                refused[error.resource_class] = error.reason
        if refused:
            return Result(WARNING, "; ".join(f"{name} cannot be bound: {why}" for name, why in sorted(refused.items())))
        return Result(SUCCESS, "all classes of the device profiles can be charged")

    def _records(self) -> Result:
        from cyborg_quota.cyborg import cyborg_host

        with self._engine() as engine:
            report = cyborg_host.reconciler(self._conf, engine, cyborg_host.records(self._conf), wait=wait).find()
        if report.differences:
            return Result(WARNING, f"{report.total} of {report.compared} accelerators differ: cyborg-quota reconcile")
        return Result(SUCCESS, f"agree with the ledger on {report.compared} accelerators")


def _add_command(conf: Any, checks: Checks) -> None:
    """Register the command as oslo.upgradecheck does, with a help text, and accept only `check` as its argument."""

    def add(subparsers: Any) -> None:
        layout = {"formatter_class": argparse.RawDescriptionHelpFormatter, "description": HELP, "epilog": EXITS}
        names = {"prog": f"{PROG} upgrade", "usage": argparse.SUPPRESS}  # (see _run)
        upgrade = subparsers.add_parser("upgrade", help="upgrade check: run all checks", **names, **layout)
        upgrade.add_argument("check", choices=["check"], help="run all checks")
        upgrade.add_argument("--json", action="store_true", help="print JSON, not a table")
        upgrade.add_argument(
            "--cyborg-config-file",
            action="append",
            metavar="FILE",
            help="Cyborg's configuration; may be repeated (default: [cyborg] config_file, or Cyborg's default files)",
        )
        upgrade.set_defaults(action_fn=checks.check)

    conf.register_cli_opt(cfg.SubCommandOpt("command", title="command", handler=add))
    upgradecheck.CONF = conf  # oslo.upgradecheck reads --json from it


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks; returns the exit status."""
    open_streams()
    logging.getLogger().addHandler(logging.NullHandler())  # do not print the log lines of libraries beside the table
    return run_program(PROG, lambda: _run(sys.argv[1:] if argv is None else argv), has_debug=False)


def _run(argv: Sequence[str]) -> int:
    conf: Any = cfg.ConfigOpts()
    _add_command(conf, Checks(conf))
    # Without the usage, an error in the arguments is one line.
    more = {"usage": argparse.SUPPRESS, "version": cyborg_quota.__version__, "description": ABOUT}
    loading.load(conf, argv, PROG, **more)
    if conf.command.cyborg_config_file:
        conf.set_override("config_file", conf.command.cyborg_config_file, group="cyborg")
    return int(upgradecheck.run(conf))


if __name__ == "__main__":
    sys.exit(main())
