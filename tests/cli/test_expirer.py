# SPDX-License-Identifier: Apache-2.0
"""The installed program cyborg-quota-expirer."""

from __future__ import annotations

import logging
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import fixtures as fx

from cyborg_quota import exceptions
from cyborg_quota.cli import expirer, status
from tests.cli import base
from tests.servers import machine

UNIT = pathlib.Path(__file__).parents[2] / "etc/systemd/cyborg-quota-expirer.service"


class ExpirerCase(base.CliTestCase):
    def overdue(self, count: int) -> None:
        """Make a number of overdue reservations."""
        self.prepare(*["reserve --project p1 gpu=1"] * count)
        self.make_overdue()

    def shell(self) -> base.main.Shell:
        shell = base.main.Shell()
        shell.options, _ = shell.parser.parse_known_args(["--config-file", str(self.conf)])
        self.addCleanup(shell.engine.close)
        return shell


class OnceTest(ExpirerCase):
    def test_once_expires_and_purges(self) -> None:
        self.configure("[quota]\npurge_age = 0")
        self.overdue(2)
        ended = self.call_expirer("--once")
        self.assertEqual(0, ended.status, ended.err)
        self.assertRegex(ended.out, r"\Aexpired 2\npurged [02]\n\Z")  # not yet older than the maximum age
        self.assertEqual(0, self.good("list", "--usage")[0]["reserved"])
        time.sleep(0.01)
        self.call_expirer("--once")
        self.assertEqual([], self.good("reservation", "list"))
        self.assertEqual("expired 0\npurged 0\n", self.call_expirer("--once").out)

    def test_an_outage_is_one_line_and_1(self) -> None:
        self.configure("[quota]\nretry_seconds = 0.1", url="mysql+pymysql://quota:secret@127.0.0.1:1/quota")
        ended = self.call_expirer("--once")
        self.assertEqual((1, ""), (ended.status, ended.out))
        self.assertRegex(ended.err, r"\Acyborg-quota-expirer: The database did not complete the call .*\n\Z")
        self.assertNotIn("secret", ended.err)

    def test_bad_usage_is_2(self) -> None:
        for text in ("[limits]\ndriver = ghost", "[quota]\nexpire_interval = never"):
            self.configure(text)
            self.assertEqual(2, self.call_expirer("--once").status, text)

    def test_a_wrong_argument_is_one_line(self) -> None:
        """What is wrong, without the usage."""
        upgrade = "cyborg-quota-status upgrade: error: "
        for main, argv, expected in (
            (expirer.main, ["--bogus"], "cyborg-quota-expirer: error: unrecognized arguments: --bogus"),
            (expirer.main, ["--once", "x"], "cyborg-quota-expirer: error: unrecognized arguments: x"),
            (expirer.main, ["--config-file"], "expected one argument"),
            (status.main, ["--bogus"], "cyborg-quota-status: "),
            (status.main, [], "cyborg-quota-status: error: "),
            (status.main, ["downgrade"], "invalid choice: 'downgrade'"),
            (status.main, ["upgrade"], upgrade),
            (status.main, ["upgrade", "chek"], upgrade),
            (status.main, ["upgrade", "check", "--yaml"], "unrecognized arguments: --yaml"),
        ):
            ended = base.run_program(main, *argv)
            self.assertEqual((2, "", 1), (ended.status, ended.out, ended.err.count("\n")), ended.err)
            self.assertIn(expected.lower(), ended.err.lower())
            self.assertTrue(ended.err.startswith("cyborg-quota-"))


