# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota-expirer: ends what is overdue and purges what ended long ago, on any number of hosts at once.

cyborg-quota-expirer --config-file /etc/cyborg_quota/cyborg_quota.conf          the service
cyborg-quota-expirer --config-file ... --once                                   one turn, for cron
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import cotyledon
import futurist
from futurist import periodics
from oslo_config import cfg
from oslo_log import log as logging

import cyborg_quota
from cyborg_quota import QuotaEngine, exceptions, validation
from cyborg_quota.cmd import base, notifications
from cyborg_quota.cmd.errors import DONE, INTERRUPTED, REFUSED, exit_status, one_line

LOG = logging.getLogger(__name__)

PROG: Final = "cyborg-quota-expirer"
_JITTER: Final = 0.1
"""How much of an interval a turn may be late: services started together must not march in step."""

_CHECK_SECONDS: Final = 60
"""How long after a failed check of the project tree the next one is, until one succeeds."""

STOP_SECONDS: Final = 30
"""After SIGTERM: longer than a batch may take, retries and all. The unit file allows more."""

_CLI_OPTS = [cfg.BoolOpt("once", default=False, help="Expire and purge once, print the counts, and exit: for cron.")]


class Stopping(Exception):
    """Raised between two batches. Each is a transaction of its own: what is done, is done."""


class Upkeep:
    """The two jobs. ``stop`` may be called from any thread, and ends a running job after its batch."""

    def __init__(self, conf: cfg.ConfigOpts, engine: QuotaEngine) -> None:
        self._engine = engine
        self._context = validation.admin_context()
        self._purge_age = conf.quota.purge_age
        self._send = notifications.sender(conf)
        self._stopped = threading.Event()

    def stop(self) -> None:
        """No further batch."""
        self._stopped.set()

    def expire(self) -> int:
        """End what is overdue; how many reservations."""
        return self._engine.expire(self._context, progress=self._go_on)

    def purge(self) -> int:
        """Delete what ended long ago; how many rows."""
        return self._engine.purge(self._context, self._purge_age, progress=self._go_on)

    def tell(self) -> int:
        """Tell who has crossed a threshold of a limit; how many crossings."""
        notices = self._engine.notices(self._context)
        for notice in notices:
            notifications.tell(notice, self._send)
        return len(notices)

    def warn_of_ignored_edges(self) -> None:
        """Log once that the project tree has edges of another limit driver; again later if the ledger is away."""
        try:
            warning = self._engine.administration.ignored_edges_warning(self._context)
        except exceptions.QuotaError as error:
            LOG.debug("The project tree could not be checked: %s", error)
            return
        if warning is not None:
            LOG.warning("%s", warning)
        raise periodics.NeverAgain("checked")

    def turn(self, job: Callable[[], int], done: str, longest_wait_seconds: float) -> None:
        """One turn of the service: waits a little, does the job, logs what came of it. Raises nothing."""
        if self._stopped.wait(random.uniform(0, longest_wait_seconds)):
            return
        outcome = self._outcome(job)
        # Outside of any except: oslo.log would add the exception to the line once more.
        if isinstance(outcome, Exception):
            LOG.error("%s Tried again at the next turn.", outcome)
        elif outcome is not None:
            LOG.log(logging.INFO if outcome else logging.DEBUG, done, outcome)

    def _outcome(self, job: Callable[[], int]) -> int | exceptions.QuotaError | None:
        try:
            return job()
        except Stopping:
            return None
        except exceptions.QuotaError as error:
            return error
        except Exception:
            LOG.exception("A turn failed; tried again at the next one.")
            return None

    def _go_on(self, _count: int) -> None:
        if self._stopped.is_set():
            raise Stopping


class Expirer(cotyledon.Service):
    """The service's one worker. cotyledon makes it in the child: no connection is shared with the master."""

    name = PROG

    def __init__(self, worker_id: Any, conf: cfg.ConfigOpts) -> None:
        super().__init__(worker_id)
        self._engine = cyborg_quota.make_engine(conf)
        self._upkeep = Upkeep(conf, self._engine)
        self._periodic = periodics.PeriodicWorker(
            [
                self._job(self._upkeep.expire, "Expired %d reservations.", conf.quota.expire_interval),
                self._job(self._upkeep.purge, "Purged %d reservations.", conf.quota.purge_interval),
                self._job(self._upkeep.tell, "Told of %d crossed thresholds.", conf.notices.interval),
                (self._tree_check(), (), {}),
            ],
            # A long purge must not keep expiry waiting.
            executor_factory=lambda: futurist.ThreadPoolExecutor(max_workers=3),
        )

    def _tree_check(self) -> Callable[[], None]:
        @periodics.periodic(spacing=_CHECK_SECONDS, run_immediately=True)
        def check() -> None:
            self._upkeep.warn_of_ignored_edges()

        return check

    def _job(
        self, job: Callable[[], int], done: str, interval_seconds: int
    ) -> tuple[Callable[[], None], tuple[()], dict[str, object]]:
        @periodics.periodic(spacing=interval_seconds, run_immediately=True)
        def turn() -> None:
            self._upkeep.turn(job, done, interval_seconds * _JITTER)

        return turn, (), {}

    def run(self) -> None:
        LOG.info("Started.")
        self._periodic.start()

    def terminate(self) -> None:
        """SIGTERM: running jobs end after their batch."""
        self._upkeep.stop()
        self._periodic.stop()
        self._periodic.wait()
        self._engine.close()
        LOG.info("Stopped.")


def _once(conf: cfg.ConfigOpts) -> int:
    engine = cyborg_quota.make_engine(conf)
    upkeep = Upkeep(conf, engine)
    try:
        print(f"expired {upkeep.expire()}")
        print(f"purged {upkeep.purge()}")
        upkeep.tell()
    finally:
        engine.close()
    return DONE


def _serve(conf: cfg.ConfigOpts) -> int:
    cyborg_quota.make_engine(conf).close()  # what cannot be configured is said here, not by a worker that dies
    manager = cotyledon.ServiceManager(graceful_shutdown_timeout=STOP_SECONDS)
    manager.add(Expirer, workers=1, args=(conf,))
    manager.run()
    return DONE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service, or one turn; returns the exit status."""
    conf = cfg.ConfigOpts()
    try:
        logging.register_options(conf)
        # It tells of every look at the schema's revision.
        logging.set_defaults(default_log_levels=[*logging.get_default_log_levels(), "alembic=WARN"])
        conf.register_cli_opts(_CLI_OPTS)
        base.load_conf(
            conf,
            sys.argv[1:] if argv is None else argv,
            prog=PROG,
            description="Ends overdue reservations, and deletes those that ended long ago.",
        )
        if not (conf.log_file or conf.log_dir or conf.use_syslog or conf.use_journal):
            conf.set_default("use_stderr", True)  # oslo.log would take stdout, where --once prints its counts
        logging.setup(conf, "cyborg_quota")
        return _once(conf) if conf.once else _serve(conf)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (exceptions.QuotaError, cfg.Error) as error:
        print(f"{PROG}: {one_line(str(error))}", file=sys.stderr)
        return exit_status(error)
    except Exception as error:
        LOG.debug("Not foreseen:", exc_info=True)
        print(f"{PROG}: Internal error: {one_line(repr(error))}. (--debug shows where.)", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
