# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota-expirer: expires overdue reservations, purges old ones, sends notices and measures pods.

With --reconcile, it also compares the ledger with Cyborg's records and repairs it, as cyborg-quota-conductor does.

It may run on several hosts at once.

cyborg-quota-expirer --config-file /etc/cyborg_quota/cyborg_quota.conf          run as a service
cyborg-quota-expirer --config-file ... --once                                   run once, for cron
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import cotyledon
import futurist
from futurist import periodics
from oslo_config import cfg
from oslo_log import log as logging

import cyborg_quota
from cyborg_quota import QuotaEngine, exceptions, validation
from cyborg_quota.cli import notifications
from cyborg_quota.cli.errors import DONE, REFUSED, open_streams, run_program
from cyborg_quota.conf import loading, resource_rules
from cyborg_quota.cyborg import cyborg_host
from cyborg_quota.cyborg.repair import Repair
from cyborg_quota.metrics import setup as metrics
from cyborg_quota.types.capacity import COLLECT_SECONDS

LOG = logging.getLogger(__name__)

PROG: Final = "cyborg-quota-expirer"
_JITTER: Final = 0.1
"""The largest random delay of a run, as a share of its interval, so that several expirers do not run in step."""

RETRY_SECONDS: Final = 600
"""The longest time between two searches for pods to measure, and so until a failure is tried again."""

STOP_SECONDS: Final = 30
"""The time to stop after SIGTERM: longer than one batch with its retries. TimeoutStopSec of the unit is longer."""

CLI_OPTS: Final[list[cfg.Opt]] = [
    cfg.BoolOpt("once", default=False, help="Expire and purge once, print the counts, and exit: for cron."),
    cfg.BoolOpt(
        "reconcile",
        default=False,
        help="Compare the ledger with Cyborg's records, and repair it: for a Cyborg that runs its own conductor.",
    ),
]


class Stopping(Exception):
    """Raised between two batches to stop a job. Each batch is one transaction, so finished batches stay committed."""


