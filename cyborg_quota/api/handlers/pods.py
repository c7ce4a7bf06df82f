# SPDX-License-Identifier: Apache-2.0
"""Pods with their last measurements, and the selection of the pod of a project."""

from __future__ import annotations

from cyborg_quota.api.call import Call, Json, moment
from cyborg_quota.pod_types import Pod, PodUsage


def list_pods(call: Call) -> Json:
    """GET /v2/quota_pods"""
    usages = {usage.pod: usage for usage in call.engine.pods.list_usages(call.elevated)}
    pods = call.engine.pods.list_pods(call.elevated)
    return {"pods": [_pod(pod, usages.get(pod.name, PodUsage(pod.name))) for pod in pods]}


def _pod(pod: Pod, last: PodUsage) -> Json:
    usage = None
    if last.usage is not None:
        usage = {resource: {"capacity": use.capacity, "in_use": use.used} for resource, use in last.usage.items()}
    return {
        "name": pod.name,
        "zone": pod.availability_zone,
        "affinity": dict(pod.resource_affinity),
        "state": pod.state,
        "weight": pod.weight,
        "threshold": pod.threshold,
        "usage": usage,
        "measured_at": moment(last.measured_at),
    }


def select(call: Call) -> Json:
    """POST /v2/quota_pods/select"""
    wanted = call.body["select"]
    binding = call.engine.pods.select(
        call.elevated, wanted.get("zone"), wanted.get("affinity"), wanted.get("amounts"), wanted["project_id"]
    )
    return {
        "binding": {
            "project_id": binding.project_id,
            "pod": binding.pod,
            "zone": binding.availability_zone,
            "affinity": dict(binding.resource_affinity),
            "starts_at": moment(binding.starts_at),
            "reason": binding.reason,
        }
    }
