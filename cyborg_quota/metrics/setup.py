# SPDX-License-Identifier: Apache-2.0
"""Counts the calls of a process, and serves its counters, as [metrics] listen says.

The only module of this package that others import.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.engine import QuotaEngine

if TYPE_CHECKING:
    from cyborg_quota.metrics.counters import Recorder

LOG = logging.getLogger(__name__)


def engine_class(conf: cfg.ConfigOpts) -> type[QuotaEngine]:
    """The class of the engine: one that counts its calls if [metrics] listen is set."""
    return _counters().MeasuredEngine if is_enabled(conf) else QuotaEngine


def is_enabled(conf: cfg.ConfigOpts) -> bool:
    """Whether this process counts its calls."""
    return "metrics" in conf and bool(conf.metrics.listen)


def gauge(conf: cfg.ConfigOpts, name: str, help_text: str) -> Callable[[float], None]:
    """What sets a gauge of this process, which has no series before; it does nothing if the process counts nothing."""
    if not is_enabled(conf):
        return lambda _value: None
    registry = recorder().registry
    from prometheus_client import Gauge

    return Gauge(name, help_text, registry=registry).set


def count_refused(conf: cfg.ConfigOpts, resources: Iterable[str], error: exceptions.QuotaError) -> None:
    """Count a reserve that this error refused before the engine was called."""
    if is_enabled(conf):
        recorder().count_reserve(resources, _counters().result_of(error))


def serve_counters(conf: cfg.ConfigOpts) -> None:
    """Serve the counters of this process at the first free address of [metrics] listen, until the process ends.

    A child does not inherit the server: call this after the fork. If no address is free, the process runs without.
    """
    if not is_enabled(conf):
        return
    from prometheus_client import exposition

    # Python 3.12.5 sets it: two processes would share one address.
    exposition.ThreadingWSGIServer.allow_reuse_port = False  # type: ignore[attr-defined]
    reasons = []
    for address in conf.metrics.listen:
        host, _, port = address.rpartition(":")
        try:
            exposition.start_http_server(int(port), host.strip("[]"), registry=recorder().registry)
        except (OSError, OverflowError, UnicodeError) as error:  # (a port above 65535, an invalid name)
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
        else:
            LOG.info("The counters of this process are served at %s.", address)
            return
    LOG.warning("The counters of this process are not served: no address in [metrics] listen is free (%s).", reasons)


@functools.cache
def recorder() -> Recorder:
    """The recorder of this process, in which a metric exists once. Raises ConfigurationError."""
    return _counters().Recorder()  # type: ignore[no-any-return]


def _counters() -> Any:
    """The module that needs prometheus_client. Raises ConfigurationError."""
    try:
        from cyborg_quota.metrics import counters
    except ImportError:
        raise exceptions.ConfigurationError(
            "[metrics] listen is set, and needs prometheus_client: install cyborg_quota[metrics]."
        ) from None
    return counters
