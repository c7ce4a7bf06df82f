# SPDX-License-Identifier: Apache-2.0
"""Lists over projects: the quotas that are not the defaults, reservations, and the inventories of the providers."""

from __future__ import annotations

import urllib.parse
from typing import Any

from cyborg_quota import exceptions, policy
from cyborg_quota.administration import MAX_LISTED_PROJECTS
from cyborg_quota.api.call import Call, Json, render
from cyborg_quota.api.errors import Refused, project_not_found
from cyborg_quota.capacity_types import InventoryRecord
from cyborg_quota.limit_types import Holding


def list_quotas(call: Call) -> Json:
    """GET /v2/quotas"""
    if "pod" in call.query:
        return _list_quotas_in_pod(call, call.query["pod"])
    if "project_id" in call.query:
        return {"quotas": _not_default(call, [call.query["project_id"]])}
    found: list[Json] = []
    after = call.marker or ""
    while len(found) <= call.limit:
        holders = call.engine.administration.list_holders(call.elevated, after, MAX_LISTED_PROJECTS)
        if not holders:
            break
        found += _not_default(call, holders)
        after = holders[-1]
    return call.page("quotas", found, lambda one: one, lambda one: str(one["project_id"]))


def _list_quotas_in_pod(call: Call, pod: str) -> Json:
    """The projects that have limits in the pod. A pod that the caller may not see is answered as an unknown one."""
    if not call.allows(policy.SEE_PODS):
        raise Refused(404, str(exceptions.PodNotFound(pod)))
    by_project: dict[str, dict[str, int]] = {}
    records = call.engine.administration.list_pod_limits(
        call.elevated, call.query.get("project_id"), pod, projects=call.limit + 1, after=call.marker
    )
    for record in records:
        by_project.setdefault(str(record.project_id), {})[record.resource] = record.limit
    found = [
        {"project_id": project_id, "quota": limits, "overrides": 0}  # (limits in pods have no overrides)
        for project_id, limits in by_project.items()
    ]
    return call.page("quotas", found, lambda one: one, lambda one: str(one["project_id"]))


def _not_default(call: Call, project_ids: list[str]) -> list[Json]:
    """Those of the projects that have limits of their own or overrides, in this order."""
    by_project: dict[str, list[Holding]] = {}
    for holding in call.engine.administration.list_holdings(call.elevated, project_ids):
        if (holding.limit is not None and holding.key.is_whole) or holding.overrides:
            by_project.setdefault(holding.key.project_id, []).append(holding)
    return [
        {
            "project_id": project_id,
            "quota": {one.key.resource: one.limit for one in by_project[project_id] if one.limit is not None},
            "overrides": sum(one.overrides for one in by_project[project_id]),
        }
        for project_id in project_ids
        if project_id in by_project
    ]


def list_reservations(call: Call) -> Json:
    """GET /v2/quota_reservations

    Without a project: those of all projects if the policy allows it, or else those of the caller's project.
    """
    project_id = call.query.get("project_id")
    if project_id is None and not call.allows(policy.ALL_RESERVATIONS):
        project_id = call.context.project_id
        if project_id is None:
            raise Refused(403, "The token is not scoped to a project.")
    if project_id is not None:
        _require_project(call, project_id)
    marker = call.query.get("marker")
    filters: dict[str, Any] = {name: call.query.get(name) for name in ("state", "resource", "consumer", "group")}
    # The marker must match too: otherwise the answer would reveal that another project has this reservation (I8).
    if marker is not None and not call.engine.list_reservations(call.elevated, project_id, reservations=[marker]):
        raise Refused(400, "The marker is not a reservation of this list.")
    found = call.engine.list_reservations(call.elevated, project_id, limit=call.limit + 1, after=marker, **filters)
    return call.page("reservations", found, lambda one: render("Reservation", one), lambda one: one.uuid)


def _require_project(call: Call, project_id: str) -> None:
    """Raise Refused (404) unless the caller may see the reservations of this project."""
    parent_id = None
    if project_id != call.context.project_id and not call.is_admin:
        parent_id = call.engine.get_parent(call.elevated, project_id)
    if not call.allows(policy.RESERVATIONS, project_id, parent_id):
        raise project_not_found(project_id)


def list_capacity(call: Call) -> Json:
    """GET /v2/quota_capacity"""
    marker = call.query.get("marker")
    after = None if marker is None else _inventory_of(marker)
    provider = call.query.get("provider")
    records = call.engine.capacity.list_inventories(call.elevated, provider, limit=call.limit + 1, after=after)
    return call.page("capacity", records, lambda one: render("Inventory", one), _inventory_marker)


def _inventory_marker(record: InventoryRecord) -> str:
    """The provider and the resource, in which a slash is written as %2F, separated by a slash."""
    return "/".join([urllib.parse.quote(name, safe="") for name in (record.provider, record.resource)])


def _inventory_of(marker: str) -> tuple[str, str]:
    """The provider and the resource of a marker. Raises Refused (400)."""
    provider, separator, resource = marker.partition("/")
    if not separator:
        raise Refused(400, "The marker must be a provider and a resource, separated by a slash.")
    return urllib.parse.unquote(provider), urllib.parse.unquote(resource)