class ServiceTest(ExpirerCase):
    def serve(self) -> subprocess.Popen[str]:
        # A session of its own: cotyledon signals its whole process group.
        return self.spawn(program="cyborg-quota-expirer", start_new_session=True)

    def reserved(self) -> int:
        return int(self.good("list", "--usage")[0]["reserved"])

    def wait_until(self, process: subprocess.Popen[str], is_so: Callable[[], bool]) -> None:
        machine.wait_until(lambda: is_so() or process.poll() is not None, 30)
        self.assertEqual((None, True), (process.poll(), is_so()), "it ended, or takes too long")

    def stop(self, process: subprocess.Popen[str]) -> tuple[str, float]:
        """Send SIGTERM; returns the log, and the seconds that the end took."""
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        self.assertEqual(0, process.returncode, err)
        self.assertNotIn("Traceback", err)
        return err, time.monotonic() - began

    def test_two_instances_expire_and_stop_immediately(self) -> None:
        log = self.directory / "expirer.log"
        self.configure(f"[quota]\nexpire_interval = 1\n[DEFAULT]\nlog_file = {log}")
        self.overdue(7)
        processes = [self.serve(), self.serve()]
        # Both: a process that is still loading does not handle SIGTERM yet.
        self.wait_until(processes[0], lambda: log.exists() and log.read_text().count(" Started.\n") == 2)
        self.wait_until(processes[0], lambda: self.reserved() == 0)
        longest = max([self.stop(process)[1] for process in processes])
        self.assertEqual([], self.good("audit"))
        lines = [line for line in log.read_text().splitlines() if " Expired " in line]
        self.assertEqual(7, sum(int(line.split()[-2]) for line in lines))
        self.assertLess(longest, 30)

    def test_it_survives_an_outage_and_logs_one_line(self) -> None:
        later = self.directory / "later.sqlite"
        log = self.directory / "expirer.log"
        self.configure(f"[quota]\nexpire_interval = 1\n[DEFAULT]\nlog_file = {log}", url=f"sqlite:///{later}")
        process = self.serve()
        self.wait_until(process, lambda: log.exists() and "is retried at its next interval.\n" in log.read_text())
        self.good("db", "sync")
        self.good("reserve", "--project", "p1", "--expire", "1", "gpu=1")
        self.wait_until(process, lambda: self.reserved() == 0)
        self.stop(process)
        text = log.read_text()
        self.assertEqual((1, 0), (text.count("Expired 1 reservations."), text.count("Traceback")), text)

    def test_a_wrong_configuration_ends_it(self) -> None:
        """At once, and not in a worker that is started again for ever."""
        for text, named in (
            ("[pods]\ncollect_interval = 1d", "collect_interval"),
            ("[notices]\nnotifications = true\n[DEFAULT]\ntransport_url = nonsense://x", "transport_url"),
        ):
            self.configure(text)
            process = self.serve()
            out, err = process.communicate(timeout=60)
            self.assertEqual((2, ""), (process.returncode, out), err)
            self.assertNotIn("Traceback", err)
            [line] = [one for one in err.splitlines() if one.startswith("cyborg-quota-expirer: ")]
            self.assertIn(named, line)


class MaintenanceTest(ExpirerCase):
    def maintenance(self, batch_rows: int | None = None, repair: mock.Mock | None = None) -> expirer.Maintenance:
        shell = self.shell()
        if batch_rows is not None:
            shell.engine._driver.reservations._batch_rows = batch_rows
        return expirer.Maintenance(shell.conf, shell.engine, repair)

    def test_a_comparison_that_failed_is_repeated_at_the_next_turn(self) -> None:
        repair = mock.Mock(is_healing=False, **{"run.side_effect": [False, True]})
        maintenance = self.maintenance(repair=repair)
        self.assertEqual([1, 0, 0], [maintenance.reconcile() for _ in range(3)])
        self.assertEqual([mock.call(compare_all=True)] * 2, repair.run.mock_calls)

    def test_each_job_has_a_thread(self) -> None:
        """Otherwise, long jobs would delay expiry."""
        made: list[Any] = []
        self.useFixture(
            fx.MonkeyPatch("futurist.periodics.PeriodicWorker", lambda *jobs, **more: made.append((*jobs, more)))
        )
        conf = self.shell().conf
        conf.register_opts(expirer.CLI_OPTS)
        expirer.Expirer(1, conf)._engine.close()
        [(jobs, more)] = made
        with more["executor_factory"]() as pool:
            self.assertGreaterEqual(pool._max_workers, len(jobs))

    def test_it_stops_between_two_batches(self) -> None:
        self.overdue(5)
        maintenance = self.maintenance(batch_rows=2)
        logger = self.useFixture(fx.FakeLogger(level=logging.INFO))

        def expire() -> int:
            maintenance.stop()  # after the run has begun
            return maintenance.expire()

        maintenance.run_job(expire, "Expired %d reservations.", 0)
        self.assertEqual("", logger.output)
        self.assertEqual(3, self.good("list", "--usage")[0]["reserved"])
        self.assertEqual([], self.good("audit"))

    def test_a_run_raises_nothing(self) -> None:
        maintenance = self.maintenance()
        for error in (exceptions.DatabaseUnavailable("gone", 1.0), KeyError("odd")):
            maintenance.run_job(mock.Mock(side_effect=error), "Expired", 0)
        maintenance.stop()
        began = time.monotonic()
        maintenance.run_job(self.fail, "Expired", 1000)  # type: ignore[arg-type]
        self.assertLess(time.monotonic() - began, 60)


class UnitFileTest(base.base.BaseTestCase):
    def test_the_unit_gives_it_time_to_stop(self) -> None:
        [seconds] = re.findall(r"(?m)^TimeoutStopSec=(\d+)$", UNIT.read_text())
        self.assertGreater(int(seconds), expirer.STOP_SECONDS)
