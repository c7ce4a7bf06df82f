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
        self.read: list[int] = []
        client = keystone_client.KeystoneClient
        self.useFixture(
            fx.MonkeyPatch(
                "cyborg_quota.limits.sources.keystone_client.KeystoneClient",
                lambda conf, _connect: client(conf, self.keystone.connect),  # type: ignore[arg-type]
            )
        )
        self.useFixture(fx.MonkeyPatch("cyborg_quota.limits.sources.keystone_client._PAGE_SIZE", 2))

    def parents(self) -> dict[str, str | None]:
        return keystone_projects.read_parents(keystones.settings(limits__driver="database"), self.read.append)

    def test_pages(self) -> None:
        self.assertEqual(TREE, self.parents())
        self.assertEqual(
            [
                "/projects?limit=2",
                "/projects?marker=p2&limit=2",
                "/projects?marker=q1&limit=2",
                "/projects?is_domain=true&limit=2",
                "/projects?is_domain=true&marker=other&limit=2",
            ],
            self.keystone.paths,
        )
        self.assertEqual(len(TREE), sum(self.read))

    def test_pages_that_keystone_makes_shorter_or_ignores(self) -> None:
        self.keystone.list_limit = 1
        self.assertEqual(TREE, self.parents())
        self.keystone.has_pages, self.keystone.list_limit = False, None
        self.assertEqual(TREE, self.parents())
        self.keystone.list_limit = 3
        error = self.assertRaises(exceptions.ProjectLookupFailed, self.parents)
        self.assertIn("Keystone truncates its list of projects; raise list_limit", str(error))

    def test_errors(self) -> None:
        for answer, message in (
            (Response(403, {}), "may not read /projects in Keystone"),
            (Response(200, {"projects": [{"id": "p"}]}), "the response to the request for the projects is not from"),
            (Response(503, {}), "Keystone returned status 503 for /projects"),
        ):
            self.keystone.instead["projects"] = answer
            error = self.assertRaises(exceptions.ProjectLookupFailed, self.parents)
            self.assertIn(message, str(error))
