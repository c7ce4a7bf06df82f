# SPDX-License-Identifier: Apache-2.0
"""The application: outages, errors without details, what a stranger learns, large bodies, CORS, cost of calls."""

from __future__ import annotations

import datetime
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any
from unittest import mock

import fixtures as fx
import webob
from keystonemiddleware import auth_token

from cyborg_quota import Inventory, exceptions, policy
from cyborg_quota.api import deploy, middleware, requests
from cyborg_quota.cyborg import ledger_guard
from cyborg_quota.cyborg.bind_tracker import BindTracker
from cyborg_quota.cyborg.ledger_guard import LedgerGuard
from cyborg_quota.db import models
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.types.capacity import ResourceUse
from tests import base, clouds, fixtures
from tests.api import server
from tests.functional import test_pages

READER = "rita@higgs:reader"
MANAGER = "max@higgs:manager,member,reader"
STRANGER = "sam@elsewhere:admin_of_nothing,member,reader"
OF_PROJECT = ("", "/detail", "/defaults", "/tree", "/history", "/overrides")


class ApplicationTestCase(server.ApiTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fx.FakeLogger())

    def restart(self, **options: Any) -> None:
        """Make the application again, with an engine of its own. ``options``: group__name=value."""
        for name, value in options.items():
            self.conf.set_override(name.partition("__")[2], value, name.partition("__")[0])
        self.application = server.make_application(self.conf, self.deploy_engine())

    def error(self, response: webob.Response) -> dict[str, Any]:
        self.assertEqual("application/json", response.content_type)
        [error] = response.json["errors"]
        self.assertEqual(response.status_int, error["status"])
        return dict(error)

    def told(self, response: webob.Response, name: str) -> tuple[int, str]:
        """The status and the text of an error, in which this name is replaced."""
        error = self.error(response)
        del error["request_id"]
        return response.status_int, json.dumps(error).replace(name, "NAME")