class Maintenance:
    """The periodic jobs. ``stop`` may be called from any thread; it ends a running job after its current batch."""

    def __init__(self, conf: cfg.ConfigOpts, engine: QuotaEngine, repair: Repair | None = None) -> None:
        self._engine = engine
        self._context = validation.admin_context()
        self._conf = conf
        self._send = notifications.make_sender(conf)
        self._repair = repair
        self._compare_all_at = 0.0
        self.collect_spacing_seconds: Final[int] = min(conf.pods.collect_interval or RETRY_SECONDS, RETRY_SECONDS)
        """The time between two searches for pods to measure."""
        self._stopped = threading.Event()
        self._set_expired_at = metrics.gauge(
            conf,
            "cyborg_quota_expirer_last_success_timestamp_seconds",
            "When overdue reservations were last expired without an error, in Unix time.",
        )
        self._set_drift_rows = metrics.gauge(
            conf, "cyborg_quota_drift_rows", "Counters that differ from the reservations, by the last audit."
        )

    def stop(self) -> None:
        """Start no further batch."""
        self._stopped.set()

    def expire(self) -> int:
        """Expire overdue reservations; returns their number."""
        expired = self._engine.expire(self._context, progress=self._check_stopped)
        self._set_expired_at(time.time())
        return expired

    def purge(self) -> int:
        """Delete reservations that ended long ago, and old entries of the history; returns the number of rows."""
        age, history_age = self._conf.quota.purge_age, self._conf.limits.history_age
        purged = self._engine.purge(self._context, age, progress=self._check_stopped)
        if history_age is not None:
            purged += self._engine.limits.purge_history(self._context, history_age)
        return purged

    def notify(self) -> int:
        """Log and send a notice for each crossed threshold of a limit or a capacity; returns their number."""
        sent = 0
        for source in (self._engine, *self._engine.subjects.values()):
            notices = source.notices(self._context)
            # A summary of many must not hide that a total limit or a resource is nearly full.
            totals = [notice for notice in notices if notice.owner is None]
            notifications.notify_all([notice for notice in notices if notice not in totals], self._send)
            notifications.notify_all(totals, self._send)
            sent += len(notices)
        return sent

    def collect(self) -> int:
        """Measure the pods whose measurement is too old; returns their number."""
        if not self._conf.pods.collect_interval or "pods" not in self._engine.subjects:
            return 0
        from cyborg_quota.cli import pod  # (an installation may have no pods)

        collected = self._engine.pods.collect(
            self._context,
            read_endpoint=functools.partial(pod.read_endpoint, self._conf, COLLECT_SECONDS),
            timeout_seconds=COLLECT_SECONDS,
            # A pod that falls due in the first half of the pause until the next search is measured now.
            max_age_seconds=self._conf.pods.collect_interval - self.collect_spacing_seconds / 2,
            progress=self._check_stopped,
        )
        failed = [outcome for outcome in collected if outcome.error is not None]
        for outcome in failed:
            age = "none" if outcome.usage.age is None else f"{outcome.usage.age.total_seconds():.0f} seconds old"
            LOG.warning("Pod %s was not measured: %s (Its last figures: %s.)", outcome.usage.pod, outcome.error, age)
        return sum(outcome.error is None and outcome.usage.usage is not None for outcome in collected)

    def audit(self) -> int:
        """Compare all counters with the reservations, for the metrics; returns the number that differ."""
        drift = len(self._engine.audit(self._context))
        self._set_drift_rows(drift)
        return drift

    def reconcile(self) -> int:
        """Compare the ledger with Cyborg's records and repair it; returns 1 if that failed.

        Compares what changed lately, and all at the first time and every [cyborg] reconcile_interval.
        """
        if self._repair is None:
            return 0
        now, interval = time.monotonic(), self._conf.cyborg.reconcile_interval
        is_all = bool(interval) and now >= self._compare_all_at
        if is_all:
            self._compare_all_at = now + float(interval)
        elif not self._repair.is_healing:
            return 0
        has_failed = not self._repair.run(compare_all=is_all)
        if has_failed and is_all:
            self._compare_all_at = now  # again at the next turn
        return int(has_failed)

    def run_job(self, job: Callable[[], int], message: str, longest_wait_seconds: float) -> None:
        """Run a job once: wait for a random time, run it, log the result. Raises nothing."""
        if self._stopped.wait(random.uniform(0, longest_wait_seconds)):
            return
        count, failure = 0, ""
        try:
            count = job()
        except Stopping:
            return
        except exceptions.QuotaError as error:
            failure = str(error)
        except Exception:
            LOG.exception("A periodic job failed unexpectedly; it is retried at its next interval.")
            return
        # Outside the except clause: inside, oslo.log would append the exception to the line again.
        if failure:
            LOG.error("%s The job is retried at its next interval.", failure)
        else:
            LOG.log(logging.INFO if count else logging.DEBUG, message, count)

    def _check_stopped(self, _size: int) -> None:
        """Raise Stopping, after a batch, if no further one may start."""
        if self._stopped.is_set():
            raise Stopping


