# SPDX-License-Identifier: Apache-2.0
"""The guidelines of the API SIG: HEAD, the address of what was created, the order of lists, and If-Match."""

from __future__ import annotations

import datetime
import functools
import threading
import urllib.parse
from concurrent import futures
from typing import Any

import testscenarios
import webob

from cyborg_quota.api.operations import OPERATIONS
from cyborg_quota.limits.api import Limits
from tests import base, held_clock, hooks
from tests.api import server
from tests.api.test_application import MANAGER, READER, ApplicationTestCase

load_tests = testscenarios.load_tests_apply_scenarios

QUOTA = "/v2/quotas/higgs"


class TestCalls(ApplicationTestCase):
    scenarios: list[Any] = []

    def test_head_wherever_get_exists(self) -> None:
        self.make_pod()
        # What is used grows with time, also between two calls.
        later = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) + datetime.timedelta(minutes=1)
        self.useFixture(held_clock.HeldClock(self.url, later))
        for one in OPERATIONS:
            if one.method == "GET" and one.path.count("{") == one.path.count("{project_id}"):
                path = one.path.format(project_id="higgs")
                got, head = (self.ask(path, method=method) for method in ("GET", "HEAD"))
                self.assertEqual((got.status_int, b""), (head.status_int, head.body), path)
                # (Each answer has an ID of its own.)
                self.assertEqual(*({**one.headers, "x-openstack-request-id": None} for one in (got, head)), path)
        self.assertEqual(404, self.ask(QUOTA, "sam@elsewhere:member,reader", "HEAD").status_int)

    def test_the_address_of_a_created_override(self) -> None:
        body = {"override": {"quota": {"gpu": 9}, "until": "2099-01-01T00:00:00Z"}}
        made = self.ask(f"{QUOTA}/overrides", method="POST", json=body)
        [override] = made.json["overrides"]
        address = urllib.parse.urlsplit(made.headers["Location"]).path
        self.assertEqual(f"{QUOTA}/overrides/{override['id']}", address)
        for token in (server.ADMIN, READER, "max@physics:manager,member,reader"):
            self.assertEqual({"override": override}, self.call(address, token))
        self.call(address, "sam@elsewhere:member,reader", status=404)
        self.call(address.replace("higgs", "physics"), status=404)
        self.call(address, method="DELETE", status=204)
        self.call(address, status=404)
        body["override"]["quota"] = {"gpu": 8, "fpga": 0}  # several have the address of their list
        made = self.ask(f"{QUOTA}/overrides", method="POST", json=body)
        self.assertEqual(f"{QUOTA}/overrides", urllib.parse.urlsplit(made.headers["Location"]).path)


class TestOrder(ApplicationTestCase):
    def test_the_history_in_both_orders(self) -> None:
        for limit in (11, 12, 13):
            self.engine.limits.set_limits(base.ADMIN, {"gpu": limit}, "higgs")
        newest_first = self.whole(f"{QUOTA}/history?limit=2", "history", READER)
        for direction, expected in (("desc", newest_first), ("asc", newest_first[::-1])):
            path = f"{QUOTA}/history?sort_key=at&sort_dir={direction}&limit=2"
            self.assertEqual(expected, self.whole(path, "history", READER))
        for wrong in ("sort_key=reason", "sort_dir=up"):
            self.call(f"{QUOTA}/history?{wrong}", status=400)


class TestIfMatch(ApplicationTestCase):
    """Two admins who read the same limits do not overwrite each other's silently."""

    def put(self, limit: int, if_match: str | None = None) -> webob.Response:
        headers = {} if if_match is None else {"If-Match": if_match}
        return self.ask(QUOTA, method="PUT", json={"quota": {"gpu": limit}}, headers=headers)

    def test_only_the_first_change_of_what_was_read(self) -> None:
        tag = self.ask(QUOTA).headers["ETag"]
        first = self.put(10, tag)
        self.assertEqual(200, first.status_int)
        refused = self.put(11, tag)
        self.assertEqual((412, "cyborg_quota.precondition_failed"), (refused.status_int, self.error(refused)["code"]))
        self.assertEqual(10, self.ask(QUOTA).json["quota"]["gpu"])
        self.assertEqual(200, self.put(12, first.headers["ETag"]).status_int)
        for any_state in (None, "*"):
            self.assertEqual(200, self.put(13, any_state).status_int)
        self.assertEqual(400, self.put(14, "17").status_int)
        # Only those who may set limits get it.
        for token, has_tag in ((READER, False), (MANAGER, False), ("max@physics:manager,member,reader", True)):
            self.assertEqual(has_tag, "ETag" in self.ask(QUOTA, token).headers, token)

    def test_the_answer_has_the_generation_that_it_has_made(self) -> None:
        """Not that of another admin's change meanwhile, which the caller has not seen."""
        change = functools.partial(self.engine.limits.set_limits, base.ADMIN, {"gpu": 12}, "higgs")
        with hooks.Meanwhile(Limits, "set_limits", change, after=True):
            answer = self.put(11)
        self.assertEqual(412, self.put(13, answer.headers["ETag"]).status_int)
        self.assertEqual(12, self.ask(QUOTA).json["quota"]["gpu"])

    def test_what_changes_the_generation(self) -> None:
        """Only what PUT would overwrite: neither usage, nor an override, nor another project's limit."""
        admin, tag = self.engine.limits, self.ask(QUOTA).headers["ETag"]
        self.quotas.reserve(base.Context("higgs"), {"gpu": 1})
        admin.set_limit(base.ADMIN, "gpu", 3, "elsewhere")
        body = {"override": {"quota": {"gpu": 9}, "until": "2099-01-01T00:00:00Z"}}
        self.ask(f"{QUOTA}/overrides", method="POST", json=body)
        self.assertEqual(tag, self.ask(QUOTA).headers["ETag"])
        admin.set_limit(base.ADMIN, "gpu", 19, "higgs")
        self.assertNotEqual(tag, self.ask(QUOTA).headers["ETag"])

    def test_of_simultaneous_changes_one_wins(self) -> None:
        for turn in range(1, 4):
            tag, barrier = self.ask(QUOTA).headers["ETag"], threading.Barrier(4)

            def change(limit: int, tag: str = tag, barrier: threading.Barrier = barrier) -> int:
                barrier.wait()
                return self.put(limit, tag).status_int

            with futures.ThreadPoolExecutor(4) as pool:
                statuses = list(pool.map(change, range(4 * turn + 4, 4 * turn + 8)))
            self.assertEqual([200, 412, 412, 412], sorted(statuses))
