# SPDX-License-Identifier: Apache-2.0
"""CERN, "Nested quota models" (2017): its example, rule by rule, and its use cases."""

from __future__ import annotations

from typing import Any

from cyborg_quota import exceptions, policy
from cyborg_quota.limits import testing
from tests import base, fixtures
from tests.functional import test_limits, test_policy


class TestNineRules(testing.NestedQuotaRules, test_limits.LimitsTestCase):
    """The rules that "would be applied", with the default enforcement model."""

    def make_ledger(self) -> Any:
        return self.quotas


class TestChannelPartner(test_limits.LimitsTestCase):
    """ "The SME owns the parent project with the cloud provider and then allocates out to customers"."""

    MANAGER = test_policy.User("sme", roles=["manager"])

    def setUp(self) -> None:
        super().setUp()
        self.engine._authority = self.admin._authority = policy.Policy(fixtures.configuration())
        self.import_tree({"sme": None, "other": None}, {"sme": 20, "other": 5})

    def test_a_manager_adds_a_new_customer_and_gives_it_a_limit(self) -> None:
        self.admin.add_project(self.MANAGER, "customer", "sme", reason="signed")
        self.assertEqual(["customer"], self.blockers("customer"), "created with a limit of 0")
        self.admin.set_limit(self.MANAGER, "gpu", 15, "customer")
        self.hold("customer", 15)
        self.assertEqual([("customer", "sme")], self.admin.list_projects(base.ADMIN)[:1])
        [entry, *_] = self.admin.history(base.ADMIN, "customer", subject="project")
        self.assertEqual((None, "sme", "signed"), (entry.before, entry.after, entry.reason))

    def test_no_project_of_others_is_taken(self) -> None:
        """Neither one that is known in any way, nor to another place than below the own project."""
        self.set(None, 1)
        self.hold("idle", 1)
        self.quotas.release(base.ADMIN, [row.uuid for row in self.engine.list_reservations(base.ADMIN, "idle")], "idle")
        self.admin.set_limit(base.ADMIN, "gpu", 1, "limited")
        for known in ("other", "idle", "limited", "sme"):
            error = self.assertRaises(exceptions.ProjectRefused, self.admin.add_project, self.MANAGER, known, "sme")
            self.assertIn("is not new", str(error))
        for parent_id in ("other", "nowhere", None):
            self.assertRaises(exceptions.NotAuthorized, self.admin.add_project, self.MANAGER, "customer", parent_id)
        member = test_policy.User("sme", roles=["member"])
        self.assertRaises(exceptions.NotAuthorized, self.admin.add_project, member, "customer", "sme")
        self.assertRaises(exceptions.NotAuthorized, self.admin.move_project, self.MANAGER, "other", "sme")

    def test_the_model_still_decides(self) -> None:
        self.set(None, 30)
        self.admin.unset_limit(base.ADMIN, "gpu", "sme")
        self.admin.add_project(self.MANAGER, "customer", "sme")
        self.assertRaises(exceptions.LimitRefused, self.admin.set_limit, self.MANAGER, "gpu", 31, "customer")


class TestHierarchicalUsage(test_limits.LimitsTestCase):
    """ "Hierarchical Usage is the usage of all of the child projects below the project in the tree"."""

    def test_what_a_project_itself_holds_is_not_in_it(self) -> None:
        self.import_tree(
            {"atlas": None, "physics": "atlas", "higgs": "physics"}, {"atlas": 9, "physics": 8, "higgs": 7}
        )
        for project_id, amount in (("atlas", 1), ("physics", 2), ("higgs", 4)):
            self.hold(project_id, amount)
        self.quotas.reserve(base.ADMIN, {"gpu": 1}, project_id="atlas")
        self.quotas.reserve(base.ADMIN, {"gpu": 1}, project_id="higgs")
        rows = {row.project_id: row for row in self.admin.tree(base.ADMIN) if row.resource == "gpu"}
        self.assertEqual({"atlas": 7, "physics": 5, "higgs": 0}, {n: row.hierarchical_usage for n, row in rows.items()})
        self.assertEqual({"atlas": 9, "physics": 7, "higgs": 5}, {n: row.subtree for n, row in rows.items()})


class TestPages(test_limits.LimitsTestCase):
    """What the manager of a parent sees: all descendants, page by page."""

    def test_pages_of_a_deep_tree(self) -> None:
        tree: dict[str, str | None] = {"top": None, "z": None}
        for name in ("b", "a", "ab", "aa", "ac", "aba", "abb", "ba", "baa", "bb", "c", "ca", "caa", "caaa"):
            tree[name] = name[:-1] or "top"
        self.import_tree(tree, {}, gpu=0)
        whole = [(row.project_id, row.depth, row.parent_id) for row in self.admin.tree(base.ADMIN, "top")]
        self.assertEqual(sorted(set(tree) - {"top", "z"}), [name for name, *_ in whole[1:]])
        for size in range(1, len(whole) + 2):
            found: list[Any] = []
            after = None
            while rows := self.admin.tree(base.ADMIN, "top", limit=size, after=after):
                self.assertLessEqual(len(rows), size)
                found += [(row.project_id, row.depth, row.parent_id) for row in rows]
                after = rows[-1].project_id
            self.assertEqual(whole, found, size)
        for after in ("z", "nothing"):
            self.assertRaises(exceptions.MarkerNotFound, self.admin.tree, base.ADMIN, "top", limit=1, after=after)
