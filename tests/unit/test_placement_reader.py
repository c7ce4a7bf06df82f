# SPDX-License-Identifier: Apache-2.0
"""What is read from Placement's answers. (tests/cyborgs reads the real Placement.)"""

from __future__ import annotations

import json
import unittest
from typing import Any

import requests

from cyborg_quota.integrations.cyborg import mapping
from cyborg_quota.integrations.inventory import placement
from cyborg_quota.integrations.inventory.api import PLACEMENT, ServiceApi, SourceUnavailable
from cyborg_quota.integrations.inventory.plan import wanted_providers

UNIT = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1, "allocation_ratio": 1.0}
GPU = {"inventories": {"PGPU": UNIT}}
RULES = mapping.ResourceMap([mapping.parse_rule("PGPU: gpu")], ["gpu"], refuses_unmapped=True)


class Answers:
    """Answers of Placement by path; 404 for every other path."""

    def __init__(self, **inventories: dict[str, Any]) -> None:
        rows = [{"uuid": name, "name": name, "parent_provider_uuid": None} for name in (*inventories, "gone")]
        self.bodies: dict[str, Any] = {"/resource_providers": {"resource_providers": rows}}
        for name, found in inventories.items():
            path = f"/resource_providers/{name}"
            self.bodies |= {f"{path}/inventories": found, f"{path}/allocations": {"allocations": {}}}
            self.bodies[f"{path}/traits"] = {"traits": ["MISC_SHARES_VIA_AGGREGATE"] if name == "pool" else []}

    def get(self, path: str, microversion: str | None = None) -> requests.Response:
        response = requests.Response()
        response.url, response.reason = path, ""
        response.request = requests.Request("GET", f"http://placement{path}").prepare()
        response.headers["content-type"] = "application/json"
        response.status_code = 200 if path in self.bodies else 404
        response._content = json.dumps(self.bodies.get(path, {"errors": [{"status": 404}]})).encode()
        return response


class TestPlacementReader(unittest.TestCase):
    def read(self, answers: Answers) -> list[Any]:
        return placement.read(ServiceApi(lambda: answers, PLACEMENT), RULES)

    def test_a_shared_pool(self) -> None:
        """The trait says so; without accelerators the traits are not read, so that nothing is known."""
        found = self.read(Answers(n1=GPU, pool=GPU, empty={"inventories": {}}))
        self.assertEqual(
            {"n1": True, "pool": False, "empty": None},
            {one.name: one.can_host for one in wanted_providers(found, RULES, nested=False)},
        )

    def test_a_provider_that_is_removed_meanwhile(self) -> None:
        """It was listed, and is not there any more: the others are imported."""
        answers = Answers(n1=GPU, late=GPU)
        del answers.bodies["/resource_providers/late/allocations"]
        self.assertEqual(["n1"], [one.name for one in self.read(answers)])

    def test_a_path_that_does_not_exist(self) -> None:
        """A URL that is no Placement's is an error, not a cloud without providers."""
        answers = Answers()
        del answers.bodies["/resource_providers"]
        self.assertRaisesRegex(SourceUnavailable, "404", self.read, answers)
