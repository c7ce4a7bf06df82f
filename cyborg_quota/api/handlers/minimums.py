# SPDX-License-Identifier: Apache-2.0
"""The minimums of a project."""

from __future__ import annotations

from cyborg_quota.api.call import Call, Json, render
from cyborg_quota.limits import operations


def set_minimums(call: Call) -> Json:
    """PUT /v2/quotas/{project_id}/minimums"""
    wanted, dry_run = call.body["minimums"], call.body.get("dry_run", False)
    if any(wanted.values()):
        call.require_project(call.project_id)
    changes, refusal, warnings = operations.set_minimums(
        call, call.project_id, wanted, reason=call.body.get("reason"), dry_run=dry_run
    )
    return {
        "changes": [render("PlannedChange", change) for change in changes],
        "problems": [] if refusal is None else refusal.problems,
        "warnings": warnings,
    }
