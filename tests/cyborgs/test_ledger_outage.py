# SPDX-License-Identifier: Apache-2.0
"""The ledger's database refuses connections or does not answer: deletes succeed, and all is released afterwards."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import urllib.request
import uuid
from collections.abc import Iterator

from tests import fixtures, hooks
from tests.cyborgs import quota
from tests.cyborgs.service import Service
from tests.faults.proxy import Proxy
from tests.servers import machine

BACK_SECONDS = 60.0
WAITED = "The database did not complete the call "
"""In the log of a ledger call: it waited until its deadline, or was not made."""
NOT_CALLED, NOT_ASKED = "within 0.0 s", "calls fail immediately until a probe reaches it"
OPENED, CLOSED = "The ledger's database is unreachable", "The ledger's database is reachable again"
UNAVAILABLE = "The accelerator quota cannot be checked at the moment. Try again later."
MANY, TEN = 8, 10


@functools.cache
def proxy_of(_pid: int, url: str) -> Proxy:
    """One proxy per process: with another proxy's URL, the services would have to be restarted."""
    made = Proxy(url)
    made.setUp()
    fixtures.at_exit(made.cleanUp)
    return made


class OutageTestCase(quota.QuotaTestCase):
    # Only the end of the outage starts a comparison: the turns of the conductor would open its breaker, too.
    metrics_address = f"127.0.0.1:{machine.free_port()}"
    options = (
        "reconcile_heal = true\nreconcile_interval = 0\nreconcile_seconds = 300\nreconcile_grace = 1\n"
        "[quota]\nexpire_interval = 300\nretry_seconds = 1\nstatement_timeout = 1\nconnect_timeout = 1\n"
        f"[metrics]\nlisten = {metrics_address}"
    )

    def url_for(self, url: str) -> str:
        self.proxy = proxy_of(os.getpid(), url)
        return self.proxy.url

    def setUp(self) -> None:
        super().setUp()
        self.since = {service: len(service.output()) for service in (self.stack.api, self.stack.conductor)}

    def count_failed(self) -> float:
        """The reserves that the conductor exports in its counter of those refused because of the ledger."""
        name = 'cyborg_quota_reserves_total{resource="fpga",result="database_error"} '
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    @contextlib.contextmanager
    def make_unavailable(self, how: str) -> Iterator[None]:
        """The ledger is unreachable while the block runs; on exit, every service has detected its return.

        ``how``: an attribute of the proxy.
        """
        setattr(self.proxy, how, True)
        try:
            yield
        finally:
            setattr(self.proxy, how, False)
            for service in self.since:
                self.wait_until_back(service)

    def lines(self, service: Service, words: str) -> list[str]:
        """The lines with this text that the service has logged since the test began."""
        return [line for line in service.output()[self.since.get(service, 0) :].splitlines() if words in line]

    def waits(self, service: Service) -> int:
        """The number of ledger calls that waited until their deadline."""
        return sum(OPENED not in line and NOT_CALLED not in line for line in self.lines(service, WAITED))

    def wait_until_back(self, service: Service) -> None:
        """Wait until the service's circuit breaker is closed; it was opened at most once."""
        if service.running:
            opened = len(self.lines(service, OPENED))
            machine.wait_until(lambda: len(self.lines(service, CLOSED)) == opened, BACK_SECONDS)
            self.assertEqual(opened, len(self.lines(service, CLOSED)), service.tail())
            self.assertLessEqual(opened, 1)

    def wait_until_charged(self, used: int) -> None:
        self.wait_for_figures(used)
        self.assert_agree()


