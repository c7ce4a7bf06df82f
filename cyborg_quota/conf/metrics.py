# SPDX-License-Identifier: Apache-2.0
"""[metrics]: the metrics for Prometheus."""

from __future__ import annotations

from oslo_config import cfg, types

GROUP = "metrics"

OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "listen",
        item_type=types.String(regex=r"^(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):[0-9]{1,5}$"),
        default=[],
        sample_default="127.0.0.1:9877,127.0.0.1:9878",
        help="The addresses at which the conductor and cyborg-quota-expirer serve their counters for Prometheus, "
        "without authentication. Each process uses the first one that is free; if none is, it logs that and runs "
        "without. Empty: nothing is counted. Needs cyborg_quota[metrics].",
    ),
    cfg.ListOpt(
        "projects",
        default=[],
        sample_default="*",
        help="The ids of the projects of which cyborg_quota.metrics.wsgi exports the limit, the usage and the "
        "headroom; * means all. Whoever can reach its port can read them.",
    ),
    cfg.BoolOpt(
        "project_names",
        default=False,
        help="Also export the names of these projects, as cyborg_quota_project_info. A scrape reads them from "
        "Keystone, with the credentials of [oslo_limit], at most once an hour and within 2 seconds.",
    ),
    cfg.IntOpt(
        "audit_interval",
        default=3600,
        min=0,
        help="Seconds between two audits of all counters by cyborg-quota-expirer, for cyborg_quota_drift_rows. An "
        "audit reads all live reservations. 0: no audits.",
    ),
]
