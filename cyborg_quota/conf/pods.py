# SPDX-License-Identifier: Apache-2.0
"""The options of [pods]."""

from __future__ import annotations

from oslo_config import cfg, types

GROUP = "pods"

OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "filters",
        default=["AvailabilityZone", "ResourceAffinity", "Capacity"],
        help="The filters that a pod must pass before a project is bound to it. AllPods passes every pod; "
        "AvailabilityZone those in the requested zone; ResourceAffinity those with the requested tags; Capacity those "
        "whose last measurement is below their threshold. Entry points of cyborg_quota.pod_filters.",
    ),
    cfg.Opt(
        "weighers",
        type=types.Dict(types.Float()),
        default={"weight": 1000.0, "creation_time": 1.0},
        sample_default="weight:1000,creation_time:1",
        help="The weighers and their multipliers. Each weigher gives every pod that passes the filters a weight, "
        "scaled to the range from 0 to 1. The pod with the highest sum of weights times multipliers is selected. "
        "weight: the weight of the pod; creation_time: "
        "the pod that was added first; idle_capacity: the largest free share. Entry points of "
        "cyborg_quota.pod_weighers.",
    ),
    cfg.IntOpt(
        "collect_interval",
        default=86400,
        min=0,
        help="Seconds between two measurements of each pod by cyborg-quota-expirer, as `pod usage collect` makes them. "
        "Of several expirers, one measures a pod. A pod that does not answer is tried again after ten minutes. 0: "
        "never.",
    ),
]
