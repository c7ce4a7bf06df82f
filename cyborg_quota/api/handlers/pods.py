# SPDX-License-Identifier: Apache-2.0
"""Pods: several OpenStack deployments of one availability zone, and the pod of each project."""

from __future__ import annotations

from cyborg_quota.api.call import Call, Json, moment, render
from cyborg_quota.types.capacity import Pod, PodUsage


def list_pods(call: Call) -> Json:
    """GET /v2/quota_pods"""
    usages = {usage.pod: usage for usage in call.engine.pods.list_usages(call.elevated)}
    pods = call.engine.pods.list_pods(call.elevated)
    return {"pods": [_pod(pod, usages.get(pod.name) or PodUsage(pod.name)) for pod in pods]}


def _pod(pod: Pod, measured: PodUsage) -> Json:
    usage = None
    if measured.usage is not None:
        usage = {name: {"capacity": use.capacity, "in_use": use.used} for name, use in sorted(measured.usage.items())}
    return render("Pod", pod, usage=usage, measured_at=moment(measured.measured_at))


def select(call: Call) -> Json:
    """POST /v2/quota_pods/select"""
    wanted = call.body["select"]
    binding = call.engine.pods.select(
        call.elevated,
        wanted.get("availability_zone"),
        wanted.get("affinity"),
        wanted.get("quota"),
        wanted["project_id"],
    )
    return {
        "binding": {
            "project_id": binding.project_id,
            "pod": binding.pod,
            "availability_zone": binding.availability_zone,
            "affinity": dict(binding.resource_affinity),
            "start": moment(binding.starts_at),
            "reason": binding.reason,
        }
    }
