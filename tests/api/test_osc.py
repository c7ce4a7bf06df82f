# SPDX-License-Identifier: Apache-2.0
"""The commands of OpenStackClient, without Keystone: names of users must not change the path of a call."""

from __future__ import annotations

import argparse
import contextlib
import types
from typing import Any

from keystoneauth1 import session, token_endpoint
from openstack import exceptions as sdk
from osc_lib import exceptions

from cyborg_quota.integrations.osc import quota
from tests.api import server


class OscTestCase(server.ApiTestCase):
    def run_command(self, kind: Any, **arguments: Any) -> Any:
        """Run a command as an admin whom Keystone does not let list projects: what is no project is sent as an id."""

        def find_project(*_arguments: Any, **_options: Any) -> Any:
            raise sdk.ForbiddenException

        own = types.SimpleNamespace(json=lambda: {"projects": []})
        identity = types.SimpleNamespace(find_project=find_project, get=lambda _path: own)
        with server.served(self.application) as url:
            manager = types.SimpleNamespace(
                session=session.Session(auth=token_endpoint.Token(url, server.ADMIN)),
                sdk_connection=types.SimpleNamespace(identity=identity),
                get_endpoint_for_service_type=lambda *_arguments, **_options: url,
                region_name=None,
                interface=None,
            )
            command = kind(types.SimpleNamespace(client_manager=manager), None)
            defaults: dict[str, Any] = dict.fromkeys(("project_domain", "override", "reason", "pod"))
            result = command.take_action(argparse.Namespace(**{**defaults, "project": "higgs", **arguments}))
            return result and (result[0], list(result[1]))  # the rows are read while the server runs


class TestHistory(OscTestCase):
    def test_the_project_and_the_request_of_the_user(self) -> None:
        self.run_command(quota.SetQuota, limit={"gpu": "21"}, until=None, start=None, force=False)
        arguments: dict[str, Any] = {"limit": 1, "marker": None, "since": None}
        columns, [row] = self.run_command(quota.ShowHistory, **arguments, long=True)
        self.assertEqual(("User ID", "User Project ID", "Request ID"), columns[-3:])
        self.assertEqual(("alice", "cloud"), row[-3:-1])
        self.assertRegex(row[-1], "^req-")
        columns_of_others, [row_of_others] = self.run_command(quota.ShowHistory, **arguments, long=False)
        self.assertEqual((columns[:-2], row[:-2]), (columns_of_others, row_of_others))


class TestNamesInPaths(OscTestCase):
    def limits_of_elsewhere(self) -> dict[str, int | None]:
        with server.served(self.application) as url:
            client = session.Session(auth=token_endpoint.Token(url, server.ADMIN))
            return dict(client.get(f"{url}/v2/quotas/elsewhere").json()["quota"])

    def test_an_override_that_is_a_path(self) -> None:
        """Otherwise, this removes the limits of the project elsewhere."""
        error = self.assertRaises(
            exceptions.CommandError, self.run_command, quota.DeleteQuota, override="../../elsewhere"
        )
        self.assertIn("HTTP 404", str(error))
        self.assertEqual({"fpga": 0, "gpu": 4}, self.limits_of_elsewhere())

    def test_a_project_that_is_a_path(self) -> None:
        for name in ("x/../elsewhere", "..", "elsewhere?reason=x", "elsewhere#x"):
            with contextlib.suppress(exceptions.CommandError):
                self.run_command(quota.DeleteQuota, project=name)
            self.assertEqual({"fpga": 0, "gpu": 4}, self.limits_of_elsewhere(), name)
