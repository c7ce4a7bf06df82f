# SPDX-License-Identifier: Apache-2.0
"""The place of a project in the project tree, and what is below it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from cyborg_quota import exceptions, policy
from cyborg_quota.api.call import Call, Caller, Json
from cyborg_quota.api.errors import Refused
from cyborg_quota.api.handlers.quotas import limit_of
from cyborg_quota.limits import operations
from cyborg_quota.types.limits import TreeRow


def get_tree(call: Call) -> Json:
    """GET /v2/quotas/{project_id}/tree

    The project and, if the policy allows it, all projects below it; its direct children if another service or a file
    stores the limits.
    """
    if call.allows(policy.DESCENDANTS, call.project_id, call.parent_id):
        nodes = _subtree(call)
    else:
        nodes = [] if call.marker else [_node(call)]
    for node in nodes[:1]:
        # The id of the parent is another project's (I8).
        if node["project_id"] == call.project_id and call.parent_id is None and not call.is_admin:
            node.pop("parent_id", None)
    return call.page("tree", nodes, lambda node: node, lambda node: str(node["project_id"]))


def _subtree(call: Call) -> list[Json]:
    after = call.marker
    try:
        found = call.engine.limits.tree(call.elevated, call.project_id, limit=call.limit + 1, after=after)
    except exceptions.MarkerNotFound:
        raise Refused(400, "The marker is not a project of this tree.") from None
    except exceptions.LimitsReadOnly:
        return _project_and_children(call)
    return _nodes(found)


def _project_and_children(call: Call) -> list[Json]:
    marker = call.marker or ""
    nodes = [] if marker else [_node_of_ledger(call, call.project_id, 0)]
    # If the first page contains the project alone, the project is the marker of the second page.
    after = "" if marker == call.project_id else marker
    children = call.engine.limits.list_children(call.elevated, call.project_id, after, call.limit + 1 - len(nodes))
    return nodes + [_node_of_ledger(call, project_id, 1) for project_id in children]


def _node(call: Call) -> Json:
    """The project alone, without what its descendants hold (I8)."""
    try:
        path = call.engine.limits.path(call.elevated, call.project_id)
    except exceptions.LimitsReadOnly:
        return _node_of_ledger(call, call.project_id, 0)
    nodes = _nodes(row for row in path if row.project_id == call.project_id)
    [node] = nodes or [{"project_id": call.project_id, "quota": {}}]
    node["depth"] = 0
    for figures in node["quota"].values():
        del figures["subtree"], figures["hierarchical_usage"]
    return node


def _node_of_ledger(call: Call, project_id: str, depth: int) -> Json:
    """A node without the total of its subtree, with limits that another service or a file stores."""
    records = call.engine.get_detail(Caller(project_id, is_admin=False))
    quota = {one.resource: {"limit": limit_of(one), "in_use": one.usage.used} for one in records}
    node: Json = {"project_id": project_id, "depth": depth, "quota": quota}
    parent_id = call.project_id if depth else call.parent_id
    if call.is_admin and not depth:
        parent_id = call.engine.limits.get_parent(call.elevated, project_id)
    return node if parent_id is None else {**node, "parent_id": parent_id}


def _nodes(rows: Iterable[TreeRow]) -> list[Json]:
    """A node for each project, from its rows, one for each resource."""
    nodes = []
    for project_id, group in itertools.groupby(rows, key=lambda row: row.project_id):
        own = list(group)
        quota = {row.resource: _figures(row) for row in own}
        nodes.append({"project_id": project_id, "parent_id": own[0].parent_id, "depth": own[0].depth, "quota": quota})
    return nodes


def _figures(row: TreeRow) -> Json:
    return {
        "limit": row.limit,
        "in_use": row.used,
        "hierarchical_usage": row.hierarchical_usage,
        "subtree": row.subtree,
    }


def place(call: Call) -> Json:
    """PUT /v2/quotas/{project_id}/tree"""
    call.require_project(call.project_id)
    operations.place(call, call.project_id, call.body["parent_id"], call.body.get("reason"))
    return get_tree(call)
