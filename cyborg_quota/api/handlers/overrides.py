# SPDX-License-Identifier: Apache-2.0
"""The overrides of a project: limits that apply between a start and an end."""

from __future__ import annotations

from cyborg_quota import exceptions
from cyborg_quota.api.call import Call, Json, render
from cyborg_quota.api.handlers.history import parse_time
from cyborg_quota.api.handlers.quotas import with_warnings


def set_override(call: Call) -> Json:
    """POST /v2/quotas/{project_id}/overrides"""
    wanted = call.body["override"]
    call.require_project(call.project_id)
    made = call.engine.limits.set_overrides(
        call.context,
        wanted["quota"],
        call.project_id,
        parse_time("until", wanted),
        start=parse_time("start", wanted),
        reason=call.body.get("reason"),
        force=call.body.get("force", False),
    )
    # Several overrides have no address of their own but that of their list.
    call.headers["Location"] = f"{call.url}/{made[0].id}" if len(made) == 1 else call.url
    return with_warnings(call, {"overrides": [render("Override", override) for override in made]}, wanted["quota"])


def get_override(call: Call) -> Json:
    """GET /v2/quotas/{project_id}/overrides/{override_id}"""
    overrides, _ = call.engine.limits.list_overrides(call.elevated, call.project_id)
    for override in overrides:
        if override.id == call.path["override_id"]:
            return {"override": render("Override", override)}
    raise exceptions.OverrideNotFound(call.path["override_id"])
