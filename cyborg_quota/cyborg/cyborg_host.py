# SPDX-License-Identifier: Apache-2.0
"""Read Cyborg's configuration and records from a command, outside Cyborg's services."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

import cyborg_quota
from cyborg_quota import exceptions
from cyborg_quota.conf import loading, resource_rules
from cyborg_quota.conf.resource_rules import ResourceMap
from cyborg_quota.cyborg import compatibility

if TYPE_CHECKING:
    from cyborg_quota.cyborg.arq_records import Records
    from cyborg_quota.cyborg.reconciler import Reconciler
    from cyborg_quota.engine import QuotaEngine


def records(conf: cfg.ConfigOpts) -> Records:
    """Cyborg's records, read with its configuration ([cyborg] config_file). Raises ConfigurationError, cfg.Error."""
    compatibility.check(compatibility.RECORD_PARTS)
    from cyborg.conf import CONF

    arguments = [part for path in conf.cyborg.config_file for part in ("--config-file", path)]
    host: Any = CONF
    try:
        host(arguments, project="cyborg", version=cyborg_quota.__version__)
    except cfg.Error as error:
        raise exceptions.ConfigurationError(f"Cyborg's configuration: {loading.safe_message(error)}") from None
    made = new_records(conf)
    if not connection(host):
        raise exceptions.ConfigurationError(
            "Cyborg's configuration has no [database] connection. Name its file: [cyborg] config_file, or "
            "--cyborg-config-file"
        )
    # By default, oslo.db tries to connect ten times, ten seconds apart. A command must report the error immediately.
    host.set_override("max_retries", 0, group="database")
    return made


def new_records(conf: cfg.ConfigOpts) -> Records:
    """Cyborg's records, when its configuration has been read. A copy of some of them is kept in each of these."""
    from cyborg_quota.cyborg.arq_records import Records  # imported late: it registers [database]

    return Records(ResourceMap.from_conf(conf), conf.cyborg.claim_capacity)


def connection(host: Any) -> str | None:
    """The database URL in Cyborg's configuration; None if it is not set. Raises ConfigurationError without the URL.

    Cyborg's default, an SQLite file, which some of its modules set when they are imported, counts as not set.
    """
    try:
        url: str | None = host.database.connection
    except cfg.Error:
        raise exceptions.ConfigurationError(
            "Cyborg's configuration: [database] connection names another option: write $$ for a $."
        ) from None
    defaults = (cfg.Locations.opt_default, cfg.Locations.set_default)
    return None if host.get_location("connection", "database").location in defaults else url


def reconciler(
    conf: cfg.ConfigOpts,
    engine: QuotaEngine,
    cyborg_records: Records,
    grace_seconds: float | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> Reconciler:
    """A Reconciler configured by [cyborg]. ``grace_seconds`` replaces [cyborg] reconcile_grace unless it is None."""
    from cyborg_quota.cyborg.reconciler import Reconciler

    return Reconciler(
        engine,
        cyborg_records,
        cyborg_records.resource_map.resources,
        grace_seconds=conf.cyborg.reconcile_grace if grace_seconds is None else grace_seconds,
        share=conf.cyborg.reconcile_share,
        source=resource_rules.source(conf),
        pod=resource_rules.pod(conf),
        wait=wait,
    )
