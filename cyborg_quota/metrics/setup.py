# SPDX-License-Identifier: Apache-2.0
"""Switches metrics on as the configuration says. The only module of this package that others import."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Final

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.ledger.base import QuotaDriver
from cyborg_quota.limits import project_directory
from cyborg_quota.metrics.ledger_calls import DirectCalls, LedgerCalls

if TYPE_CHECKING:
    from cyborg_quota.metrics.exporter import Exporter, Names
    from cyborg_quota.metrics.recorder import Recorder

VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


def engine_class(conf: cfg.ConfigOpts) -> type[QuotaEngine]:
    """The class of the engine: one that counts its calls if its process has a directory for counters, or serves them.

    Raises ConfigurationError.
    """
    if not is_enabled(conf):
        return QuotaEngine
    _import()
    from cyborg_quota.metrics.engine import MeasuredEngine

    return MeasuredEngine


def is_enabled(conf: cfg.ConfigOpts) -> bool:
    """Whether this process counts its calls."""
    return VARIABLE in os.environ or listens(conf)


def observe(engine: QuotaEngine, driver: QuotaDriver) -> None:
    """Count the retries of the driver too, if the engine counts its calls."""
    if type(engine) is not QuotaEngine:
        driver.observe_retries(recorder().count_retry)


def listens(conf: cfg.ConfigOpts) -> bool:
    """Whether services serve metrics."""
    return "metrics" in conf and conf.metrics.listen is not None


def make_exporter(
    conf: cfg.ConfigOpts, engine: QuotaEngine, ledger_calls: LedgerCalls | None = None
) -> Exporter | None:
    """The server of the metrics, which is not started; None if [metrics] listen is not set. No I/O.

    ``ledger_calls``: None calls the ledger directly. Raises ConfigurationError, also if [metrics] project_names is set
    and Keystone is not configured.
    """
    if not listens(conf):
        return None
    _import()
    from cyborg_quota.metrics.exporter import Exporter

    names = _names_reader(conf) if conf.metrics.project_names else None
    return Exporter(conf, engine, names, ledger_calls or DirectCalls())


def serve(conf: cfg.ConfigOpts, engine: QuotaEngine, ledger_calls: LedgerCalls | None = None) -> None:
    """Serve metrics until this process ends, if [metrics] listen is set. Raises ConfigurationError."""
    exporter = make_exporter(conf, engine, ledger_calls)
    if exporter is not None:
        atexit.register(exporter.stop)  # another process can then be elected at once
        exporter.start()


def _names_reader(conf: cfg.ConfigOpts) -> Names:
    """A function that finds the names of projects by their ids. Raises ConfigurationError."""
    project_directory.make_directory(conf)  # reports a wrong configuration now
    # A directory keeps the list of all projects: a new one sees new projects and names.
    return lambda project_ids: project_directory.make_directory(conf).names(project_ids)


def recorder() -> Recorder:
    """The recorder of this process. Raises ConfigurationError."""
    _import()
    from cyborg_quota.metrics import recorder as module

    return module.recorder()


def _import() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise exceptions.ConfigurationError(
            f"[metrics] listen or {VARIABLE} is set, and metrics need prometheus_client: install cyborg_quota[metrics]."
        ) from None
