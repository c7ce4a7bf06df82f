# SPDX-License-Identifier: Apache-2.0
"""The tree of Keystone's projects, which ``project import`` reads."""

from __future__ import annotations

import fixtures as fx
from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.limits.sources import keystone_client, keystone_projects
from tests import keystones
from tests.keystones import Response

TREE = {"dom": None, "p1": "dom", "p2": "p1", "p3": "p2", "other": None, "q1": "other"}


class TestReadParents(base.BaseTestCase):
    """Two projects a page. p1 is below its domain dom, p2 below p1, p3 below p2; q1 is below other."""

    def setUp(self) -> None:
        super().setUp()
        self.keystone = keystones.FakeKeystone()
        self.keystone.projects = {"dom": None, "p1": "dom", "p2": "dom", "p3": "dom", "other": None, "q1": "other"}
        self.keystone.parents = {"p2": "p1", "p3": "p2"}
        self.keystone.list_limit = 2
        client = keystone_client.KeystoneClient
        self.useFixture(
            fx.MonkeyPatch(
                "cyborg_quota.limits.sources.keystone_client.KeystoneClient",
                lambda conf, _connect: client(conf, self.keystone.connect),  # type: ignore[arg-type]
            )
        )

    def parents(self) -> dict[str, str | None]:
        return keystone_projects.read_parents(keystones.settings(limits__driver="database"))

    def test_pages(self) -> None:
        self.assertEqual(TREE, self.parents())
        self.assertEqual(
            [
                "/projects?limit=1000",
                "/projects?limit=1000&marker=p2",
                "/projects?limit=1000&marker=q1",
                "/projects?is_domain=true&limit=1000",
                "/projects?is_domain=true&limit=1000&marker=other",
            ],
            self.keystone.paths,
        )

    def test_a_keystone_without_pages(self) -> None:
        self.keystone.has_pages = False
        error = self.assertRaises(exceptions.ProjectLookupFailed, self.parents)
        self.assertIn("Keystone truncates its list of projects; raise list_limit", str(error))
        self.keystone.list_limit = None
        self.assertEqual(TREE, self.parents())

    def test_errors(self) -> None:
        for answer, message in (
            (Response(403, {}), "may not read /projects in Keystone"),
            (Response(200, {"projects": [{"id": "p"}]}), "the response to the request for the projects is not from"),
            (Response(503, {}), "Keystone returned status 503 for /projects"),
        ):
            self.keystone.instead["projects"] = answer
            error = self.assertRaises(exceptions.ProjectLookupFailed, self.parents)
            self.assertIn(message, str(error))
