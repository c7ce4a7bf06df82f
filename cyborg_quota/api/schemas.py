# SPDX-License-Identifier: Apache-2.0
"""The JSON schemas of all bodies and parameters. Requests are validated with them, and openapi.py publishes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cyborg_quota.types import (
    MAX_AMOUNT,
    MAX_LIMIT,
    MAX_NAME_CHARS,
    MAX_REASON_CHARS,
    STATES,
    UNLIMITED,
)

Schema = dict[str, Any]

MAX_RESOURCES: Final = 1000
"""The maximum number of resources in one request."""


def ref(name: str) -> Schema:
    """A reference to a schema of COMPONENTS."""
    return {"$ref": f"#/components/schemas/{name}"}


def _described(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


def _nullable(schema: Schema) -> Schema:
    return {"oneOf": [schema, {"type": "null"}]}


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
        "propertyNames": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS},
        "additionalProperties": schema,
    }


def _requested(schema: Schema, description: str) -> Schema:
    """As ``_by_resource``, for a request: not empty, and of bounded size."""
    return {**_by_resource(schema, description), "minProperties": 1, "maxProperties": MAX_RESOURCES}


def list_of(name: str, item: Schema, *, paged: bool = True) -> Schema:
    properties = {name: {"type": "array", "items": item}}
    if paged:
        properties[f"{name}_links"] = {"type": "array", "items": ref("Link")}
    return object_of(properties, optional=(f"{name}_links",))


_INTEGER: Final[Schema] = {"type": "integer"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_TEXT: Final[Schema] = {"type": "string"}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_LIMIT: Final[Schema] = {
    "type": "integer",
    "minimum": UNLIMITED,
    "maximum": MAX_LIMIT,
    "description": f"{UNLIMITED} means unlimited.",
}
_AMOUNT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": MAX_AMOUNT}
_REASON: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_REASON_CHARS,
    "description": "Why the limits are changed: one line, for the history.",
}
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS}
_TIME: Final[Schema] = {"type": "string", "format": "date-time", "maxLength": 64}
_POD: Final = _described(_NAME, "The pod, if the call names one.")
_BOUND_POD: Final = _described(
    _nullable(_NAME), "The pod of a limit per pod; null for one over all pods. Present if the call names a pod."
)
_SET_LIMITS: Final = _requested(ref("Limit"), "New limits; the limits of other resources stay.")

COMPONENTS: Final[dict[str, Schema]] = {
    "Limit": _LIMIT,
    "Limits": _by_resource(
        _nullable(ref("Limit")), "The limit of each resource; null if no limit is set and nothing may be reserved."
    ),
    "Quota": _described(
        object_of({"quota": ref("Limits"), "pod": _POD}, optional=("pod",)),
        "The limits of a project. If the call names a pod: those in this pod, without the resources that have none.",
    ),
    "Bound": _described(
        object_of(
            {"project_id": _nullable(_NAME), "scope": _TEXT, "limit": _nullable(_INTEGER), "pod": _BOUND_POD},
            optional=("pod",),
        ),
        "What determines ``fits``, if that is not the limit of the project itself (if the call names a pod: its limit "
        "in this pod): the limit of an ancestor (scope "
        "``subtree``), the limit over all projects (``total``; project_id is null), the width of a counter "
        "(``counter``), or that the resource is registered no longer (``not_registered``).",
    ),
    "Detail": object_of(
        {
            "limit": _nullable(ref("Limit")),
            "in_use": _COUNT,
            "reserved": _COUNT,
            "fits": _described(
                {"type": "integer", "minimum": UNLIMITED},
                f"The largest amount that can be reserved now; {UNLIMITED} means unlimited.",
            ),
            "bound_by": _nullable(ref("Bound")),
        }
    ),
    "QuotaDetail": _described(
        object_of(
            {"quota": _by_resource(ref("Detail"), "The state of each resource."), "pod": _POD}, optional=("pod",)
        ),
        f"If the call names a pod: the limits in this pod ({UNLIMITED}: none), and what is held and fits there.",
    ),
    "SetLimits": object_of(
        {
            "quota": _requested(
                {**_LIMIT, "type": ["integer", "null"]},
                "New limits; the limits of other resources stay. null removes a limit.",
            ),
            "pod": _described(_NAME, "Set limits in this pod, which apply in addition to those over all pods."),
            "force": _described(_BOOLEAN, "Permit limits below the usage of the project, which is not changed."),
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
                        "held": _described(_COUNT, "What all projects have in use and reserved."),
                    }
                ),
                "The total limit of each resource that has one.",
            )
        }
    ),
    "SetTotals": object_of(
        {
            "quota": _requested(ref("TotalLimit"), "New total limits; those of other resources stay."),
            "force": _described(_BOOLEAN, "Permit limits below the usage of all projects, which is not changed."),
            "reason": _REASON,
        },
        optional=("force", "reason"),
    ),
    "SetDefaults": object_of(
        {
            "quota": _requested(
                {**_LIMIT, "type": ["integer", "null"]}, "New limits; the others stay. null removes a default."
            ),
            "reason": _REASON,
        },
        optional=("reason",),
    ),
    "Preview": object_of(
        {
            "quota": _SET_LIMITS,
            "project_id": _described(_NAME, "The project. Without it: the defaults, or the totals."),
            "total": _described(_BOOLEAN, "The limits over all projects."),
            "pod": _described(_NAME, "The limits of the project in this pod."),
            "start": _described(_TIME, "With until: when the limits begin to apply. Default: now."),
            "until": _described(_TIME, "The limits are overrides, which apply until this time."),
        },
        optional=("project_id", "total", "pod", "start", "until"),
    ),
    "PlannedChange": object_of(
        {
            "action": _TEXT,
            "project_id": _nullable(_TEXT),
            "resource": _nullable(_TEXT),
            "before": {"type": ["integer", "string", "null"]},
            "after": {"type": ["integer", "string", "null"]},
            "pod": _nullable(_TEXT),
        }
    ),
    "PlannedChanges": object_of(
        {
            "changes": {"type": "array", "items": ref("PlannedChange")},
            "problems": _described({"type": "array", "items": _TEXT}, "The reasons for which they would be refused."),
        }
    ),
    "Over": object_of(
        {
            "project_id": _described(_nullable(_NAME), "null for the limit over all projects."),
            "resource": _NAME,
            "limit": _nullable(ref("Limit")),
            "in_use": _COUNT,
            "subtree": _COUNT,
        }
    ),
    "OverList": list_of("over", ref("Over"), paged=False),
    "Node": object_of(
        {
            "project_id": _NAME,
            "parent_id": _described(_nullable(_NAME), "null for a root. Missing if the caller may not see the parent."),
            "depth": _described(_COUNT, "0 for the requested project, 1 for its children."),
            "quota": _by_resource(
                object_of(
                    {
                        "limit": _nullable(ref("Limit")),
                        "in_use": _COUNT,
                        "subtree": _described(
                            _COUNT, "What the project and its descendants have in use and reserved; for an admin."
                        ),
                    },
                    optional=("subtree",),
                ),
                "The state of each resource.",
            ),
        },
        optional=("parent_id",),
    ),
    "Tree": list_of("tree", ref("Node")),
    "Place": object_of(
        {
            "parent_id": _described(_nullable(_NAME), "The new parent; null: none, it becomes a root."),
            "reason": _REASON,
        },
        optional=("reason",),
    ),
    "Override": object_of(
        {
            "id": _TEXT,
            "project_id": _NAME,
            "resource": _NAME,
            "limit": ref("Limit"),
            "start": _TIME,
            "until": _TIME,
            "reason": _nullable(_TEXT),
        }
    ),
    "Overrides": list_of("overrides", ref("Override"), paged=False),
    "SetOverride": object_of(
        {
            "override": object_of(
                {
                    "quota": _requested(ref("Limit"), "The limits that apply between start and until."),
                    "start": _described(_TIME, "Without it, the limits apply at once. Without an offset: UTC."),
                    "until": _described(_TIME, "The time until which they apply. Without an offset: UTC."),
                },
                optional=("start",),
            ),
            "reason": _REASON,
        },
        optional=("reason",),
    ),
    "Change": object_of(
        {
            "id": _TEXT,
            "at": _nullable(_TIME),
            "action": _TEXT,
            "operation": _nullable(_TEXT),
            "project_id": _nullable(_TEXT),
            "resource": _nullable(_TEXT),
            "pod": _described(
                _nullable(_TEXT),
                "The pod of a limit per pod; empty if the caller may not see its name; null: the limit is over all "
                "pods.",
            ),
            "before": {"type": ["integer", "string", "null"]},
            "after": {"type": ["integer", "string", "null"]},
            "override_id": _nullable(_TEXT),
            "start": _nullable(_TIME),
            "until": _nullable(_TIME),
            "reason": _nullable(_TEXT),
            "user_id": _described(_nullable(_TEXT), "Who made the change; null unless the caller is an admin."),
            "user_project_id": _described(
                _nullable(_TEXT), "The project of this user's token; null unless the caller is an admin."
            ),
            "request_id": _nullable(_TEXT),
        }
    ),
    "History": list_of("history", ref("Change")),
    "Check": object_of(
        {
            "check": _requested(_AMOUNT, "The amounts that would be reserved together."),
            "pod": _described(_NAME, "Consider also the limits in this pod."),
        },
        optional=("pod",),
    ),
    "Violation": object_of(
        {
            "project_id": _described(_nullable(_NAME), "null for the limit over all projects (scope ``total``)."),
            "resource": _NAME,
            "scope": _described(
                {"enum": ["project", "subtree", "total", "counter"]},
                "``counter``: ``limit`` is the largest number that can be counted.",
            ),
            "limit": _described(_nullable(_INTEGER), "null if no limit is set."),
            "requested": _AMOUNT,
            "in_use": _described(_nullable(_COUNT), "null if the caller may not see it."),
            "reserved": _nullable(_COUNT),
            "subtree": _nullable(_COUNT),
            "pod": _BOUND_POD,
        },
        optional=("pod",),
    ),
    "CheckResult": object_of(
        {
            "granted": _BOOLEAN,
            "violations": _described(
                {"type": "array", "items": ref("Violation")},
                "For each resource of which less fits than requested, what determines what fits; for an admin, every "
                "limit that would refuse the request.",
            ),
        }
    ),
    "ProjectQuota": object_of(
        {
            "project_id": _NAME,
            "quota": _by_resource(ref("Limit"), "The limits that were set for this project, or for it in the pod."),
            "overrides": _described(_COUNT, "The number of its overrides that have not ended."),
            "usage": _by_resource(
                object_of({"in_use": _COUNT, "reserved": _COUNT}), "What the project itself holds of each resource."
            ),
        }
    ),
    "ProjectQuotas": list_of("quotas", ref("ProjectQuota")),
    "Reservation": object_of(
        {
            "uuid": _TEXT,
            "project_id": _NAME,
            "resource": _NAME,
            "amount": _INTEGER,
            "state": {"enum": list(STATES)},
            "consumer": _nullable(_TEXT),
            "group": _nullable(_TEXT),
            "expire": _nullable(_TIME),
            "created_at": _nullable(_TIME),
            "ended_at": _nullable(_TIME),
        }
    ),
    "Reservations": list_of("reservations", ref("Reservation")),
    "Link": object_of({"rel": {"const": "next"}, "href": _TEXT}),
    "Errors": object_of(
        {
            "errors": {
                "type": "array",
                "items": object_of(
                    {
                        "status": _INTEGER,
                        "code": _TEXT,
                        "title": _TEXT,
                        "detail": _TEXT,
                        "request_id": _TEXT,
                        "max_version": _TEXT,
                        "min_version": _TEXT,
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
        "description": "The maximum number of entries; at most 1000 are returned.",
    },
    "marker": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS, "description": "Start after this entry."},
}
PROJECT: Final[dict[str, Schema]] = {"project_id": _described(_NAME, "Only this project.")}
POD: Final[dict[str, Schema]] = {
    "pod": _described(_NAME, "Only in this pod. It needs the policy rule cyborg_quota:pod:see.")
}
RESERVATION_FILTERS: Final[dict[str, Schema]] = {
    **PROJECT,
    "state": {"type": "string", "enum": list(STATES)},
    "resource": _NAME,
    "consumer": _NAME,
    "group": _NAME,
}
HISTORY_FILTERS: Final[dict[str, Schema]] = {"since": _described(_TIME, "Only changes since this time.")}
