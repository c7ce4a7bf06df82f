# SPDX-License-Identifier: Apache-2.0
"""What is read from Placement's answers. (tests/cyborgs reads the real Placement.)"""

from __future__ import annotations

import json
import tracemalloc
import unittest
from typing import Any

import requests

from cyborg_quota.capacity.imports import sources
from cyborg_quota.capacity.imports.plan import use_by_resource, wanted_providers
from cyborg_quota.capacity.imports.sources import PLACEMENT, ServiceApi, SourceUnavailable
from cyborg_quota.conf import resource_rules
from cyborg_quota.types.capacity import ResourceUse

UNIT = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1, "allocation_ratio": 1.0}
GPU = {"inventories": {"PGPU": UNIT}}
RULES = resource_rules.ResourceMap([resource_rules.parse_rule("PGPU: gpu")], ["gpu"], refuses_unmapped=True)


class Answers:
    """Answers of Placement by path; 404 for every other path."""

    def __init__(self, **inventories: dict[str, Any]) -> None:
        rows = [{"uuid": name, "name": name, "parent_provider_uuid": None} for name in inventories]
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
        return list(sources.read_placement(ServiceApi(lambda: answers, PLACEMENT), RULES))

    def test_a_shared_pool(self) -> None:
        """The trait says so; without accelerators the traits are not read, so that nothing is known."""
        found = self.read(Answers(n1=GPU, pool=GPU, empty={"inventories": {}}))
        wanted = wanted_providers(found, RULES, nested=False)
        self.assertEqual({"n1": True, "pool": False, "empty": None}, {one.name: one.can_host for one in wanted})

    def test_a_path_that_does_not_exist(self) -> None:
        """A provider was listed, and is not there any more; or a URL is no Placement's: no cloud without providers."""
        for path, words in (("/resource_providers/late/allocations", "run this again"), ("/resource_providers", "404")):
            answers = Answers(n1=GPU, late=GPU)
            del answers.bodies[path]
            self.assertRaisesRegex(SourceUnavailable, words, self.read, answers)


class Full(Answers):
    """Hosts with one device each, on which many consumers have something. The consumers are made for each answer."""

    HOSTS, CONSUMERS = 40, 500

    def __init__(self) -> None:
        hosts = [f"host{number}" for number in range(self.HOSTS)]
        super().__init__(**{name: {"inventories": {}} for name in hosts}, **{f"{name}-gpu": GPU for name in hosts})
        rows = self.bodies["/resource_providers"]["resource_providers"]
        for row in rows:
            row["parent_provider_uuid"] = row["name"].removesuffix("-gpu") if row["name"].endswith("-gpu") else None
        rows.reverse()  # (Placement's order is not defined.)

    def get(self, path: str, microversion: str | None = None) -> requests.Response:
        if path.endswith("-gpu/allocations"):
            holders = [f"{path}/consumer-{number}" for number in range(self.CONSUMERS)]
            self.bodies[path] = {"allocations": {name: {"resources": {"PGPU": 1, "VCPU": 8}} for name in holders}}
        try:
            return super().get(path, microversion)
        finally:
            if path.endswith("-gpu/allocations"):
                self.bodies[path] = {"allocations": {}}


class TestMemory(unittest.TestCase):
    """What consumers use is not in memory for all providers at once. All of it takes 6 MB here."""

    BOUND_BYTES = 1_500_000

    def test_a_measurement_of_a_pod(self) -> None:
        api = ServiceApi(Full, PLACEMENT)
        api.get("/resource_providers")  # what the first request imports is no part of the measurement
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        use = use_by_resource(sources.read_placement(api, RULES), RULES)
        self.assertLess(tracemalloc.get_traced_memory()[1], self.BOUND_BYTES)
        self.assertEqual({"gpu": ResourceUse(Full.HOSTS, Full.HOSTS * Full.CONSUMERS)}, use)
