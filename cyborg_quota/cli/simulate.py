# SPDX-License-Identifier: Apache-2.0
"""limit simulate: what other limits would have refused, for a trace or for the ledger's own history."""

from __future__ import annotations

import contextlib
import datetime
import os
from typing import TYPE_CHECKING, Final

from cyborg_quota import exceptions
from cyborg_quota.cli import base
from cyborg_quota.cli.db import open_database
from cyborg_quota.cli.errors import BadUsage, Located
from cyborg_quota.cli.limit_file import read_document
from cyborg_quota.cli.replay_export import exported
from cyborg_quota.surface import arguments, formats
from cyborg_quota.surface.operations import Argument, Column, Operation, columns

if TYPE_CHECKING:
    from cyborg_quota.limits.timeline import LimitSet
    from cyborg_quota.replay.simulation import Comparison, Outcome
    from cyborg_quota.replay.traces import Trace
    from cyborg_quota.types.limits import Violation

LEDGER: Final = "ledger"
COLUMNS: Final = (
    Column("project_id", formats.OptionalProject),
    *columns("resource", "refused_before", "refused_after", "peak"),
    *columns("limit_before", "limit_after", cell=formats.Limit),
    Column("bound_by", formats.OptionalProject),
)
_PROGRESS_EVENTS: Final = 1000


def _outcomes(run: base.Run, file: str, against: str, since: int | None, chart: str | None) -> list[Outcome]:
    """Simulate a document of limits, and set the refusal by the enforcement model.

    Raises UnknownResource, BadUsage, TraceError, and Located for an invalid document or an event that is impossible.
    """
    if since is not None and against != LEDGER:
        raise BadUsage("--since needs --against ledger: a trace is read from its start.")
    if chart is not None:
        from cyborg_quota.replay import charts

        charts.require(chart)
    from cyborg_quota.replay.traces import Trace

    before, after, problems = _limit_sets(run, file)
    with contextlib.ExitStack() as stack:
        path = against
        if against == LEDGER:
            path = f"/dev/fd/{stack.enter_context(exported(run.conf, since)).fileno()}"
        comparison = _compare(run, Trace(path), before, after, records=chart is not None)
    outcomes = comparison.outcomes()
    limited = {*after.tree.resources, *(override.resource for override in after.overrides), *after.totals}
    unknown = limited - set(run.conf.quota.resources) - {outcome.resource for outcome in outcomes}
    unknown -= {*before.tree.resources, *(override.resource for override in before.overrides), *before.totals}
    if unknown and (unknown := unknown.difference(resource.name for resource in run.engine.list_resources())):
        raise exceptions.UnknownResource(unknown, run.engine.resources)
    # (After the errors, which are one line.)
    if before.overrides or after.overrides:
        run.print_message("Overrides are not applied: a simulation compares the limits without them.")
    if any(key.pod for limits in (before, after) for key in limits.tree.project_limits):
        run.print_message("Limits per pod are not applied: an event of a trace names no pod.")
    if chart is not None:
        _draw(chart, file, against, comparison)
    if problems:
        run.refusal = exceptions.LimitRefused(problems)
    return outcomes


def present_limits(run: base.Run) -> LimitSet:
    """The limits that are set, with the overrides that have not ended and the enforced total limits, in memory.

    Raises BadUsage for a limit driver that cannot list them.
    """
    from cyborg_quota.limits import changes as limit_changes
    from cyborg_quota.limits.sources.database import DatabaseLimitDriver
    from cyborg_quota.limits.timeline import LimitSet

    driver = DatabaseLimitDriver.from_conf(run.conf)
    if run.conf.limits.driver != "database":
        try:
            limits = run.engine.limits.list_limits(run.context)
        except exceptions.InvalidRequest:
            raise BadUsage(
                f"[limits] driver = {run.conf.limits.driver} cannot list the limits of all projects, which a "
                "simulation compares with the new ones. Set the driver database, config or noop for this command, as "
                "in OS_LIMITS__DRIVER=noop."
            ) from None
        return LimitSet.of_every_project({limit.resource: limit.limit for limit in limits})
    with open_database(run.conf) as database:
        stored = limit_changes.read_all(database, driver.initial_limits)
    totals = {total.resource: total.limit for total in stored.totals}
    return LimitSet(stored.tree, driver.model, run.conf.limits.missing == "unlimited", stored.overrides, totals)


