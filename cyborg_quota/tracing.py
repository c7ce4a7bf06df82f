# SPDX-License-Identifier: Apache-2.0
"""Tracing with osprofiler: the statements of the ledger, as points of the trace of the present thread.

osprofiler's own options, [profiler], say where the traces go, and with which keys a request must ask for one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

from oslo_config import cfg

from cyborg_quota import exceptions

PROJECT: Final = "cyborg_quota"


def set_up(conf: cfg.ConfigOpts, service: str) -> None:
    """Start the notifier of [profiler] for this process, if [quota] trace_statements is set.

    Raises ConfigurationError if osprofiler is not installed or [profiler] connection_string cannot be used.
    """
    if not conf.quota.trace_statements:
        return
    try:
        from osprofiler import exc, initializer, opts
    except ImportError:
        raise exceptions.ConfigurationError(
            "[quota] trace_statements needs osprofiler: install cyborg_quota[tracing]."
        ) from None
    opts.set_defaults(conf)
    try:
        initializer.init_from_conf(conf, {}, PROJECT, service, socket.gethostname())
    except exc.CommandError as error:
        raise exceptions.ConfigurationError(f"[profiler] connection_string: {error}") from None


def wrap(application: Callable[..., Any], conf: cfg.ConfigOpts) -> Callable[..., Any]:
    """A WSGI application that traces each request that is signed with one of [profiler] hmac_keys."""
    if not conf.quota.trace_statements or not conf.profiler.enabled:
        return application
    from osprofiler import web

    traced: Callable[..., Any] = web.WsgiMiddleware(application, hmac_keys=conf.profiler.hmac_keys, enabled=True)
    return traced
