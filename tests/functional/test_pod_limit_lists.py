# SPDX-License-Identifier: Apache-2.0
"""Limits per pod: who sees them, their lists, the history, and documents of limits."""

from __future__ import annotations

import functools

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
        self.engine.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(most)})
        self.add_provider("n4", pod="p1", gpu=most)
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
        found = [self.admin.list_pod_limits(ADMIN, *which) for which in ((), ("a",), (None, "p1"))]
        self.assertEqual([[LimitRecord("b", "gpu", 3, pod="p2")], [], []], found)
        self.assertEqual([None] * 4, [one.pod for one in self.admin.list_limits(ADMIN)])
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

        for project_id, pod, page, expected in (
            (None, None, {}, "a p1, a p2, b p1, b p2"),
            (None, None, {"projects": 1}, "a p1, a p2"),
            (None, "p2", {"projects": 1, "after": "a"}, "b p2"),
            (None, None, {"after": "a"}, "b p1, b p2"),
            (None, "p1", {"projects": 1, "after": "b"}, ""),
            ("a", None, {"projects": 0}, ""),
        ):
            found = self.admin.list_pod_limits(ADMIN, project_id, pod, **page)  # type: ignore[arg-type]
            self.assertEqual(expected, ", ".join(f"{one.project_id} {one.pod}" for one in found), page)
        for error, pod, page in (
            (exceptions.PodNotFound, "p9", {"after": "a"}),
            (exceptions.InvalidRequest, None, {"projects": -1}),
            (exceptions.InvalidName, None, {"after": ""}),
        ):
            self.assertRaises(error, self.admin.list_pod_limits, ADMIN, None, pod, **page)  # type: ignore[arg-type]

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
        engine = fixtures.open_engine(self, self.url, NoopLimitDriver())
        for error, limits, project_id, pod in (
            (exceptions.InvalidRequest, None, "a", "p1"),
            (exceptions.InvalidRequest, {"gpu": -2}, "a", "p1"),
            (exceptions.InvalidRequest, {"gpu": True}, "a", "p1"),
            (exceptions.InvalidRequest, {"gpu": "5"}, "a", "p1"),
            (exceptions.PodNotFound, {"gpu": 1}, "a", "p9"),
            (exceptions.UnknownResource, {"tpu": 1}, "a", "p1"),
            (exceptions.InvalidRequest, {"gpu": 1}, None, "p1"),
            (exceptions.InvalidName, {"gpu": 1}, "a", "p" * 256),
        ):
            set_limits = functools.partial(self.admin.set_limits, ADMIN, limits, project_id, pod=pod)  # type: ignore[arg-type]
            self.assertRaises(error, set_limits)
        self.assertRaises(exceptions.LimitsReadOnly, engine.limits.set_limits, ADMIN, {"gpu": 1}, "a", pod="p1")
        self.limit(None, pod="p9")
