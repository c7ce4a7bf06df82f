# SPDX-License-Identifier: Apache-2.0
"""The minimums of a project."""

from __future__ import annotations

from cyborg_quota import exceptions
from cyborg_quota.api.call import Call, Json, render
from cyborg_quota.limits import operations


def set_minimums(call: Call) -> Json:
    """PUT /v2/quotas/{project_id}/minimums"""
    wanted, dry_run = call.body["minimums"], call.body.get("dry_run", False)
    problems: list[str] = []
    try:
        changes = call.engine.limits.set_minimums(
            call.context, wanted, call.project_id, reason=call.body.get("reason"), dry_run=dry_run
        )
    except exceptions.LimitRefused as refused:
        if not dry_run:
            raise
        changes, problems = refused.changes, refused.problems
    return {
        "changes": [render("PlannedChange", change) for change in changes],
        "problems": problems,
        "warnings": operations.warnings_of_minimums(call, call.project_id, wanted),
    }