class TestErrors(ApplicationTestCase):
    def test_the_ledger_is_unavailable(self) -> None:
        """The database is gone: a directory where its file was, as an unmounted disk leaves it."""
        url = "sqlite:////nowhere/secret-path/ledger.sqlite"
        self.restart(quota__retry_seconds=0.2, database__connection=url)
        response = self.ask("/v2/quotas/higgs/detail")
        found = response.status_int, response.headers["Retry-After"], self.error(response)["code"]
        self.assertEqual((503, "5", "cyborg_quota.unavailable"), found)
        self.assertNotRegex(response.text, "secret-path|Traceback")

    def test_the_circuit_breaker_of_a_process(self) -> None:
        """In Cyborg's API: the first call that finds the server dead opens it, and the next calls do not wait."""
        self.conf.set_override("retry_seconds", 0.2, "quota")
        self.conf.set_override("connection", "mysql+pymysql://nobody@127.0.0.1:1/quota", "database")
        engine = self.deploy_engine()
        tracker = BindTracker(engine, bind_expire_seconds=60)
        self.application = server.make_application(self.conf, engine, call_ledger=tracker.guard.call_in_slot)
        with mock.patch.object(QuotaEngine, "get_detail", autospec=True, side_effect=QuotaEngine.get_detail) as called:
            for _ in range(2):
                response = self.ask("/v2/quotas/higgs/detail")
                self.assertEqual("cyborg_quota.unavailable", self.error(response)["code"])
                self.assertEqual((1, True), (called.call_count, tracker.guard.is_open))
        self.assertIn(response.headers["Retry-After"], ("1", "2", "3"))
        self.assertEqual(401, self.ask("/v2/quotas/higgs/detail", token="").status_int)

    def test_a_refusal_names_the_policy_rule(self) -> None:
        for method, path, token, rule in (
            ("PUT", "/v2/quotas/higgs", READER, policy.RULE),
            ("GET", "/v2/quotas", READER, policy.LIST),
            ("PUT", "/v2/quota_defaults", MANAGER, policy.DEFAULTS),
        ):
            error = self.error(self.ask(path, token, method, json={"quota": {"gpu": 1}}))
            expected = f"The policy does not allow you to make this call (rule {rule})."
            self.assertEqual((403, expected), (error["status"], error["detail"]))

    def test_a_wrong_value_of_an_option(self) -> None:
        """gunicorn ends with one sentence; it was a traceback of 60 lines for each worker."""
        conf = pathlib.Path(self.useFixture(fx.TempDir()).path) / "cyborg_quota.conf"
        conf.write_text("[quota]\nretry_seconds = soon\n")
        program = pathlib.Path(sys.executable).with_name("gunicorn")
        ended = subprocess.run(
            [program, "--bind=127.0.0.1:0", "--workers=1", "cyborg_quota.api.wsgi:application"],
            env={**os.environ, "OS_CYBORG_QUOTA_CONFIG_FILES": str(conf)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        self.assertNotIn("Traceback", ended.stderr)
        [sentence] = [line for line in ended.stderr.splitlines() if line.startswith("cyborg-quota-api: ")]
        self.assertIn("retry_seconds", sentence)
        self.assertNotEqual(0, ended.returncode)

    def test_a_slow_body_occupies_no_slot(self) -> None:
        """In Cyborg's API: a member who sends a body slowly does not keep others from the ledger."""
        seen: list[bool] = []
        guard = LedgerGuard(lambda: True, lambda: None)

        class Body(io.BytesIO):
            def read(self, *size: int | None) -> bytes:
                seen.append(guard._slots.acquire(blocking=False))
                guard._slots.release()
                return super().read(*size)

        with mock.patch.object(ledger_guard, "_SLOTS", 1):
            guard.reset()
        self.application = server.make_application(self.conf, self.engine, call_ledger=guard.call_in_slot)
        content = b'{"check": {"gpu": 1}}'
        environ = {"wsgi.input": Body(content), "CONTENT_LENGTH": str(len(content))}
        self.assertEqual(200, self.ask("/v2/quotas/higgs/check", READER, "POST", environ=environ).status_int)
        self.assertEqual({True}, set(seen))

    def test_what_an_answer_says_of_an_error(self) -> None:
        """The log has what the answer hides. (A test of the functional tests waits for the timeout of real servers.)"""
        statement, limits = "canceling statement due to statement timeout", "connection to 192.0.2.7 refused"
        for raised, status, retry_after, code, hidden, logged in (
            (exceptions.StatementTimeout(statement, 8.0), 503, "5", "timeout", "statement", ""),
            (exceptions.DatabaseNotInitialized(), 503, "5", "unavailable", "db sync", "cyborg-quota db sync"),
            (exceptions.LimitsUnavailable(limits, 3.0), 503, "5", "unavailable", "192.0.2.7", "192.0.2.7"),
            (exceptions.ConfigurationError("/etc/policy.yaml"), 500, None, "internal_error", "policy", "policy.yaml"),
            (KeyError("password=hunter2"), 500, None, "internal_error", "hunter2", "Traceback"),
        ):
            with mock.patch.object(QuotaEngine, "get_detail", side_effect=raised):
                response = self.ask("/v2/quotas/higgs/detail")
            error = self.error(response)
            self.assertEqual((status, f"cyborg_quota.{code}"), (response.status_int, error["code"]))
            self.assertEqual(retry_after, response.headers.get("Retry-After"), code)
            self.assertNotIn(hidden, response.text)
            self.assertIn(logged, self.log.output)
            self.assertEqual(response.headers["X-OpenStack-Request-Id"], error["request_id"])

    def test_large_and_deep_bodies(self) -> None:
        """Also where the server, as gunicorn, ends the input itself, and says so."""
        chunked = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
        for body, status in (
            (b" " * (requests.MAX_BODY_BYTES + 1), 413),
            (b"[" * requests.MAX_BODY_BYTES, 400),
            (b'{"quota": {"gpu": ' + b"9" * 5000 + b"}}", 400),
            (b'{"quota": ' + b'{"a": ' * 900 + b"1" + b"}" * 901, 400),
        ):
            for options in ({"body": body}, {"environ": {"wsgi.input": io.BytesIO(body), **chunked}}):
                response = self.ask("/v2/quotas/higgs", method="PUT", content_type="application/json", **options)
                self.assertEqual(status, response.status_int, (body[:20], *options))
                self.assertLess(len(self.error(response)["detail"]), 500)
        good = {"wsgi.input": io.BytesIO(b'{"quota": {"gpu": 19}}'), **chunked}
        self.assertEqual(200, self.ask("/v2/quotas/higgs", method="PUT", environ=good).status_int)
        error = self.error(self.ask("/v2/quotas/higgs", method="PUT", body=b"quota=1", content_type="text/plain"))
        self.assertEqual((415, "cyborg_quota.unsupported_media_type"), (error["status"], error["code"]))


class TestIdentity(ApplicationTestCase):
    """Without keystonemiddleware, the headers of a client are not believed."""

    FORGED = {
        "X-Identity-Status": "Confirmed",
        "X-Roles": "admin",
        "X-User-Id": "eve",
        "X-Project-Id": "p",
        "keystone.token_auth": "forged",
    }

    def status(self, **environ: Any) -> int:
        return self.ask("/v2/quotas", headers=self.FORGED, environ=environ).status_int

    def test_forged_headers(self) -> None:
        self.application = deploy.make_bare_application(self.conf, self.engine)
        found = self.status(), self.status(**{"keystone.token_auth": object()})
        self.assertEqual((401, 200), found, "as a client, and as keystonemiddleware")
        self.assertNotIn("noauth", self.log.output)

    def test_noauth_is_loud(self) -> None:
        self.conf.set_override("auth", "noauth", "api")
        self.application = deploy.make_application(self.conf, self.engine)
        self.assertEqual(200, self.status())
        self.assertIn("THE REST API OF QUOTA VALIDATES NO TOKEN", self.log.output)


class TestStranger(ApplicationTestCase):
    """I8: the answers about a project that exists and one that does not are the same, and cost the same."""

    def observed(self, path: str, method: str, project_id: str) -> tuple[int, str, list[str]]:
        body = {"json": {"check": {"gpu": 1}}} if method in ("POST", "PUT") else {}
        with clouds.captured() as statements:
            response = self.ask(path.replace("PROJECT", project_id), STRANGER, method, **body)
        return *self.told(response, project_id), [text for text, _ in statements]

    def test_nothing_is_revealed(self) -> None:
        reads = [(f"/v2/quotas/PROJECT{part}", "GET") for part in OF_PROJECT]
        for path, method in (
            *reads,
            ("/v2/quotas/PROJECT", "PUT"),
            ("/v2/quotas/PROJECT", "DELETE"),
            ("/v2/quotas/PROJECT/tree", "PUT"),
            ("/v2/quotas/PROJECT/tree", "DELETE"),
            ("/v2/quotas/PROJECT/check", "POST"),
            ("/v2/quotas/PROJECT/overrides", "POST"),
            ("/v2/quotas/PROJECT/overrides/7-0", "DELETE"),
            ("/v2/quota_reservations?project_id=PROJECT", "GET"),
        ):
            with self.subTest(f"{method} {path}"):
                known, unknown = (self.observed(path, method, name) for name in ("higgs", "no-such-project"))
                self.assertEqual(known, unknown)
                self.assertEqual((404, 1), (known[0], len(known[2])))


class TestCost(ApplicationTestCase):
    """How many statements a call makes. (test_cost.py of the functional tests counts the rows that they read.)"""

    def count(self, path: str, token: str, **options: Any) -> int:
        self.ask(path, token, **options)  # loads what is loaded once
        with clouds.captured() as statements:
            self.assertEqual(200, self.ask(path, token, **options).status_int)
        return len(statements)

    def test_a_reader_s_calls(self) -> None:
        expected = {"": 1, "/detail": 1, "/defaults": 1, "/tree": 3, "/history": 1, "/overrides": 1}
        counts = {part: self.count(f"/v2/quotas/higgs{part}", READER) for part in OF_PROJECT}
        self.assertEqual(expected, counts)
        self.assertEqual(1, self.count("/v2/quota_reservations", READER))

    def test_a_page_of_the_tree_has_at_most_five_statements(self) -> None:
        """Whatever is below the project: a thousand children, and a chain of seven; under each source of limits."""
        chain = ["higgs", *(f"chain{level}" for level in range(6))]
        edges = [*itertools.pairwise(chain), *(("higgs", f"wide{number:04}") for number in range(1000))]
        rows = [{"project_id": below, "parent_id": above, "generation": 0} for above, below in edges]
        with fixtures.plain_engine(self.url).begin() as connection:
            connection.execute(models.projects.insert(), rows)
        for driver in ("database", "config"):
            self.restart(limits__driver=driver, limits__limits={"gpu": "7"})
            for query in ("limit=1", "limit=3", "limit=1000", "limit=1000&marker=chain5", "limit=1000&marker=wide0005"):
                self.assertLessEqual(self.count(f"/v2/quotas/higgs/tree?{query}", MANAGER), 5, (driver, query))
            tree = self.whole("/v2/quotas/higgs/tree?limit=1000", "tree", MANAGER)
            names = [*chain, "detector", *(below for _, below in edges[6:])]
            self.assertEqual(names, [one["project_id"] for one in tree])


class TestMiddleware(ApplicationTestCase):
    def test_every_list_has_at_most_as_many_entries(self) -> None:
        """Also if nothing was asked for. Its links lead to all of them, also if names contain what separates them."""
        self.restart(api__max_limit=2)
        admin, pods, capacity = self.engine.limits, self.engine.pods, self.engine.capacity
        for pod, name in (("north", "rack/1"), ("south", "rack%2F2"), ("west", "r\u00e4ck \u00fc")):
            pods.add(base.ADMIN, pod)
            pods.set_usage(base.ADMIN, pod, {"gpu": ResourceUse(8, 3)})
            capacity.add_provider(base.ADMIN, name)
            self.engine.register_resource(pod)
            capacity.set_inventories(base.ADMIN, name, {"gpu": Inventory(8), pod: Inventory(8)})
        admin.set_total_limits(base.ADMIN, {"fpga": 0, "gpu": 1, "north": 2})
        for project_id in ("detector", "elsewhere"):
            admin.set_limit(base.ADMIN, "gpu", 0, project_id)
        for limit in (1, 2, 3):
            admin.set_overrides(base.ADMIN, {"gpu": limit}, "higgs", datetime.datetime(2999, 1, 1))
        self.execute("UPDATE quota_usages SET metered = metered + 3600")  # (what is used in this second has no row yet)
        for path, member, least in (
            ("/v2/quota_usage?from=2020-01&to=2099-01", "usage", 4),
            ("/v2/quotas", "quotas", 5),
            ("/v2/quotas/physics/tree", "tree", 4),
            ("/v2/quotas/higgs/history", "history", 3),
            ("/v2/quotas/higgs/overrides", "overrides", 3),
            ("/v2/quota_over", "over", 3),
            ("/v2/quota_totals", "quota", 3),
            ("/v2/quota_reservations", "reservations", 4),
            ("/v2/quota_resources", "resources", 5),
            ("/v2/quota_projects", "projects", 5),
            ("/v2/quota_providers", "providers", 3),
            ("/v2/quota_capacity", "capacity", 6),
            ("/v2/quota_capacity/report", "resources", 3),
            ("/v2/quota_pods", "pods", 3),
        ):
            pages = list(self.pages(path, member))
            self.assertLessEqual(max(map(len, pages)), 2, path)
            found = list(itertools.chain.from_iterable(pages))
            self.assertGreaterEqual(len(found), least, path)
            self.assertEqual(len(found), len({str(one) for one in found}), path)
        with test_pages.counted_rows() as counter:
            self.call("/v2/quota_capacity?limit=1")
        self.assertLess(counter["rows"], 6, "a page reads few rows")
        rest = self.call("/v2/quota_capacity?provider=rack/1&marker=rack%252F1/gpu")["capacity"]
        self.assertEqual([("rack/1", "north")], [(one["provider"], one["resource"]) for one in rest])
        for marker in ("nothing", "nothing/gpu", "/", "%"):
            self.assertEqual(400, self.ask(f"/v2/quota_capacity?marker={marker}").status_int, marker)

    def test_cors(self) -> None:
        self.restart(cors__allowed_origin=["https://horizon.example"])
        asked = {"Origin": "https://horizon.example", "Access-Control-Request-Method": "PUT"}
        response = self.ask("/v2/quotas/higgs", method="OPTIONS", headers=asked)
        self.assertEqual("https://horizon.example", response.headers["Access-Control-Allow-Origin"])

    def test_the_errors_of_the_other_s_keystonemiddleware(self) -> None:
        """In Cyborg's api-paste.ini, authtoken is around both applications."""
        options = {
            "auth_type": "password",
            "auth_url": "http://127.0.0.1:9/v3",
            "http_request_max_retries": 0,
            "oslo_config_config": self.conf,
            **dict.fromkeys(("username", "password", "project_name"), "nobody"),
            **dict.fromkeys(("user_domain_name", "project_domain_name"), "Default"),
        }
        mounted = deploy.mount(self.application, webob.Response(text="Cyborg's"))
        authenticated = auth_token.AuthProtocol(mounted, options)
        self.application = deploy.mount(middleware.JsonErrors(authenticated), authenticated)
        for token, status, retry_after in (("", 401, None), ("some-token", 503, "5")):
            response = self.ask("/v2/quotas/higgs", token)
            self.assertEqual(
                (status, retry_after), (self.error(response)["status"], response.headers.get("Retry-After"))
            )
        self.assertNotIn("errors", self.ask("/v2/devices", "").text)
