# SPDX-License-Identifier: Apache-2.0
"""With the limit driver keystone, what the calls of a project's user read does not grow with the cloud.

The rows that are read in the database are counted, and the requests to Keystone with the entries of their answers. No
time is measured.
"""

from __future__ import annotations

import collections
from typing import Any

from cyborg_quota import QuotaEngine
from cyborg_quota.limits.sources.cache import Cache
from cyborg_quota.limits.sources.keystone import KeystoneLimitDriver
from cyborg_quota.limits.sources.keystone_client import KeystoneClient
from tests import base, clouds, fixtures, hooks, keystones
from tests.functional import test_cost

SMALL, LARGE = 50, 600
DOMAIN = "domain"
OTHERS = {
    *("set_limit", "unset_limit", "set_limits", "set_overrides", "cancel_overrides", "list_overrides"),
    *(
        "path",
        "tree",
        "tree_page",
        "list_holders",
        "default_limits",
        "list_defaults",
        "list_reservations",
        "add_project",
        "set_budget",
        "adjust",
        "show_budget",
    ),
}
"""Calls that this driver refuses, and those of other tables than those of projects and usage."""

CALLS = {name: call for name, call in test_cost.OWN.items() if test_cost.name_of(name) not in OTHERS}
CONTROL = "list_usages, of all projects"
CALLS[CONTROL] = lambda engine: engine.list_usages(base.ADMIN)


Counts = collections.namedtuple("Counts", "rows statements requests entries")
"""What a call reads in the database, and what it asks Keystone."""


class Keystone(keystones.FakeKeystone):
    """Counts its requests, and the entries of its answers."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def get(self, path: str, params: Any, raise_exc: bool) -> keystones.Response:
        response = super().get(path, params, raise_exc)
        self.entries += sum(len(value) for value in response.body.values() if isinstance(value, list))
        return response


class TestKeystoneCost(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE
    model = "strict_two_level"

    def setUp(self) -> None:
        super().setUp()
        self.keystone = Keystone()
        self.keystone.model = {"strict_hierarchy": "flat"}.get(self.model, self.model)
        for resource, limit in (("gpu", 1), ("fpga", 5), ("gpu.A100", 1)):
            self.keystone.register(resource, limit)
        self.keystone.projects = {DOMAIN: None, "p7": DOMAIN}
        self.keystone.set_limit(DOMAIN, "gpu", 10**6)
        # The edge below the domain is stored.
        engine = self.make_limited()
        engine.rollback(test_cost.P7, engine.reserve(test_cost.P7, {"gpu": 1}))

    def make_driver(self) -> KeystoneLimitDriver:
        """With empty caches."""
        cache = Cache(ttl_seconds=60.0, stale_seconds=600.0, timeout_seconds=5.0, clock=lambda: 0.0)
        client = KeystoneClient(keystones.settings(), self.keystone.connect)  # type: ignore[arg-type]
        return KeystoneLimitDriver(client, cache, model=self.model)

    def make_limited(self) -> QuotaEngine:
        return fixtures.open_engine(self, self.url, self.make_driver())

    def add(self, first: int, last: int) -> None:
        """Add siblings below the domain, and other domains with one project each; each has a limit in Keystone."""
        clouds.add_children(self.sql, DOMAIN, last, first=first)
        clouds.add_roots(self.sql, first, last)
        for number in range(first, last):
            domains = {f"wide{number}": DOMAIN, f"root{number}": None, f"other{number}": f"root{number}"}
            self.keystone.projects |= domains
            for name in domains:
                self.keystone.set_limit(name, "gpu", 1)

    def read(self) -> dict[str, Counts]:
        """In an engine with empty caches."""
        engine, found = self.make_limited(), {}
        engine.list_reservations(base.ADMIN, "nobody")  # connects, and checks the schema
        for name, call in CALLS.items():
            requests, entries = len(self.keystone.paths), self.keystone.entries
            rows = test_cost.rows_of(hooks.database_of(self.engine), engine, call)
            asked = len(self.keystone.paths) - requests, self.keystone.entries - entries
            found[name] = Counts(sum(rows), len(rows), *asked)
        return found

    def test_keystone_is_not_asked_about_no_project(self) -> None:
        """Metrics of an empty ledger do not need Keystone."""
        asked = len(self.keystone.paths)
        self.assertEqual([], self.make_driver().bounds([], ["fpga", "tpu"]))
        self.assertEqual(asked, len(self.keystone.paths))

    def test_every_call_reads_the_same_in_a_large_cloud(self) -> None:
        self.add(0, SMALL)
        small = self.read()
        self.add(SMALL, LARGE)
        large = self.read()
        most = {name: counts._replace(rows=counts.rows + test_cost.MOST_MORE_ROWS) for name, counts in small.items()}
        grown = [name for name, found in large.items() if found[1:] != most[name][1:] or found.rows > most[name].rows]
        self.assertEqual([CONTROL], grown, large)
        self.assertGreater(large[CONTROL].entries, small[CONTROL].entries)
        self.assertGreater(large[CONTROL].rows, LARGE)


class TestHierarchyCost(TestKeystoneCost):
    model = "strict_hierarchy"