def _limit_sets(run: base.Run, file: str) -> tuple[LimitSet, LimitSet, list[Violation]]:
    """The present limits, the new ones, and why the enforcement model refuses the new ones."""
    from cyborg_quota.db import overrides as override_rows
    from cyborg_quota.limits import changes as limit_changes
    from cyborg_quota.limits import document
    from cyborg_quota.limits.limit_tree import LimitTree
    from cyborg_quota.limits.sources.database import DatabaseLimitDriver
    from cyborg_quota.limits.timeline import LimitSet

    try:
        wanted = document.read(read_document(file))
    except exceptions.InvalidDocument as error:
        raise Located(ascii("stdin" if file == "-" else file), error) from None
    before = present_limits(run)
    driver = DatabaseLimitDriver.from_conf(run.conf)
    is_database = run.conf.limits.driver == "database"
    tree = before.tree if is_database else LimitTree({}, {}, {}, driver.initial_limits)
    totals = {resource: limit for resource, limit in {**before.totals, **wanted.totals}.items() if limit is not None}
    now = datetime.datetime.min  # without overrides, no time counts
    if wanted.new_overrides or before.overrides:
        with open_database(run.conf) as database:
            now = database.read(override_rows.now)
    generation = 1 + max((override.made[0] for override in before.overrides), default=0)
    planned, changes = limit_changes.plan(tree, before.overrides, now, wanted, generation)
    after = LimitSet(planned.tree, driver.model, before.missing_is_unlimited, planned.overrides, totals)
    return before, after, limit_changes.find_problems(driver, planned, changes)


def _compare(run: base.Run, trace: Trace, before: LimitSet, after: LimitSet, *, records: bool) -> Comparison:
    from cyborg_quota.driver import DbQuotaDriver
    from cyborg_quota.limits.sources.database import DatabaseLimitDriver
    from cyborg_quota.replay.simulation import Comparison

    enforcers = DbQuotaDriver.from_conf(run.conf, DatabaseLimitDriver.from_conf(run.conf)).enforcers
    comparison = Comparison(before, after, counters_of=enforcers.counters_of, records=records)
    with base.progress_bar(max(trace.lines - 1, 0), "events") as progress:
        for event in trace:
            try:
                comparison.add(event)
            except exceptions.QuotaError as error:
                raise Located(f"{trace.name}, line {event.line}", error) from error
            if event.line % _PROGRESS_EVENTS == 0:
                progress(_PROGRESS_EVENTS)
    return comparison


def _draw(chart: str, file: str, against: str, comparison: Comparison) -> None:
    from cyborg_quota.replay import charts

    panels = [
        charts.Panel(
            formats.OptionalProject(key[0]).human_readable(),
            key[1],
            held=after,
            limit=comparison.after.limits.limit(*key[:2]),
            before=before,
            limit_before=comparison.before.limits.limit(*key[:2]),
        )
        for key, (before, after) in comparison.series.items()
    ]
    name = "the ledger" if against == LEDGER else os.path.basename(against)
    title = f"{os.path.basename(file)} against {name}"
    charts.draw(chart, title.encode("ascii", "backslashreplace").decode(), panels)


Simulate = base.generate(
    Operation(
        """Show which claims of a trace other limits would have refused. Writes nothing.

        NEW.yaml has the format of `limits import`; what it does not mention stays as
        it is now. The trace is run in memory, once under the present limits and once
        under the new ones. Prints a row for each project and resource, the most
        refusals first: refused_before and refused_after are the numbers of refused
        claims, peak is the largest amount that was held under the present limits, and
        bound_by is the project whose new limit refused most of the claims, or (total).
        Where limits include the descendants of a project, so does peak. A resource with
        a total limit has a row (total): what all projects hold together. Overrides and
        limits per pod are not applied. If the enforcement model does not allow the new limits,
        prints the rows and then the reasons, and exits with 1.
        """,
        "cyborg-quota simulate new.yaml --against trace.csv --chart new.svg\n"
        "  cyborg-quota simulate new.yaml --against ledger --since 30d -f json",
        _outcomes,
        (
            Argument("file", metavar="NEW.yaml", help="the limits, in the format of `limits import`; - is stdin"),
            Argument(
                "--against",
                required=True,
                metavar="TRACE|ledger",
                help="a trace file (see `replay`), or the word ledger for the history of the configured ledger",
            ),
            arguments.SINCE,
            Argument(
                "--chart",
                metavar="FILE",
                help="draw the amounts held under both limits, with a panel for each project and resource, as FILE.png "
                "or FILE.svg (needs cyborg_quota[chart])",
            ),
        ),
        COLUMNS,
    )
)