class Expirer(cotyledon.Service):
    """The worker process of the service. cotyledon creates it after the fork, so it shares no connection."""

    name = PROG

    def __init__(self, worker_id: Any, conf: cfg.ConfigOpts) -> None:
        super().__init__(worker_id)
        self._engine = cyborg_quota.make_engine(conf)
        self._maintenance = Maintenance(conf, self._engine, _make_repair(conf, self._engine))
        jobs = [
            self._job(self._maintenance.expire, "Expired %d reservations.", conf.quota.expire_interval),
            self._job(self._maintenance.purge, "Purged %d reservations.", conf.quota.expire_interval),
            self._job(self._maintenance.notify, "Sent %d threshold notices.", conf.quota.expire_interval),
            self._job(self._maintenance.collect, "Measured %d pods.", self._maintenance.collect_spacing_seconds),
        ]
        if conf.reconcile:
            failed = "%d comparison with Cyborg's records failed."
            jobs.append(self._job(self._maintenance.reconcile, failed, conf.cyborg.reconcile_seconds))
        if metrics.is_enabled(conf) and conf.metrics.audit_interval:
            jobs.append(self._job(self._maintenance.audit, "%d counters differ.", conf.metrics.audit_interval))
        metrics.serve_counters(conf)
        # One thread for each job: a long purge must not delay expiry.
        self._periodic = periodics.PeriodicWorker(
            jobs, executor_factory=lambda: futurist.ThreadPoolExecutor(max_workers=len(jobs))
        )

    def _job(
        self, job: Callable[[], int], message: str, interval_seconds: int
    ) -> tuple[Callable[[], None], tuple[()], dict[str, object]]:
        run = functools.partial(self._maintenance.run_job, job, message, interval_seconds * _JITTER)
        return periodics.periodic(spacing=interval_seconds, run_immediately=True)(run), (), {}

    def run(self) -> None:
        LOG.info("Started.")
        self._periodic.start()

    def terminate(self) -> None:
        """Stop on SIGTERM: running jobs end after their current batch."""
        self._maintenance.stop()
        self._periodic.stop()
        self._periodic.wait()
        self._engine.close()
        LOG.info("Stopped.")


def _make_repair(conf: cfg.ConfigOpts, engine: QuotaEngine) -> Repair | None:
    """The repair of the ledger with the records of Cyborg's database. Raises ConfigurationError, cfg.Error."""
    if not conf.reconcile:
        return None
    # Reports a wrong configuration.
    cyborg_host.records(conf)
    resource_rules.source(conf)
    resource_rules.pod(conf)
    return Repair(
        lambda: cyborg_host.reconciler(conf, engine, cyborg_host.new_records(conf)),
        is_healing=conf.cyborg.reconcile_heal,
    )


def _once(conf: cfg.ConfigOpts) -> int:
    with contextlib.closing(cyborg_quota.make_engine(conf)) as engine:
        maintenance = Maintenance(conf, engine, _make_repair(conf, engine))
        print(f"expired {maintenance.expire()}")
        print(f"purged {maintenance.purge()}")
        has_failed = maintenance.reconcile()
        maintenance.collect()
        maintenance.notify()
    return REFUSED if has_failed else DONE


def _serve(conf: cfg.ConfigOpts) -> int:
    # Report an invalid configuration here, before a worker process starts.
    with contextlib.closing(cyborg_quota.make_engine(conf)) as engine:
        _make_repair(conf, engine)
        notifications.make_sender(conf)
    manager = cotyledon.ServiceManager(graceful_shutdown_timeout=STOP_SECONDS)
    manager.add(Expirer, workers=1, args=(conf,))
    manager.run()
    return DONE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service, or its jobs once; returns the exit status."""
    open_streams()
    return run_program(PROG, lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    conf = cfg.ConfigOpts()
    logging.register_options(conf)
    # alembic logs each check of the schema's revision at INFO; oslo.db, the traceback of an error without a type.
    levels = [*logging.get_default_log_levels(), "alembic=WARN", "oslo_db.sqlalchemy.exc_filters=ERROR"]
    logging.set_defaults(default_log_levels=levels)
    conf.register_cli_opts(CLI_OPTS)
    loading.load(
        conf,
        argv,
        prog=PROG,
        usage=argparse.SUPPRESS,  # an error in the arguments is one line
        version=cyborg_quota.__version__,
        description="Expires overdue reservations, and deletes reservations that ended long ago.",
    )
    if not (conf.log_file or conf.log_dir or conf.use_syslog or conf.use_journal):
        conf.set_default("use_stderr", True)  # the default is stdout, where --once prints its counts
    logging.setup(conf, "cyborg_quota")
    return _once(conf) if conf.once else _serve(conf)


if __name__ == "__main__":
    sys.exit(main())