class TestUnavailable(OutageTestCase):
    def check(self, how: str) -> None:
        """A delete of eight ARQs waits once, the next delete does not wait. Binds get 503; only the first one waits."""
        arqs, more = self.client.created(self.profile, MANY), self.client.created(self.profile, 2)
        instance, new = self.bind(arqs), self.client.created(self.profile, 2)
        self.bind(more)
        api, conductor = self.stack.api, self.stack.conductor
        with self.make_unavailable(how):
            answers = [
                self.client.delete_instance(instance),
                self.client.delete(more),
                self.client.call("GET", "/accelerator_requests"),  # needs no ledger
                self.client.call("GET", f"/quotas/{self.project_id}/detail"),
            ]
            self.assertEqual([204, 204, 200, 503], [answer.status for answer in answers])
            self.assertRegex(self.client.received["Retry-After"], "^[1-9][0-9]?$")
            left = len(self.lines(api, "is unbound and still charged"))
            self.assertEqual((1, MANY + 2, {}), (self.waits(api), left, self.records.bound()), api.tail())
            failed = self.count_failed()
            for count in (1, 2):  # the second one does not call the ledger
                self.assertEqual(UNAVAILABLE, self.refused(new, 503))
                self.assertRegex(self.client.received["Retry-After"], "^[1-9][0-9]?$")
                self.assertEqual(count, self.count_failed() - failed)
            # A turn of the conductor may have opened its breaker before.
            self.assertLessEqual(self.waits(conductor), 1, conductor.tail())
            self.assertEqual(2, self.waits(conductor) + len(self.lines(conductor, NOT_ASKED)), conductor.tail())
            self.assertEqual(["Initial"] * 2, self.records.states(new))
        if how == "is_dead":  # the first bind may have reached the database, whose answer was lost: it expires
            machine.wait_until(lambda: self.figures()[0] == 0, BACK_SECONDS)
            self.expire_all()
        self.wait_until_charged(0)
        self.bind(new)
        self.wait_until_charged(2)

    def test_refused(self) -> None:
        self.check("is_refusing")

    def test_hanging(self) -> None:
        self.check("is_dead")

    def test_many_concurrent_deletes(self) -> None:
        """Until the breaker opens, only a few calls wait, so that the other threads stay free.

        The API has no other comparison than that after the outage, so it would not release most of what is charged.
        """
        self.bind(self.client.created(self.profile, MANY))
        instances = [self.bind(self.client.created(self.profile)) for _ in range(MANY)]
        with self.make_unavailable("is_dead"), concurrent.futures.ThreadPoolExecutor(MANY) as pool:
            deletes = [pool.submit(self.client.delete_instance, instance) for instance in instances]
            self.assertEqual(200, self.client.call("GET", "/accelerator_requests").status)
            answers = [delete.result() for delete in deletes]
        self.assertEqual({204}, {answer.status for answer in answers})
        self.assertEqual({self.project_id: MANY}, self.records.bound())
        self.assertLessEqual(self.waits(self.stack.api), 2, self.stack.api.tail())
        self.wait_until_charged(MANY)

    def test_many_concurrent_binds(self) -> None:
        """Each waits once at most. The first wait that ends opens the breaker: a later bind does not wait."""
        arqs, conductor = self.client.created(self.profile, MANY), self.stack.conductor
        with self.make_unavailable("is_dead"), concurrent.futures.ThreadPoolExecutor(MANY) as pool:
            binds = [pool.submit(self.client.bind, [arq], str(uuid.uuid4()), self.rp) for arq in arqs]
            self.assertEqual({503}, {bind.result().status for bind in binds})
            waited = self.waits(conductor)
            self.assertLessEqual(waited, MANY, conductor.tail())
            self.refused(arqs, 503)
            self.assertEqual(waited, self.waits(conductor), conductor.tail())
            self.assertEqual(200, self.client.call("GET", "/accelerator_requests").status)
        self.assertEqual(["Initial"] * MANY, self.records.states(arqs))
        self.wait_until_charged(0)

    def test_bound_again_before_it_could_be_released(self) -> None:
        """A PATCH that removes ten ARQs waits once. One that is bound again keeps its charge: it is the new bind's."""
        [arq, *others] = self.client.created(self.profile, TEN)
        self.bind([arq, *others])
        with self.make_unavailable("is_refusing"):
            self.assertEqual(202, self.client.unbind([arq, *others]).status)
            self.assertEqual(["Unbound"] * TEN, self.records.states([arq, *others]))
            self.assertEqual(1, len(self.lines(self.stack.conductor, OPENED)))
            self.assertLessEqual(self.waits(self.stack.conductor), 1, self.stack.conductor.tail())
            self.proxy.is_refusing = False
            # While the breaker is still open, or was closed just now: before, during or after the comparison.
            machine.wait_until(lambda: self.client.bind([arq], str(uuid.uuid4()), self.rp).status == 202, BACK_SECONDS)
        self.assertEqual(["Bound"], self.records.states([arq]))
        self.wait_until_charged(1)

    def test_one_contended_project(self) -> None:
        """A project's rows are locked for longer than a call waits: only its binds get 503."""
        others = self.stack.client(uuid.uuid4().hex)
        self.bind(self.client.created(self.profile))
        self.bind(others.created(self.profile), others)
        locking = f"SELECT id FROM quota_usages WHERE project_id = '{self.project_id}' FOR UPDATE"
        [arq] = self.client.created(self.profile)
        with hooks.row_locks(self.sql).begin() as connection:
            self.assertEqual(1, len(connection.exec_driver_sql(locking).all()))
            self.assertEqual(UNAVAILABLE, self.refused([arq], 503))
            self.bind(others.created(self.profile), others)
        self.assertEqual([], self.lines(self.stack.conductor, OPENED))
        self.bind([arq])
        self.wait_until_charged(2)

    def test_the_process_dies(self) -> None:
        """Another process finds the charges that an ended process had not released."""
        kept, deleted = self.client.created(self.profile, 2)
        self.bind([kept])
        self.bind([deleted])
        new = self.client.created(self.profile)
        with self.make_unavailable("is_refusing"):
            self.assertEqual(204, self.client.delete([deleted]).status)
            self.stack.api.kill()
            self.stack.api.start()
            self.refused(new, 503)
        self.wait_until_charged(1)
