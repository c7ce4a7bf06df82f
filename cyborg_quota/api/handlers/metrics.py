# SPDX-License-Identifier: Apache-2.0
"""The metrics of one project, in the text format of Prometheus."""

from __future__ import annotations

from cyborg_quota import policy
from cyborg_quota.api.call import Call
from cyborg_quota.metrics import gauges


def get_metrics(call: Call) -> str:
    """GET /v2/quotas/{project_id}/metrics"""
    names = {"limit", "used", "reserved", "fits"}
    # The subtree total reveals what the children hold (I8).
    if call.allows(policy.CHILDREN, call.project_id, call.parent_id):
        names.add("subtree")
    return gauges.projects_text(call.engine.monitoring.read_project(call.elevated, call.project_id), names)
