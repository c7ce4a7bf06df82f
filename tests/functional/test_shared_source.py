# SPDX-License-Identifier: Apache-2.0
"""Two Cyborgs on one ledger that both keep the default [cyborg] source."""

from __future__ import annotations

import testscenarios

from cyborg_quota import Claim, exceptions
from cyborg_quota.integrations.cyborg.diff import Attached
from cyborg_quota.integrations.cyborg.reconciler import Reconciler, SourceShared
from tests import base
from tests.functional.test_reconciler import Cloud

load_tests = testscenarios.load_tests_apply_scenarios


class TestSharedSource(base.LedgerTestCase):
    """``east`` and ``west``: each has two ARQs, bound and charged."""

    def setUp(self) -> None:
        super().setUp()
        self.clouds = {name: Cloud() for name in ("east", "west")}
        for name, cloud in self.clouds.items():
            cloud.profiles = [f"profile of {name}"]
            for number in range(2):
                cloud.arqs[f"{name}-{number}"] = Attached(f"{name}-{number}", "p1", "i1", {"gpu": 1})
                self.charge(f"{name}-{number}")
        self.charge("ghost")

    def charge(self, arq: str) -> None:
        self.engine.adopt(base.ADMIN, [Claim(arq, {"gpu": 1}, source="cyborg")], "p1")

    def reconciler(self, name: str, source: str = "cyborg") -> Reconciler:
        return Reconciler(self.quotas, self.clouds[name], ("gpu",), grace_seconds=0, share=100, source=source)

    def heal(self, name: str, source: str = "cyborg") -> list[str]:
        reconciler = self.reconciler(name, source)
        return [one.arq for one in reconciler.heal(reconciler.find(), force=True)]

    def sources(self) -> dict[str | None, str | None]:
        return {row.consumer: row.source for row in self.quotas.list_reservations(base.ADMIN, state="committed")}

    def register_both(self) -> None:
        self.assertTrue(self.reconciler("east").register())
        self.assertRaises(SourceShared, self.reconciler("west").register)

    def test_neither_releases_anything(self) -> None:
        self.register_both()
        for name in ("west", "east"):
            error = self.assertRaises(SourceShared, self.heal, name)
            self.assertIn("reconcile --claim-source cyborg", str(error))
        self.assertEqual(5, len(self.sources()))

    def test_a_rival_after_the_comparison(self) -> None:
        east = self.reconciler("east")
        east.register()
        report = east.find()
        self.assertRaises(SourceShared, self.reconciler("west").register)
        self.assertRaises(SourceShared, east.heal, report, force=True)

    def test_renamed(self) -> None:
        """One gets a name of its own and takes its own charges along; both are repaired again."""
        for name, other in (("west", "east"), ("east", "west")):
            with self.subTest(name):
                self.register_both()
                renamed = self.reconciler(name, "mine")
                self.assertEqual(2, renamed.claim_source("cyborg"))
                self.assertEqual(0, renamed.claim_source("cyborg"))
                self.assertEqual([], self.heal(name, "mine"))
                self.assertEqual(["ghost"], self.heal(other))
                expected = {f"{name}-{number}": "mine" for number in range(2)}
                expected.update({f"{other}-{number}": "cyborg" for number in range(2)})
                self.assertEqual(expected, self.sources())
            # Back to the start, with the other one renamed.
            self.assertEqual(2, self.reconciler(name, "cyborg").claim_source("mine"))
            self.reconciler(other).claim_source("cyborg")
            self.engine.leave_source(base.ADMIN, "cyborg", ["profile of east"])
            self.engine.leave_source(base.ADMIN, "cyborg", ["profile of west"])
            self.charge("ghost")

    def test_the_only_one_was_renamed(self) -> None:
        """All of its charges follow, also those whose ARQ is not bound."""
        self.clouds["east"].arqs.update(self.clouds["west"].arqs)
        self.reconciler("east").register()
        self.assertEqual(5, self.reconciler("east", "mine").claim_source("cyborg"))
        self.assertEqual({"mine"}, set(self.sources().values()))

    def test_claimed(self) -> None:
        """The other one is gone, or the profiles were replaced."""
        self.register_both()
        self.assertEqual(0, self.reconciler("west").claim_source("cyborg"))
        self.assertTrue(self.reconciler("west").register(dry_run=True))
        self.assertRaises(SourceShared, self.reconciler("east").register, dry_run=True)
        self.assertTrue(self.reconciler("west").register())  # a dry run writes nothing

    def test_a_profile_is_replaced(self) -> None:
        cloud = self.clouds["east"]
        for profiles in (["a", "b"], ["b", "c"], ["c"], ["d", "c"], ["d"]):
            cloud.profiles = profiles
            self.assertTrue(self.reconciler("east").register(), profiles)
        cloud.profiles = []
        self.assertRaises(SourceShared, self.reconciler("east").register)

    def test_bad_input(self) -> None:
        for identity in ("a text", [""], ["x"] * 1001):
            self.assertRaises(
                (exceptions.InvalidName, exceptions.InvalidRequest),
                self.engine.register_source,
                base.ADMIN,
                "cyborg",
                identity,
            )
        self.assertRaises(exceptions.NotAuthorized, self.engine.register_source, self.context, "cyborg", ["a"])
        self.assertRaises(exceptions.NotAuthorized, self.engine.leave_source, self.context, "cyborg", ["a"])
