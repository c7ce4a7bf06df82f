# SPDX-License-Identifier: Apache-2.0
"""What is tried beside the real Cyborg is what a user gets: the package as it is installed, and all of it."""

from __future__ import annotations

import pathlib
import uuid

from tests import installing
from tests.cyborgs import environment, quota

PATHS = """
[DEFAULT]
logging_context_format_string = %(pathname)s says %(message)s
"""


def same(one: pathlib.Path, other: pathlib.Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


class TestInstalled(quota.QuotaTestCase):
    def setUp(self) -> None:
        super().setUp()
        [self.site_packages] = environment.PLACE.glob("env/lib/python*/site-packages")

    @property
    def config(self) -> str:  # type: ignore[override]
        return super().config + PATHS

    def test_the_conductor_and_the_api(self) -> None:
        self.set_limit(0)
        arqs = self.client.created(self.profile)
        self.assertEqual(403, self.client.bind(arqs, str(uuid.uuid4()), self.rp).status)
        integration = self.site_packages / "cyborg_quota/integrations/cyborg"
        self.assertIn(f"{integration}/conductor.py says Bind refused: ", self.stack.conductor.said())
        self.assertIn(f"application of {integration}/wsgi.py", self.stack.api.said())

    def test_every_file_of_the_tree(self) -> None:
        """And no other release of it: what was edited is installed anew."""
        paths = installing.package_files()
        self.assertIn("cyborg_quota/db/migrations/script.py.mako", map(str, paths))
        differ = [str(path) for path in paths if not same(installing.TOP / path, self.site_packages / path)]
        self.assertEqual([], differ)
