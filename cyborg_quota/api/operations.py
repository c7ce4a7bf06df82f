# SPDX-License-Identifier: Apache-2.0
"""The table of all calls of the API: method, path, policy rule, schemas and handler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from cyborg_quota import policy
from cyborg_quota.api import schemas
from cyborg_quota.api.call import Call
from cyborg_quota.api.handlers import history, lists, overrides, pods, quotas, totals, tree
from cyborg_quota.api.schemas import Schema

_NO_QUERY: Final[Mapping[str, Schema]] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """A call of the API.

    ``rule`` is the policy rule; None: every user may make the call, and the handler checks what the user may see.
    ``body`` and ``answer`` are names of schemas.COMPONENTS; ``errors`` the statuses besides those that every call has.
    """

    method: str
    path: str
    name: str
    summary: str
    rule: str | None
    handler: Callable[[Call], Any]
    body: str | None = None
    answer: str | None = None
    query: Mapping[str, Schema] = dataclasses.field(default_factory=lambda: _NO_QUERY)
    status: int = 200
    errors: tuple[int, ...] = ()

    @property
    def is_of_project(self) -> bool:
        """Whether the URL names a project: then a user who may not see it gets 404."""
        return "{project_id}" in self.path


_PROJECT: Final = "/v2/quotas/{project_id}"
_REASON: Final = {"reason": schemas.COMPONENTS["SetLimits"]["properties"]["reason"]}

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/v2/quotas",
        "list_quotas",
        "List the projects that have limits of their own or overrides; or those that have limits in one pod.",
        policy.LIST,
        quotas.list_quotas,
        answer="ProjectQuotas",
        query={**schemas.PROJECT, **schemas.POD, **schemas.PAGE},
        errors=(404, 409),
    ),
    Operation(
        "GET",
        _PROJECT,
        "get_quota",
        "Show the limits of a project, or its limits in one pod.",
        policy.GET,
        quotas.get_limits,
        answer="Quota",
        query=schemas.POD,
        errors=(409,),
    ),
    Operation(
        "PUT",
        _PROJECT,
        "set_quota",
        "Set limits of a project, or its limits in one pod. The limits of resources that are not named stay.",
        policy.RULE,
        quotas.set_limits,
        body="SetLimits",
        answer="Quota",
        errors=(409,),
    ),
    Operation(
        "DELETE",
        _PROJECT,
        "delete_quota",
        "Remove all limits of a project, so that the defaults apply. Its overrides and its limits in pods stay. With a "
        "pod: remove its limits in this pod only.",
        policy.RULE,
        quotas.unset_limits,
        query={**schemas.POD, **_REASON},
        status=204,
        errors=(409,),
    ),
    Operation(
        "GET",
        f"{_PROJECT}/detail",
        "get_quota_detail",
        "Show the limits of a project, what it has in use and reserved, and what fits; in all pods or in one.",
        policy.GET,
        quotas.get_detail,
        answer="QuotaDetail",
        query=schemas.POD,
    ),
    Operation(
        "GET",
        f"{_PROJECT}/defaults",
        "get_quota_defaults",
        "Show the limits that a project would have without limits of its own.",
        policy.GET,
        quotas.get_defaults,
        answer="Quota",
        errors=(409,),
    ),
    Operation(
        "GET",
        f"{_PROJECT}/tree",
        "get_quota_tree",
        "Show a project and, as far as the policy allows it, the projects below it. Parents come before children.",
        policy.GET,
        tree.get_tree,
        answer="Tree",
        query=schemas.PAGE,
        errors=(409,),
    ),
    Operation(
        "PUT",
        f"{_PROJECT}/tree",
        "place_project",
        "Add a project to the project tree, or move it with all that is below it.",
        policy.PLACE,
        tree.place,
        body="Place",
        answer="Tree",
        errors=(409,),
    ),
    Operation(
        "DELETE",
        f"{_PROJECT}/tree",
        "remove_project",
        "Remove a project that has neither usage nor children, and its limits, from the project tree.",
        policy.PLACE,
        tree.remove,
        query=_REASON,
        status=204,
        errors=(409,),
    ),
    Operation(
        "GET",
        f"{_PROJECT}/history",
        "get_quota_history",
        "List the changes of the limits of a project, newest first.",
        policy.GET,
        history.get_history,
        answer="History",
        query={**schemas.HISTORY_FILTERS, **schemas.PAGE},
    ),
    Operation(
        "GET",
        f"{_PROJECT}/overrides",
        "list_quota_overrides",
        "List the overrides of a project that have not ended.",
        policy.GET,
        overrides.list_overrides,
        answer="Overrides",
        errors=(409,),
    ),
    Operation(
        "POST",
        f"{_PROJECT}/overrides",
        "set_quota_override",
        "Set limits of a project for a span of time.",
        policy.RULE,
        overrides.set_override,
        body="SetOverride",
        answer="Overrides",
        status=201,
        errors=(409,),
    ),
    Operation(
        "DELETE",
        f"{_PROJECT}/overrides/{{override_id}}",
        "cancel_quota_override",
        "Cancel an override.",
        policy.RULE,
        overrides.cancel_override,
        query=_REASON,
        status=204,
        errors=(409,),
    ),
    Operation(
        "POST",
        f"{_PROJECT}/check",
        "check_quota",
        "Tell whether a request would be granted now, and which limits would refuse it. Nothing is reserved.",
        policy.GET,
        quotas.check,
        body="Check",
        answer="CheckResult",
    ),
    Operation(
        "GET",
        "/v2/quota_defaults",
        "get_default_quota",
        "Show the default limits. Initial limits ([limits] root_initial_limit and child_initial_limit) are not shown.",
        policy.DEFAULTS,
        quotas.get_all_defaults,
        answer="Quota",
        errors=(409,),
    ),
    Operation(
        "PUT",
        "/v2/quota_defaults",
        "set_default_quota",
        "Set default limits. Those of resources that are not named stay.",
        policy.DEFAULTS,
        quotas.set_defaults,
        body="SetDefaults",
        answer="Quota",
        errors=(409,),
    ),
    Operation(
        "GET",
        "/v2/quota_totals",
        "get_total_quota",
        "Show the total limits over all projects, and what all projects hold.",
        policy.TOTALS,
        totals.get_totals,
        answer="Totals",
        errors=(409,),
    ),
    Operation(
        "PUT",
        "/v2/quota_totals",
        "set_total_quota",
        "Set total limits over all projects. Those of resources that are not named stay. When the answer "
        "is sent, the limits are enforced.",
        policy.TOTALS,
        totals.set_totals,
        body="SetTotals",
        answer="Totals",
        errors=(409,),
    ),
    Operation(
        "DELETE",
        "/v2/quota_totals/{resource}",
        "delete_total_quota",
        "Remove the total limit of a resource. If the call is interrupted, repeat it.",
        policy.TOTALS,
        totals.unset_total,
        query=_REASON,
        status=204,
        errors=(404, 409),
    ),
    Operation(
        "GET",
        "/v2/quota_reservations",
        "list_quota_reservations",
        "List reservations, oldest first: those of the project of the token or, for an admin, of all projects.",
        None,
        lists.list_reservations,
        answer="Reservations",
        query={**schemas.RESERVATION_FILTERS, **schemas.PAGE},
        errors=(404,),
    ),
    Operation(
        "GET",
        "/v2/quota_capacity",
        "list_quota_capacity",
        "List the inventories of the providers, and what is free.",
        policy.CAPACITY,
        lists.list_capacity,
        answer="Capacity",
        query={**schemas.PROVIDER, **schemas.INVENTORY_PAGE},
        errors=(404,),
    ),
    Operation(
        "GET",
        "/v2/quota_pods",
        "list_quota_pods",
        "List the pods, and what they had in use when they were measured last.",
        policy.PODS,
        pods.list_pods,
        answer="Pods",
    ),
    Operation(
        "POST",
        "/v2/quota_pods/select",
        "select_quota_pod",
        "Select the pod of a project for a zone and tags. The project is bound to a pod, or to another one, if needed.",
        policy.SELECT_POD,
        pods.select,
        body="SelectPod",
        answer="PodBinding",
        errors=(409,),
    ),
)
