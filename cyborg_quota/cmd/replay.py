# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota replay: what a trace comes to, under these limits."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

from cliff.formatters.base import ListFormatter

from cyborg_quota.cmd import arguments, base, formats
from cyborg_quota.cmd.db import open_database
from cyborg_quota.cmd.errors import one_line
from cyborg_quota.replay.totals import ADMITTED, OUTCOMES, REFUSED
from cyborg_quota.replay.traces import Trace
from cyborg_quota.types import UNLIMITED

PROJECT_COLUMNS = ("project_id", "resource", "limit", "admitted", "refused", "used", "reserved")


class Replay(base.ShowOne):
    """Charge a trace, event by event, and say what was admitted and what refused.

    TRACE is a CSV file: time,event,consumer,project,resource,amount; the events
    are reserve, commit, rollback and release. Each is a transaction of its own.
    The later events of a refused consumer are skipped.

    Stopped at any moment and started again on the same database, it goes on
    where it was and ends with the same totals. Its resources need not be
    registered. Use a database of its own: everything is charged for good.
    """

    example = "cyborg-quota replay trace.csv --limit gpu=50 -f json"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("trace", metavar="TRACE", help="the CSV file")
        parser.add_argument(
            "--limit",
            action="append",
            type=arguments.limit,
            default=[],
            metavar="RESOURCE=N",
            help="every project's limit for this run, as in gpu=50; may be repeated; replaces the "
            "configuration's limits (default: what [limits] says)",
        )
        parser.add_argument(
            "--chart",
            metavar="FILE.png",
            help="draw what was held over the trace's time, the limit and the refusals (needs cyborg_quota[chart])",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        limits = arguments.once_each(parsed_args.limit, "limits")
        self._limit(limits)
        if parsed_args.chart is not None:
            from cyborg_quota.replay import charts

            charts.require(parsed_args.chart)
        trace = Trace(parsed_args.trace)
        session, seconds = self._run(trace)
        for resource in sorted(limits.keys() - {key[1] for key in session.tally.by_project}):
            self._say(f"the trace has no {resource}, which --limit names")
        if parsed_args.chart is not None:
            charts.draw(parsed_args.chart, trace, session.refused, self._limits(session.tally.by_project))
        return self._report(session, seconds)

    def _limit(self, limits: dict[str, int]) -> None:
        """Before the engine is made: it reads them then. A trace may keep as much open as it likes."""
        self.conf.set_override("max_open_reservations", -1, group="quota")
        if limits:
            self.conf.set_override("driver", "config", group="limits")
            self.conf.set_override("limits", limits, group="limits")

    def _run(self, trace: Trace) -> tuple[Any, float]:
        from cyborg_quota.replay import replay

        with (
            open_database(self.conf) as database,
            base.progress_bar(max(trace.lines - 1, 0), "events") as progress,
        ):
            position = replay.Position(database, trace.digest, self._terms())
            session = replay.Replay(self.engine, self.context, trace, position, progress)
            began = time.monotonic()
            try:
                session.run()
            except KeyboardInterrupt:
                self._say(f"stopped after {session.tally.events} events; run it again to go on")
                raise
            seconds = time.monotonic() - began
        if session.is_resumed and not session.done:
            self._say("this trace had been replayed already; nothing was done")
        elif session.is_resumed:
            self._say(f"went on behind event {session.tally.events - session.done}")
        return session, seconds

    def _terms(self) -> dict[str, Any]:
        """What the totals depend on beside the trace, as far as the configuration has it."""
        driver = self.conf.limits.driver
        return {"driver": driver, "limits": dict(self.conf.limits.limits) if driver == "config" else {}}

    def _limits(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        wanted = set(keys)
        return {
            (record.project_id, record.resource): record.usage.limit
            for record in self.engine.list_usages(self.context)
            if (record.project_id, record.resource) in wanted and record.usage.limit is not None
        }

    def _report(self, session: Any, seconds: float) -> tuple[Sequence[str], Iterable[Any]]:
        tally = session.tally
        usages = {(one.project_id, one.resource): one.usage for one in self.engine.list_usages(self.context)}
        projects = []
        for key, outcomes in sorted(tally.by_project.items()):
            usage = usages.get(key)
            figures = (UNLIMITED, 0, 0) if usage is None else (usage.limit, usage.used, usage.reserved)
            values = (*key, figures[0], outcomes[ADMITTED], outcomes[REFUSED], *figures[1:])
            projects.append(dict(zip(PROJECT_COLUMNS, values, strict=True)))
        report = {
            "events": tally.events,
            **{outcome: tally.totals[outcome] for outcome in OUTCOMES},
            "used": sum(one["used"] for one in projects),
            "reserved": sum(one["reserved"] for one in projects),
            "seconds": round(seconds, 3),
            "events_per_second": round(session.done / seconds, 1) if session.done and seconds else None,
            "projects": projects,
        }
        return tuple(report), tuple(report.values())

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        """Programs get one object; a person gets the projects, then the totals; CSV has the projects alone."""
        *totals, projects = data
        rows = [list(one.values()) for one in projects]
        if parsed_args.formatter == "csv":
            self._lister.emit_list(PROJECT_COLUMNS, rows, self.app.stdout, parsed_args)
            return 0
        if parsed_args.formatter in ("json", "yaml"):
            return super().produce_output(parsed_args, column_names, data)
        if parsed_args.formatter == formats.TABLE and rows and not parsed_args.columns:
            limit = PROJECT_COLUMNS.index("limit")
            shown = [formats.person([*row[:limit], formats.Limit(row[limit]), *row[limit + 1 :]]) for row in rows]
            self._lister.emit_list(PROJECT_COLUMNS, shown, self.app.stdout, parsed_args)
        return super().produce_output(parsed_args, column_names[:-1], [formats.Optional(value) for value in totals])

    @property
    def _lister(self) -> ListFormatter:
        # cliff's table and our CSV are formatters of lists as well.
        return cast(ListFormatter, self.formatter)

    def _say(self, text: str) -> None:
        print(f"{self.app.NAME}: {one_line(text)}", file=sys.stderr)
