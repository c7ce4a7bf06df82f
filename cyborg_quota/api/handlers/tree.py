# SPDX-License-Identifier: Apache-2.0
"""The parent of a project in the project tree, and what is below it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from cyborg_quota import exceptions, policy
from cyborg_quota.api.call import Call, Json
from cyborg_quota.api.errors import Refused
from cyborg_quota.api.handlers.quotas import nonzero
from cyborg_quota.limits import operations
from cyborg_quota.types.limits import TreeRow


def get_tree(call: Call) -> Json:
    """GET /v2/quotas/{project_id}/tree

    The project and, if the policy allows it, all projects below it.
    """
    if not call.allows(policy.DESCENDANTS, call.project_id, call.parent_id):
        nodes, has_more = [] if call.marker else [_node(call)], False
    else:
        try:
            rows, has_more = call.engine.limits.tree_page(call.elevated, call.project_id, call.limit, call.marker)
        except exceptions.MarkerNotFound:
            raise Refused(400, "The marker is not a project of this tree.") from None
        nodes = _nodes(rows)
    for node in nodes[:1]:
        # The id of the parent is another project's (I8).
        if node["project_id"] == call.project_id and call.parent_id is None and not call.is_admin:
            node.pop("parent_id", None)
    following = nodes[-1]["project_id"] if has_more and nodes else None
    return call.page("tree", nodes, lambda node: node, lambda node: str(node["project_id"]), following=following)


def _node(call: Call) -> Json:
    """The project alone, without what its descendants hold (I8)."""
    rows, _has_more = call.engine.limits.tree_page(call.elevated, call.project_id, 1)
    [node] = _nodes(rows) or [{"project_id": call.project_id, "depth": 0, "quota": {}}]
    for figures in node["quota"].values():
        del figures["subtree"], figures["hierarchical_usage"]
        figures.pop("promised", None)
    return node


def _nodes(rows: Iterable[TreeRow]) -> list[Json]:
    """A node for each project, from its rows, one for each resource."""
    nodes = []
    for project_id, group in itertools.groupby(rows, key=lambda row: row.project_id):
        own = list(group)
        quota = {
            row.resource: {
                "limit": row.limit,
                "in_use": row.used,
                "hierarchical_usage": row.hierarchical_usage,
                "subtree": row.subtree,
                **nonzero(row, "minimum", "promised"),
            }
            for row in own
        }
        nodes.append({"project_id": project_id, "parent_id": own[0].parent_id, "depth": own[0].depth, "quota": quota})
    return nodes


def set_parent(call: Call) -> Json:
    """PUT /v2/quotas/{project_id}/tree"""
    call.require_project(call.project_id)
    operations.set_parent(call, call.project_id, call.body["parent_id"], call.body.get("reason"))
    return get_tree(call)
