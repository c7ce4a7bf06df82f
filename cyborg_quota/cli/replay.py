# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota replay: run a trace through the engine under given limits, and report the outcome."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from cliff.formatters.base import ListFormatter

from cyborg_quota.cli import base, output
from cyborg_quota.cli.db import open_database
from cyborg_quota.replay.totals import ADMITTED, OUTCOMES, REFUSED
from cyborg_quota.replay.traces import Trace
from cyborg_quota.surface import arguments, formats
from cyborg_quota.surface.operations import Argument, Operation, Table, cells
from cyborg_quota.types import UNLIMITED, Usage

PROJECT_COLUMNS = ("project_id", "resource", "limit", "admitted", "refused", "used", "reserved")


def _replay(run: base.Run, trace: str, limit: dict[str, int], provider: str | None, chart: str | None) -> Table:
    if limit:  # before the engine reads them
        run.conf.set_override("driver", "config", group="limits")
        run.conf.set_override("limits", limit, group="limits")
    if chart is not None:
        from cyborg_quota.replay import charts

        charts.require(chart)
    events = Trace(trace)
    session, seconds = _apply(run, events, provider)
    records = run.engine.list_usages(run.context)
    usages = {(record.project_id, record.resource): record.usage for record in records}
    if chart is not None:
        drawn = {key: usage.limit for key, usage in usages.items()}
        panels = charts.replay_panels(events, session.refused, drawn)
        charts.draw(chart, f"Replay of {os.path.basename(events.name)}", panels)
    return _report(session, usages, seconds, has_provider=provider is not None)


def _apply(run: base.Run, trace: Trace, provider: str | None) -> tuple[Any, float]:
    from cyborg_quota.replay import replay, tables

    with (
        open_database(run.conf) as database,
        base.progress_bar(max(trace.lines - 1, 0), "events") as progress,
    ):
        # The configuration on which the totals depend.
        configured = run.conf.limits
        terms = {
            "driver": configured.driver,
            "limits": dict(configured.limits) if configured.driver == "config" else {},
            **({} if provider is None else {"provider": provider}),
        }
        if configured.driver == "database":
            document = run.engine.limits.export_limits(run.context)
            # (Without those of which only the ID is known: the replay adds projects.)
            document["projects"] = [project for project in document["projects"] if len(project) > 1]
            text = json.dumps([configured.enforcement_model, document], default=str)
            terms["limits"] = hashlib.sha256(text.encode()).hexdigest()[:16]
        position = tables.Position(database, trace.digest, terms)
        session = replay.Replay(run.engine, run.context, trace, position, progress, provider=provider)
        began = time.monotonic()
        try:
            session.run()
        except KeyboardInterrupt:
            run.print_message(f"interrupted after {session.tally.events} events; run the command again to resume")
            raise
        seconds = time.monotonic() - began
    if session.is_resumed and not session.done:
        run.print_message("this trace was already replayed on this database; nothing to do")
    elif session.is_resumed:
        run.print_message(f"resumed after event {session.tally.events - session.done}")
    return session, seconds


def _report(session: Any, usages: Mapping[tuple[str, str], Usage], seconds: float, *, has_provider: bool) -> Table:
    tally = session.tally
    projects = []
    for key, outcomes in sorted(tally.by_project.items()):
        usage = usages.get(key)
        amounts = (UNLIMITED, 0, 0) if usage is None else (usage.limit, usage.used, usage.reserved)
        values = (*key, amounts[0], outcomes[ADMITTED], outcomes[REFUSED], *amounts[1:])
        projects.append(dict(zip(PROJECT_COLUMNS, values, strict=True)))
    report = {
        "events": tally.events,
        **{outcome: tally.totals[outcome] for outcome in OUTCOMES},
        **({"placed": tally.placed, "over_capacity": len(session.over_capacity)} if has_provider else {}),
        "used": sum(project["used"] for project in projects),
        "reserved": sum(project["reserved"] for project in projects),
        "seconds": round(seconds, 3),
        "events_per_second": round(session.done / seconds, 1) if session.done and seconds else None,
        "projects": projects,
    }
    return Table(cells(*report), tuple(report.values()))


class _Report(base.ShowOne):
    """Prints the totals, and the projects as a table of their own."""

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        """Print one object as JSON or YAML, the projects and the totals as tables, and otherwise the totals."""
        *totals, projects = data
        if parsed_args.formatter in ("json", "yaml"):
            return super().produce_output(parsed_args, column_names, data)
        if parsed_args.formatter == output.TABLE and projects and not parsed_args.columns:
            cells = [
                output.human({**project, "limit": formats.Limit(project["limit"])}.values()) for project in projects
            ]
            lister = cast(ListFormatter, self.formatter)  # cliff's table can also print lists
            lister.emit_list(PROJECT_COLUMNS, cells, self.app.stdout, parsed_args)
        return super().produce_output(parsed_args, column_names[:-1], [formats.Optional(value) for value in totals])


Replay = base.generate(
    Operation(
        """Replay a trace, event by event, and print what was admitted and refused.

        TRACE is a CSV file: time,event,consumer,project,resource,amount; the events
        are reserve, commit, rollback and release. Each event is one transaction. After
        a refused reserve, the other events of its consumer are skipped.

        A replay that was interrupted resumes when it is started again on the same
        database, and ends with the same totals. The resources of the trace need not be
        registered. Use a separate database, and one run of a trace at a time: the
        charges are not removed afterwards.

        With --provider, each reserve of a positive amount also claims capacity. placed
        is then the number of those that took it (a repeated reserve does not), and
        over_capacity the number of those that were refused because of the capacity;
        they are among the refused ones.
        """,
        "cyborg-quota replay trace.csv --limit gpu=50 -f json\n  cyborg-quota replay trace.csv --provider any -f json",
        _replay,
        (
            Argument("trace", metavar="TRACE", help="the CSV file"),
            Argument(
                "--limit",
                action="append",
                type=arguments.limit,
                default=[],
                collect=arguments.once_each,
                metavar="RESOURCE=N",
                help="the limit of every project in this run, as in gpu=50; may be repeated; replaces the "
                "configured limits (default: the limits of [limits])",
            ),
            Argument(
                "--provider",
                metavar="PROVIDER",
                help="the provider of each reserve: any, a name or a UUID (default: count the quota only)",
            ),
            Argument(
                "--chart",
                metavar="FILE",
                help="draw usage over time, the limits and the refusals as FILE.png or FILE.svg, with a panel for each "
                "project and resource (needs cyborg_quota[chart])",
            ),
        ),
        (),
        is_list=False,
    ),
    _Report,
)
