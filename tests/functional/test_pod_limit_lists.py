# SPDX-License-Identifier: Apache-2.0
"""Limits per pod: who sees them, their lists, the history, and documents of limits."""

from __future__ import annotations

from typing import Any

from cyborg_quota import ANY, SELECT, Inventory, exceptions, policy
from cyborg_quota.limits.sources.config import NoopLimitDriver
from cyborg_quota.policy import FITS_RULE, SEE_PODS
from cyborg_quota.types import LimitRecord
from tests import base, fixtures, history_replay
from tests.base import ADMIN
from tests.functional import test_pod_limits


class TestVisibility(test_pod_limits.PodLimitTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_headroom(self) -> None:
        """With the rule ``capacity:fits``, a tenant learns what a limit per pod leaves, but not the name of the pod.

        Without it, a headroom does not consider limits per pod.
        """
        tenant = base.Context("a")
        self.limit(2)
        self.limit(3, pod="p2")
        self.engine.capacity.remove_provider(ADMIN, "n3")
        quota = self.engine.headroom(tenant)
        for provider in ("n1", ANY):
            self.assertEqual(quota, self.engine.headroom(tenant, provider=provider))
        rules = {FITS_RULE}
        allows = lambda _self, _context, rule, *_rest: rule in rules  # noqa: E731
        self.patch(policy.Policy, "allows", allows)
        for provider, fits in (("n1", 2), ("n2", 3), (ANY, 3)):
            found = self.engine.headroom(tenant, provider=provider)["gpu"]
            self.assertEqual((fits, ""), (found.fits, found.pod), provider)
            self.assertNotRegex(repr(found), "p1|p2")
        rules.add(SEE_PODS)
        self.assertEqual("p1", self.engine.headroom(tenant, provider="n1")["gpu"].pod)

    def test_the_overflow_of_a_counter(self) -> None:
        """The error names the resource only."""
        most = 2**31 - 1
        for name, pod in (("n1", "p1"), ("n4", "p1")):
            if name == "n4":
                self.engine.capacity.add_provider(ADMIN, name, pod=pod)
            self.engine.capacity.set_inventories(ADMIN, name, {"gpu": Inventory(most)})
        self.claim(1, consumer="c")
        self.claim(most - 2, provider="n4")
        tenant = base.Context("a")
        for call in (
            lambda: self.quotas.reserve(tenant, {"gpu": 2}, provider="n1"),
            lambda: self.quotas.reserve(tenant, {"gpu": 2}, provider=ANY, pod=SELECT),
            lambda: self.quotas.resize(tenant, {"gpu": 3}, consumer="c"),
        ):
            error = self.assertRaises(exceptions.UsageOverflow, call)
            self.assertEqual("gpu", error.resource)
            self.assertNotIn("p1", str(error))


class TestLists(test_pod_limits.PodLimitTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_lists_and_history(self) -> None:
        self.limit(2, reason="share")
        self.limit(3, "b", "p2")
        self.limit(None)
        self.claim(1)
        self.assertEqual([LimitRecord("b", "gpu", 3, pod="p2")], self.admin.list_pod_limits(ADMIN))
        self.assertEqual([], self.admin.list_pod_limits(ADMIN, "a"))
        self.assertEqual([], self.admin.list_pod_limits(ADMIN, None, "p1"))
        self.assertTrue(all(one.pod is None for one in self.admin.list_limits(ADMIN)))
        self.assertEqual(4, len(self.admin.list_limits(ADMIN)))
        history = self.admin.history(ADMIN, resource="gpu", limit=3)
        self.assertEqual(
            [("a", "p1", 2, None), ("b", "p2", None, 3), ("a", "p1", None, 2)],
            [(one.project_id, one.pod, one.before, one.after) for one in history],
        )
        self.assertEqual([], history_replay.differences(self.engine))
        self.assertEqual({"gpu"}, {one.resource for one in self.engine.list_usages(ADMIN, "a")})
        self.assertEqual({"fpga", "gpu"}, {row.resource for row in self.admin.tree(ADMIN)})

    def test_pages_of_projects(self) -> None:
        for project_id in ("b", "a"):
            self.limit(2, project_id)
            self.limit(3, project_id, "p2")

        def page(*which: str | None, **options: Any) -> list[tuple[str | None, str | None]]:
            return [(one.project_id, one.pod) for one in self.admin.list_pod_limits(ADMIN, *which, **options)]

        self.assertEqual([("a", "p1"), ("a", "p2"), ("b", "p1"), ("b", "p2")], page())
        self.assertEqual([("a", "p1"), ("a", "p2")], page(projects=1))
        self.assertEqual([("b", "p2")], page(None, "p2", projects=1, after="a"))
        self.assertEqual([("b", "p1"), ("b", "p2")], page(after="a"))
        self.assertEqual([], page(None, "p1", projects=1, after="b"))
        self.assertEqual([], page("a", projects=0))
        self.assertRaises(exceptions.PodNotFound, page, None, "p9", after="a")
        self.assertRaises(exceptions.InvalidRequest, page, projects=-1)
        self.assertRaises(exceptions.InvalidName, page, after="")

    def test_export_and_import(self) -> None:
        """A document with an unknown pod is refused; but what was exported before a pod was removed can be imported."""
        wrong = {"projects": [{"id": "a", "pods": {"p2": {"gpu": 1}, "p9": {"gpu": 2}}}]}
        for dry_run in (True, False):
            error = self.assertRaises(exceptions.PodNotFound, self.admin.import_limits, ADMIN, wrong, dry_run=dry_run)
            self.assertEqual("p9", error.pod)
        self.assertEqual([], self.admin.list_pod_limits(ADMIN))
        self.engine.pods.add(ADMIN, "gone")
        for pod, limit in (("p1", 2), ("p2", 3), ("gone", 3)):
            self.limit(limit, pod=pod)
        self.engine.pods.remove(ADMIN, "gone")
        document = self.admin.export_limits(ADMIN)
        (project,) = [one for one in document["projects"] if one["id"] == "a"]
        self.assertEqual({"gone": {"gpu": 3}, "p1": {"gpu": 2}, "p2": {"gpu": 3}}, project["pods"])
        self.assertEqual([], self.admin.import_limits(ADMIN, document))
        project["pods"] = {"p1": {"gpu": None}, "p2": {"gpu": 4}, "gone": {"gpu": None}, "p9": {"gpu": None}}
        changes = [(one.pod, one.before, one.after) for one in self.admin.import_limits(ADMIN, document)]
        self.assertEqual({("p1", 2, None), ("p2", 3, 4), ("gone", 3, None)}, set(changes))
        self.assertEqual([LimitRecord("a", "gpu", 4, pod="p2")], self.admin.list_pod_limits(ADMIN))

    def test_bad_input(self) -> None:
        admin = self.engine.limits
        for wrong in (None, {"gpu": -2}, {"gpu": True}, {"gpu": "5"}):
            self.assertRaises(exceptions.QuotaError, admin.set_limits, ADMIN, wrong, "a", pod="p1")
        self.assertRaises(exceptions.PodNotFound, self.limit, 1, pod="p9")
        self.assertRaises(exceptions.UnknownResource, admin.set_limits, ADMIN, {"tpu": 1}, "a", pod="p1")
        self.assertRaises(exceptions.InvalidRequest, admin.set_limits, ADMIN, {"gpu": 1}, pod="p1")
        self.assertRaises(exceptions.InvalidName, self.limit, 1, pod="p" * 256)
        self.limit(None, pod="p9")
        engine = fixtures.open_engine(self, self.url, NoopLimitDriver())
        self.assertRaises(exceptions.LimitsReadOnly, engine.limits.set_limits, ADMIN, {"gpu": 1}, "a", pod="p1")
