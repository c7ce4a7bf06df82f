# SPDX-License-Identifier: Apache-2.0
"""The JSON schemas of all bodies and parameters. Requests are validated with them, and openapi.py publishes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cyborg_quota.surface.arguments import AMOUNT, by_resource
from cyborg_quota.surface.operations import (
    BOOLEAN,
    COUNT,
    INTEGER,
    NAME,
    REASON,
    TEXT,
    TIME,
    Schema,
    described,
    nullable,
)
from cyborg_quota.types import (
    MAX_AMOUNT,
    MAX_LIMIT,
    STATES,
    UNLIMITED,
)


def ref(name: str) -> Schema:
    """A reference to a schema of COMPONENTS."""
    return {"$ref": f"#/components/schemas/{name}"}


def object_of(properties: Mapping[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """An object with exactly these properties, all required except ``optional``."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _by_resource(schema: Schema, description: str) -> Schema:
    return {
        "type": "object",
        "description": description,
        "propertyNames": NAME,
        "additionalProperties": schema,
    }


def list_of(name: str, item: Schema, *, paged: bool = True) -> Schema:
    properties = {name: {"type": "array", "items": item}}
    if paged:
        properties[f"{name}_links"] = {"type": "array", "items": ref("Link")}
    return object_of(properties, optional=(f"{name}_links",))


_LIMIT: Final[Schema] = {
    "type": "integer",
    "minimum": UNLIMITED,
    "maximum": MAX_LIMIT,
    "description": f"{UNLIMITED} means unlimited.",
}
_FORCE_PROJECT: Final = described(BOOLEAN, "Do not ask Keystone whether the project exists.")
_FORCE: Final = described(BOOLEAN, "Permit limits below a minimum, or below what is used and promised to minimums.")
_REASON: Final = described(REASON, "Why the limits are changed: one line, for the history.")
_MINIMUM: Final = described(COUNT, "What the project, with all below it, can always reach. Missing: no minimum is set.")
_PROMISED: Final = described(
    COUNT,
    "What the minimums of projects below keep beyond what is in use and reserved there. Missing: nothing, or the "
    "caller may not see it.",
)
_WARNINGS: Final = described(
    {"type": "array", "items": TEXT},
    "A sentence for each resource that was set, if the limits now add up to more than exists; for an admin.",
)
_POD: Final = described(NAME, "The pod, if the call names one.")
_BOUND_POD: Final = described(
    nullable(NAME), "The pod of a limit per pod; null for one over all pods. Present if the call names a pod."
)

_IN_FORCE: Final[Schema] = {
    "type": "string",
    "enum": ["override", "own", "default"],
    "description": "An override that applies now, the project's own limit, or the limit of a project without one.",
}

