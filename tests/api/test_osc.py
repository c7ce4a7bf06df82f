# SPDX-License-Identifier: Apache-2.0
"""The commands of OpenStackClient, without Keystone: names of users must not change the path of a call."""

from __future__ import annotations

import contextlib
import io
import json
import types
from typing import Any

from keystoneauth1 import session, token_endpoint
from openstack import exceptions as sdk
from osc_lib import exceptions

from cyborg_quota.api import call
from cyborg_quota.osc import quota
from tests import base
from tests.api import server


class OscTestCase(server.ApiTestCase):
    def run_command(self, kind: Any, *arguments: str) -> Any:
        """Run a command as an admin whom Keystone does not let list projects: what is no project is sent as an id.

        Returns what a machine-readable format would show, a row by the names of the columns; and the exit status.
        """

        def find_project(*_arguments: Any, **_options: Any) -> Any:
            raise sdk.ForbiddenException

        own = types.SimpleNamespace(json=lambda: {"projects": []})
        identity = types.SimpleNamespace(find_project=find_project, get=lambda _path: own)
        out = io.StringIO()
        with server.served(self.application) as url:
            manager = types.SimpleNamespace(
                session=session.Session(auth=token_endpoint.Token(url, server.ADMIN)),
                sdk_connection=types.SimpleNamespace(identity=identity),
                get_endpoint_for_service_type=lambda *_arguments, **_options: url,
                region_name=None,
                interface=None,
            )
            command = kind(types.SimpleNamespace(client_manager=manager, stdout=out), None)
            shown = ("-f", "json") if hasattr(kind, "formatter_namespace") else ()
            status = command.run(command.get_parser("quota").parse_args([*arguments, *shown]))
        return out.getvalue() and json.loads(out.getvalue()), status


class TestCommands(OscTestCase):
    def rows(self, kind: Any, *arguments: str) -> Any:
        rows, status = self.run_command(kind, *arguments)
        self.assertEqual(0, status)
        return [tuple(row.values()) for row in rows]

    def test_what_is_shown(self) -> None:
        self.assertEqual([("fpga", 0), ("gpu", 20)], self.rows(quota.ShowQuota, "higgs"))
        detail = self.rows(quota.ShowQuota, "--usage", "detector")
        self.assertEqual(("gpu", 2, 2, 0, 0, None), detail[1])
        self.engine.limits.totals.set(base.ADMIN, {"gpu": 9})
        self.assertEqual([("gpu", 9, 9)], self.rows(quota.ShowQuota, "--total"))
        self.assertEqual(
            ("gpu", 20, 5, 1, 0, "all projects (total)"), self.rows(quota.ShowQuota, "--usage", "higgs")[1]
        )
        listed = self.rows(quota.ListQuota, "--usage", "--limit", "3")
        self.assertEqual(["detector", "elsewhere", "higgs"], sorted({row[0] for row in listed}))
        self.assertIn(("detector", *detail[1][:4]), listed)
        nodes = self.rows(quota.ListQuota, "--tree", "higgs")
        self.assertIn((0, "higgs", "physics", "gpu", 20, 5, 8), nodes)
        self.assertIn((1, "detector", "higgs", "gpu", 2, 2, 2), nodes)

    def test_a_check(self) -> None:
        self.assertEqual(({"granted": True, "violations": []}, 0), self.run_command(quota.CheckQuota, "gpu=1", "higgs"))
        answer, status = self.run_command(quota.CheckQuota, "gpu=99", "higgs")
        self.assertEqual((1, False, "gpu"), (status, answer["granted"], answer["violations"][0]["resource"]))

    def test_a_value_that_is_no_amount(self) -> None:
        for kind, argument, words in (
            (quota.SetQuota, "RESOURCE=LIMIT|PROJECT", ("gpu=many",)),
            (quota.SetQuota, "RESOURCE=LIMIT|PROJECT", ("gpu=-2",)),
            (quota.CheckQuota, "RESOURCE=AMOUNT|PROJECT", ("gpu=1", "higgs", "physics")),
            (quota.ListQuota, "--limit", ("--limit", "0")),
        ):
            error = io.StringIO()
            with contextlib.redirect_stderr(error):
                refused = self.assertRaises(SystemExit, self.run_command, kind, *words)
            self.assertEqual(2, refused.code)
            self.assertIn(f"error: argument {argument}: '{words[-1]}': ", error.getvalue())

    def test_a_list_of_several_pages(self) -> None:
        self.patch(call, "MAX_ENTRIES", 2)
        all_of_them = ["detector", "elsewhere", "higgs", "physics", "simulation"]
        for limit, expected in (((), all_of_them), (("--limit", "3"), all_of_them[:3])):
            self.assertEqual(expected, [row[0] for row in self.rows(quota.ListQuota, *limit)])


class TestHistory(OscTestCase):
    def test_the_project_and_the_request_of_the_user(self) -> None:
        self.run_command(quota.SetQuota, "gpu=21", "higgs")
        [row], _ = self.run_command(quota.history_list, "--limit", "1", "--long", "--project", "higgs")
        self.assertEqual(["User Project ID", "Request ID"], list(row)[-2:])
        self.assertEqual(("alice", "cloud"), (row["User ID"], row["User Project ID"]))
        self.assertRegex(row.pop("Request ID"), "^req-")
        del row["User Project ID"]
        [row_of_others], _ = self.run_command(quota.history_list, "--limit", "1", "--project", "higgs")
        self.assertEqual(list(row.items()), list(row_of_others.items()))


class TestNamesInPaths(OscTestCase):
    def limits_of_elsewhere(self) -> dict[str, int | None]:
        with server.served(self.application) as url:
            client = session.Session(auth=token_endpoint.Token(url, server.ADMIN))
            return dict(client.get(f"{url}/v2/quotas/elsewhere").json()["quota"])

    def test_an_override_that_is_a_path(self) -> None:
        """Otherwise, this removes the limits of the project elsewhere."""
        error = self.assertRaises(
            exceptions.CommandError, self.run_command, quota.override_delete, "../../elsewhere", "--project", "higgs"
        )
        self.assertIn("HTTP 404", str(error))
        self.assertEqual({"fpga": 0, "gpu": 4}, self.limits_of_elsewhere())

    def test_a_project_that_is_a_path(self) -> None:
        for name in ("x/../elsewhere", "..", "elsewhere?reason=x", "elsewhere#x"):
            with contextlib.suppress(exceptions.CommandError):
                self.run_command(quota.DeleteQuota, name)
            self.assertEqual({"fpga": 0, "gpu": 4}, self.limits_of_elsewhere(), name)
