# SPDX-License-Identifier: Apache-2.0
"""Claim.source: stored with the reservations, shown, and without effect on the counters."""

from __future__ import annotations

from cyborg_quota import Claim, exceptions
from tests import base, fixtures


class TestSources(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE

    def sources(self) -> dict[str | None, set[str | None]]:
        found: dict[str | None, set[str | None]] = {}
        for row in self.quotas.list_reservations(base.ADMIN):
            found.setdefault(row.consumer, set()).add(row.source)
        return found

    def reserve(self, *claims: Claim) -> list[str]:
        return self.quotas.reserve_many(self.context, claims)

    def test_stored_by_every_call_that_charges(self) -> None:
        """One row, several, several with and without a source; committed directly; and without a consumer.

        The source does not make a claim a different one.
        """
        first = self.reserve(Claim("one", {"gpu": 1}, source="east"))
        self.reserve(Claim("two", {"gpu": 1, "fpga": 1}, source="east"))
        self.reserve(Claim("with", {"gpu": 1}, source="west"), Claim("without", {"gpu": 1}))
        self.reserve(*[Claim(f"m{number}", {"gpu": 1}, source="east") for number in range(40)])
        self.quotas.adopt(base.ADMIN, [Claim("adopted", {"gpu": 1}, source="east")], "p1")
        self.reserve(Claim(None, {"gpu": 1}, source="nameless"))
        self.assertEqual(first, self.reserve(Claim("one", {"gpu": 1}, source="west")))
        found = self.sources()
        self.assertEqual([{"east"}] * 2, [found["one"], found["two"]])
        self.assertEqual([{"west"}, {None}], [found["with"], found["without"]])
        self.assertEqual({frozenset({"east"})}, {frozenset(found[f"m{number}"]) for number in range(40)})
        self.assertEqual([{"east"}, {"nameless"}], [found["adopted"], found[None]])

    def test_given_afterwards(self) -> None:
        """Only a live reservation without a source gets one."""
        old, other = self.reserve(Claim("old", {"gpu": 1})), self.reserve(Claim("other", {"gpu": 1}, source="west"))
        ended = self.reserve(Claim("ended", {"gpu": 1}))
        self.quotas.rollback(self.context, ended)
        many = self.reserve(*[Claim(f"m{number}", {"gpu": 1}) for number in range(300)])
        self.assertEqual(301, self.quotas.set_source(base.ADMIN, [*old, *other, *ended, *many], "east"))
        self.assertEqual(0, self.quotas.set_source(base.ADMIN, old, "west"))
        self.assertEqual(0, self.quotas.set_source(base.ADMIN, [], "west"))
        self.assertEqual(0, self.quotas.set_source(base.ADMIN, [*old, *other, *ended], "north", replaced="south"))
        self.assertEqual(1, self.quotas.set_source(base.ADMIN, [*old, *other, *ended], "north", replaced="west"))
        found = self.sources()
        wanted = {"old": {"east"}, "other": {"north"}, "ended": {None}, "m7": {"east"}}
        self.assertEqual(wanted, {name: found[name] for name in wanted})
        self.assertEqual([], self.quotas.audit(base.ADMIN))

    def test_refused(self) -> None:
        for bad in ("", " east", "a\nb", "x" * 256, 7):
            self.assertRaises(exceptions.InvalidName, self.reserve, Claim("a", {"gpu": 1}, source=bad))  # type: ignore[arg-type]
            self.assertRaises(exceptions.InvalidName, self.quotas.set_source, base.ADMIN, [], bad)
        self.assertRaises(exceptions.NotAuthorized, self.quotas.set_source, self.context, [], "east")
        self.assertEqual({}, self.sources())
