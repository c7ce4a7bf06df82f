# SPDX-License-Identifier: Apache-2.0
"""Commands on overrides: limit override list, cancel. (`limit set --until` makes them.)"""

from __future__ import annotations

from typing import Any

from cyborg_quota.cli import arguments, base, formats, paging
from cyborg_quota.surface.operations import Argument, Column, Operation, Table, columns


def _list(run: base.Run, **given: Any) -> Table:
    overrides, now = run.engine.limits.list_overrides(run.context, **given)
    shown = (
        *columns("id", "project_id", "resource"),
        Column("limit", formats.Limit),
        Column("from", formats.timestamp, lambda one: one.starts_at),
        Column("until", formats.timestamp),
        Column("is_active", value=lambda one: now is not None and one.starts_at <= now),
        Column("reason", formats.Optional),
    )
    return Table(shown, overrides)


List = base.generate(
    Operation(
        """List the overrides that have not ended, in the order in which they were made.

        Where several overrides of a limit are active, the last one in the list
        applies. is_active is true between from and until, by the database's clock.
        """,
        "cyborg-quota limit override list --project P",
        _list,
        (
            *arguments.project(),
            paging.LIMIT,
            paging.marker("ID", "start after the override with this id"),
            paging.RESOURCE,
        ),
        (),
    )
)

Cancel = base.generate(
    Operation(
        """Cancel overrides. All of them are cancelled, or none.

        The limits that are set without --until apply again. The project keeps what it
        holds.
        """,
        "cyborg-quota limit override cancel 42-0 --reason 'workshop is over'",
        lambda run, **given: run.engine.limits.cancel_overrides(run.context, **given),
        (Argument("ids", nargs="+", metavar="ID", help="the id, as in `limit override list`"), arguments.REASON),
    )
)