COMPONENTS: Final[dict[str, Schema]] = {
    "Limit": _LIMIT,
    "Limits": _by_resource(
        nullable(ref("Limit")), "The limit of each resource; null if no limit is set and nothing may be reserved."
    ),
    "Quota": described(
        object_of({"quota": ref("Limits"), "pod": _POD, "warnings": _WARNINGS}, optional=("pod", "warnings")),
        "The limits of a project. If the call names a pod: those in this pod, without the resources that have none.",
    ),
    "Bound": described(
        object_of(
            {"project_id": nullable(NAME), "scope": TEXT, "limit": nullable(INTEGER), "pod": _BOUND_POD},
            optional=("pod",),
        ),
        "What determines ``fits``, if that is not the limit of the project itself (if the call names a pod: its limit "
        "in this pod): the limit of an ancestor (scope "
        "``subtree``), the limit over all projects (``total``; project_id is null), the width of a counter "
        "(``counter``), the hours that are left of a budget (``budget``; limit is null), or that the resource is "
        "registered no longer (``not_registered``).",
    ),
    "Detail": object_of(
        {
            "limit": nullable(ref("Limit")),
            "in_use": COUNT,
            "reserved": COUNT,
            "fits": described(
                {"type": "integer", "minimum": UNLIMITED},
                f"The largest amount that can be reserved now; {UNLIMITED} means unlimited.",
            ),
            "bound_by": nullable(ref("Bound")),
            "override": described(
                nullable(
                    object_of(
                        {
                            "until": TIME,
                            "otherwise": described(
                                nullable(ref("Limit")), "The limit without overrides; null: none is set."
                            ),
                        }
                    )
                ),
                "The override that determines ``limit`` now; null: none does.",
            ),
            "in_force": described(
                nullable(_IN_FORCE), "What ``limit`` is; null: it is set elsewhere, or the call names a pod."
            ),
            "minimum": _MINIMUM,
        },
        optional=("minimum",),
    ),
    "QuotaDetail": described(
        object_of(
            {
                "quota": _by_resource(ref("Detail"), "The state of each resource."),
                "pod": _POD,
                "read_only": described(nullable(TEXT), "Where the limits are set, if not by this API; otherwise null."),
            },
            optional=("pod", "read_only"),
        ),
        f"If the call names a pod: the limits in this pod ({UNLIMITED}: none), and what is held and fits there.",
    ),
    "SetLimits": object_of(
        {
            "quota": described(
                by_resource({**_LIMIT, "type": ["integer", "null"]}),
                "New limits; the limits of other resources stay. null removes a limit.",
            ),
            "pod": described(NAME, "Set limits in this pod, which apply in addition to those over all pods."),
            "force": described(
                BOOLEAN,
                "Permit limits below the usage of the project, which is not changed, or below what is promised to "
                "minimums; and do not ask Keystone whether the project exists.",
            ),
            "reason": _REASON,
        },
        optional=("pod", "force", "reason"),
    ),
    "TotalLimit": {"type": "integer", "minimum": 0, "maximum": MAX_LIMIT},
    "Totals": object_of(
        {
            "quota": _by_resource(
                object_of(
                    {
                        "limit": ref("TotalLimit"),
                        "held": described(COUNT, "What all projects have in use and reserved."),
                        "promised": _PROMISED,
                    },
                    optional=("promised",),
                ),
                "The total limit of each resource that has one.",
            ),
            "quota_links": {"type": "array", "items": ref("Link")},
            "warnings": _WARNINGS,
        },
        optional=("quota_links", "warnings"),
    ),
    "SetTotals": object_of(
        {
            "quota": described(by_resource(ref("TotalLimit")), "New total limits; those of other resources stay."),
            "force": described(
                BOOLEAN,
                "Permit limits below the usage of all projects, which is not changed, or below what is promised to "
                "minimums.",
            ),
            "reason": _REASON,
        },
        optional=("force", "reason"),
    ),
    "SetMinimums": object_of(
        {
            "minimums": described(by_resource(COUNT), "New minimums; those of other resources stay. 0 removes one."),
            "dry_run": described(BOOLEAN, "Write nothing, and return what would change, and what would refuse it."),
            "force": _FORCE_PROJECT,
            "reason": _REASON,
        },
        optional=("dry_run", "force", "reason"),
    ),
    "MinimumChanges": object_of(
        {
            "changes": {"type": "array", "items": ref("PlannedChange")},
            "problems": described({"type": "array", "items": TEXT}, "Of a dry run: why it would be refused."),
            "warnings": _WARNINGS,
        },
    ),
    "SetDefaults": object_of(
        {
            "quota": described(
                by_resource({**_LIMIT, "type": ["integer", "null"]}),
                "New limits; the others stay. null removes a default.",
            ),
            "force": _FORCE,
            "reason": _REASON,
        },
        optional=("force", "reason"),
    ),
    "Preview": object_of(
        {
            "quota": described(by_resource(ref("Limit")), "New limits; the limits of other resources stay."),
            "project_id": described(NAME, "The project. Without it: the defaults, or the totals."),
            "total": described(BOOLEAN, "The limits over all projects."),
            "pod": described(NAME, "The limits of the project in this pod."),
            "start": described(TIME, "With until: when the limits begin to apply. Default: now."),
            "until": described(TIME, "The limits are overrides, which apply until this time."),
            "force": _FORCE,
        },
        optional=("project_id", "total", "pod", "start", "until", "force"),
    ),
    "PlannedChange": object_of(
        {
            "action": TEXT,
            "project_id": nullable(TEXT),
            "resource": nullable(TEXT),
            "before": {"type": ["integer", "string", "null"]},
            "after": {"type": ["integer", "string", "null"]},
            "pod": nullable(TEXT),
        }
    ),
    "PlannedChanges": object_of(
        {
            "changes": {"type": "array", "items": ref("PlannedChange")},
            "problems": described({"type": "array", "items": TEXT}, "The reasons for which they would be refused."),
        }
    ),
    "Over": object_of(
        {
            "project_id": described(nullable(NAME), "null for the limit over all projects."),
            "resource": NAME,
            "limit": nullable(ref("Limit")),
            "in_use": COUNT,
            "subtree": COUNT,
            "promised": _PROMISED,
        },
        optional=("promised",),
    ),
    "OverList": list_of("over", ref("Over")),
    "Node": object_of(
        {
            "project_id": NAME,
            "parent_id": described(nullable(NAME), "null for a root. Missing if the caller may not see the parent."),
            "depth": described(COUNT, "0 for the requested project, 1 for its children."),
            "quota": _by_resource(
                object_of(
                    {
                        "limit": nullable(ref("Limit")),
                        "in_use": COUNT,
                        "hierarchical_usage": described(
                            COUNT,
                            "What the descendants have in use and reserved. Missing if the caller may not see them.",
                        ),
                        "subtree": described(
                            COUNT,
                            "What the project and its descendants have in use and reserved. Missing if the caller may "
                            "not see the descendants.",
                        ),
                        "minimum": _MINIMUM,
                        "promised": _PROMISED,
                    },
                    optional=("hierarchical_usage", "subtree", "minimum", "promised"),
                ),
                "The state of each resource.",
            ),
        },
        optional=("parent_id",),
    ),
    "Tree": list_of("tree", ref("Node")),
    "Parent": object_of(
        {
            "parent_id": described(nullable(NAME), "The new parent; null: none, it becomes a root."),
            "force": _FORCE_PROJECT,
            "reason": _REASON,
        },
        optional=("force", "reason"),
    ),
    "Override": object_of(
        {
            "id": TEXT,
            "project_id": NAME,
            "resource": NAME,
            "limit": ref("Limit"),
            "start": TIME,
            "until": TIME,
            "reason": nullable(TEXT),
        }
    ),
    "Overrides": object_of(
        {"overrides": {"type": "array", "items": ref("Override")}, "warnings": _WARNINGS}, optional=("warnings",)
    ),
    "OneOverride": object_of({"override": ref("Override")}),
    "SetOverride": object_of(
        {
            "override": object_of(
                {
                    "quota": described(by_resource(ref("Limit")), "The limits that apply between start and until."),
                    "start": described(TIME, "Without it, the limits apply at once. Without an offset: UTC."),
                    "until": described(TIME, "The time until which they apply. Without an offset: UTC."),
                },
                optional=("start",),
            ),
            "force": described(
                BOOLEAN,
                "Permit limits below a minimum, or below what is used and promised to minimums; and do not ask "
                "Keystone whether the project exists.",
            ),
            "reason": _REASON,
        },
        optional=("force", "reason"),
    ),
    "Change": object_of(
        {
            "id": TEXT,
            "at": nullable(TIME),
            "action": TEXT,
            "operation": nullable(TEXT),
            "project_id": nullable(TEXT),
            "resource": nullable(TEXT),
            "pod": described(
                nullable(TEXT),
                "The pod of a limit per pod; empty if the caller may not see its name; null: the limit is over all "
                "pods.",
            ),
            "before": {"type": ["integer", "string", "object", "null"]},
            "after": {"type": ["integer", "string", "object", "null"]},
            "override_id": nullable(TEXT),
            "start": nullable(TIME),
            "until": nullable(TIME),
            "reason": nullable(TEXT),
            "user_id": described(nullable(TEXT), "Who made the change; null unless the caller is an admin."),
            "user_project_id": described(
                nullable(TEXT), "The project of this user's token; null unless the caller is an admin."
            ),
            "request_id": nullable(TEXT),
        }
    ),
    "History": list_of("history", ref("Change")),
    "Check": object_of(
        {
            "check": described(by_resource(AMOUNT), "The amounts that would be reserved together."),
            "pod": described(NAME, "Consider also the limits in this pod."),
        },
        optional=("pod",),
    ),
    "Violation": object_of(
        {
            "project_id": described(nullable(NAME), "null for the limit over all projects (scope ``total``)."),
            "resource": NAME,
            "scope": described(
                {"enum": ["project", "subtree", "total", "counter", "budget"]},
                "``counter``: ``limit`` is the largest number that can be counted. ``budget``: ``limit`` is how many "
                "devices the hours that are left permit to hold at this moment.",
            ),
            "limit": described(nullable(INTEGER), "null if no limit is set, or if the caller may not see it."),
            "requested": AMOUNT,
            "in_use": described(nullable(COUNT), "null if the caller may not see it."),
            "reserved": nullable(COUNT),
            "subtree": nullable(COUNT),
            "message": described(TEXT, "The same as a sentence."),
            "promised": _PROMISED,
            "budget": ref("BudgetUse"),
            "pod": _BOUND_POD,
        },
        optional=("budget", "pod", "promised"),
    ),
    "BudgetUse": described(
        object_of(
            {
                "hours": described(
                    {"type": "number"}, "The budget; with what was carried, if the caller may see what is spent."
                ),
                "spent": nullable({"type": "number"}),
                "left": described(nullable({"type": "number"}), "Negative if more was spent."),
                "held": described(nullable(COUNT), "The devices that the project and all projects below it hold."),
                "hours_ahead": described(COUNT, "For how many hours all that is held must be paid for."),
                "period_begins": TIME,
                "period_ends": TIME,
                "is_repeated": described(BOOLEAN, "Whether another period follows."),
            }
        ),
        "What is used of the budget that refuses a request; null where the caller may not see it.",
    ),
    "CheckResult": object_of(
        {
            "granted": BOOLEAN,
            "violations": described(
                {"type": "array", "items": ref("Violation")},
                "For each resource of which less fits than requested, what determines what fits; for an admin, every "
                "limit that would refuse the request.",
            ),
        }
    ),
    "ProjectQuota": object_of(
        {
            "project_id": NAME,
            "quota": _by_resource(
                ref("Limit"),
                "The limits that were set for this project, or for it in the pod; all that apply to it, if the limits "
                "are not set by this API.",
            ),
            "overrides": described(COUNT, "The number of its overrides that have not ended."),
            "usage": _by_resource(
                object_of({"in_use": COUNT, "reserved": COUNT}), "What the project itself holds of each resource."
            ),
            "in_force": _by_resource(_IN_FORCE, "What determines the limit of each resource, if that is set here."),
        }
    ),
    "ProjectQuotas": list_of("quotas", ref("ProjectQuota")),
    "Reservation": object_of(
        {
            "uuid": TEXT,
            "project_id": NAME,
            "resource": NAME,
            "amount": INTEGER,
            "state": {"enum": list(STATES)},
            "consumer": nullable(TEXT),
            "group": nullable(TEXT),
            "expire": nullable(TIME),
            "created_at": nullable(TIME),
            "ended_at": nullable(TIME),
        }
    ),
    "Reservations": list_of("reservations", ref("Reservation")),
    "Link": object_of({"rel": {"const": "next"}, "href": TEXT}),
    "Errors": object_of(
        {
            "errors": {
                "type": "array",
                "items": object_of(
                    {
                        "status": INTEGER,
                        "code": TEXT,
                        "title": TEXT,
                        "detail": TEXT,
                        "request_id": TEXT,
                        "max_version": TEXT,
                        "min_version": TEXT,
                    },
                    optional=("request_id", "max_version", "min_version"),
                ),
            }
        }
    ),
}

PAGE: Final[dict[str, Schema]] = {
    "limit": {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_AMOUNT,
        "description": "The maximum number of entries, if [api] max_limit (1000 by default) is not less.",
    },
    "marker": described(NAME, "Start after this entry."),
}
PROJECT: Final[dict[str, Schema]] = {"project_id": described(NAME, "Only this project.")}
POD: Final[dict[str, Schema]] = {
    "pod": described(NAME, "Only in this pod. It needs the policy rule cyborg_quota:pod:see.")
}
RESERVATION_FILTERS: Final[dict[str, Schema]] = {
    **PROJECT,
    "state": {"type": "string", "enum": list(STATES)},
    "resource": NAME,
    "consumer": NAME,
    "group": NAME,
}
HISTORY_FILTERS: Final[dict[str, Schema]] = {
    "since": described(TIME, "Only changes since this time."),
    "sort_key": described({"type": "string", "enum": ["at"]}, "What orders the list."),
    "sort_dir": described({"type": "string", "enum": ["asc", "desc"]}, "Default: desc, the newest change first."),
}
