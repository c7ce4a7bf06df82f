# SPDX-License-Identifier: Apache-2.0
"""[metrics]: the metrics for Prometheus."""

from __future__ import annotations

from oslo_config import cfg

GROUP = "metrics"

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "listen",
        regex=r"^(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):[0-9]{1,5}$",
        sample_default="127.0.0.1:9877",
        help="The address and the port on which cyborg-quota-expirer and the REST API serve metrics for Prometheus, at "
        "the path /metrics, without authentication. Unset: they serve none. If several processes of a host have the "
        "same address, one of them serves it, and another takes over when it ends. Needs cyborg_quota[metrics].",
    ),
    cfg.ListOpt(
        "projects",
        default=[],
        sample_default="*",
        help="The ids of the projects of which there are series with the limit, the usage and the headroom; * means "
        "all. Whoever can reach the address in `listen` can read them. A project can read its own through the REST "
        "API, whatever is set here.",
    ),
    cfg.BoolOpt(
        "project_names",
        default=False,
        help="Also export the names of these projects, as cyborg_quota_project_info. They are read from Keystone, with "
        "the credentials of [oslo_limit], once an hour.",
    ),
    cfg.FloatOpt(
        "max_age",
        default=10.0,
        min=0.0,
        help="Seconds for which the values of the ledger are kept: a scrape within this time does not read the ledger.",
    ),
    cfg.FloatOpt(
        "lease",
        default=15.0,
        min=1.0,
        help="Of all processes that serve metrics, on all hosts, one exports the values of the ledger. If it has not "
        "renewed its lease for this number of seconds, another takes over.",
    ),
    cfg.IntOpt(
        "audit_interval",
        default=3600,
        min=0,
        help="Seconds between two audits of all counters, for cyborg_quota_drift_rows. An audit reads all live "
        "reservations. 0: no audits.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register this group on ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """The options of this group, for the oslo.config generator."""
    return [(GROUP, OPTS)]
