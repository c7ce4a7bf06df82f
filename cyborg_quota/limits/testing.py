# SPDX-License-Identifier: Apache-2.0
"""CERN's rules for nested quotas, as tests of an enforcement model (source: CERN, nested quota models, 2017).

ATLAS is the parent of Physics and Operations, and each of these has two children::

    atlas (limit 100)
        operations (70)     web (30, uses 5), workflow (40, uses 30)
        physics (30)        higgs (10, uses 10), simulation (10, uses 10)
"""

from __future__ import annotations

import types
import unittest
from typing import Any, Final

from cyborg_quota import exceptions

_ADMIN: Final = types.SimpleNamespace(project_id=None, is_admin=True)


def _project(project_id: str, limit: int, *children: dict[str, Any]) -> dict[str, Any]:
    return {"id": project_id, "limits": {"gpu": limit}, "children": list(children)}


_ATLAS: Final = _project(
    "atlas",
    100,
    _project("operations", 70, _project("web", 30), _project("workflow", 40)),
    _project("physics", 30, _project("higgs", 10), _project("simulation", 10)),
)
_USED: Final = {"web": 5, "workflow": 30, "higgs": 10, "simulation": 10}


class NestedQuotaRules(unittest.TestCase):
    """The nine rules. A subclass for a model overrides ``make_ledger``, and the tests of the rules that it replaces."""

    def make_ledger(self) -> Any:
        """A QuotaEngine that uses the model, on an empty ledger, with the resource gpu."""
        raise unittest.SkipTest("This class tests no model; a subclass makes a ledger.")

    def setUp(self) -> None:
        super().setUp()
        self.ledger = self.make_ledger()
        self.ledger.limits.import_limits(_ADMIN, {"defaults": {"gpu": 0}, "projects": [_ATLAS]})
        for project_id, amount in _USED.items():
            self.use(project_id, amount)

    def use(self, project_id: str, amount: int) -> None:
        """Reserve and commit."""
        self.ledger.commit(_ADMIN, self.ledger.reserve(_ADMIN, {"gpu": amount}, project_id=project_id), project_id)

    def set_limit(self, project_id: str, limit: int) -> None:
        """Set the limit of a project."""
        self.ledger.limits.set_limit(_ADMIN, "gpu", limit, project_id)

    def assert_not_allowed(self, project_id: str, limit: int) -> None:
        """Assert that the model refuses this limit."""
        self.assertRaises(exceptions.LimitRefused, self.set_limit, project_id, limit)

    def assert_exceeds(self, project_id: str, *owners: str, amount: int = 1) -> None:
        """Assert that a reserve is refused, and that the error names these projects, whose limits it would exceed."""
        with self.assertRaises(exceptions.OverQuota) as refused:
            self.use(project_id, amount)
        self.assertEqual(list(owners), [over.project_id for over in refused.exception.overs])

    def test_1_the_children_of_atlas_cannot_get_more(self) -> None:
        self.assert_not_allowed("physics", 31)
        self.assert_not_allowed("operations", 71)

    def test_2_either_child_of_physics_can_get_10_more(self) -> None:
        for project_id in ("higgs", "simulation"):
            self.set_limit(project_id, 20)
            self.set_limit(project_id, 10)

    def test_3_the_children_of_operations_cannot_get_more(self) -> None:
        self.assert_not_allowed("workflow", 41)
        self.assert_not_allowed("web", 31)

    def test_4_operations_cannot_get_less_than_its_children(self) -> None:
        self.assert_not_allowed("operations", 50)

    def test_5_a_limit_can_be_below_the_usage(self) -> None:
        self.set_limit("simulation", 5)

    def test_6_a_full_project_gets_no_more(self) -> None:
        self.assert_exceeds("simulation", "simulation")

    def test_7_a_full_parent_refuses_and_is_named(self) -> None:
        self.set_limit("simulation", 5)
        self.set_limit("physics", 20)
        self.set_limit("higgs", 15)
        self.assert_exceeds("higgs", "physics")

    def test_8_what_fits_at_every_level_is_granted(self) -> None:
        self.assert_exceeds("web", "web", amount=26)
        self.use("web", 25)

    def test_9_the_usage_afterwards(self) -> None:
        self.use("web", 25)
        rows = {row.project_id: row for row in self.ledger.limits.tree(_ADMIN)}
        self.assertEqual(30, rows["web"].used)
        self.assertEqual(60, rows["operations"].hierarchical_usage)
        self.assertEqual(80, rows["atlas"].hierarchical_usage)
