# SPDX-License-Identifier: Apache-2.0
"""Claim.source: stored with the reservations, shown, and without effect on the counters."""

from __future__ import annotations

from cyborg_quota import Claim, exceptions
from tests import base, fixtures


class TestSources(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE

    def sources(self) -> set[tuple[str | None, str | None]]:
        """The consumers and the sources."""
        return {(row.consumer, row.source) for row in self.quotas.list_reservations(base.ADMIN)}

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
        of_east = {(name, "east") for name in ("one", "two", "adopted", *(f"m{number}" for number in range(40)))}
        self.assertEqual(of_east | {("with", "west"), ("without", None), (None, "nameless")}, self.sources())

    def test_given_afterwards(self) -> None:
        """Only a live reservation without a source gets one."""
        old, other = self.reserve(Claim("old", {"gpu": 1})), self.reserve(Claim("other", {"gpu": 1}, source="west"))
        ended = self.reserve(Claim("ended", {"gpu": 1}))
        self.quotas.rollback(self.context, ended)
        many = self.reserve(*[Claim(f"m{number}", {"gpu": 1}) for number in range(300)])
        for changed, uuids, source, replaced in (
            (301, [*old, *other, *ended, *many], "east", None),
            (0, old, "west", None),
            (0, [], "west", None),
            (0, [*old, *other, *ended], "north", "south"),
            (1, [*old, *other, *ended], "north", "west"),
        ):
            self.assertEqual(changed, self.quotas.set_source(base.ADMIN, uuids, source, replaced=replaced))
        expected = {("old", "east"), ("other", "north"), ("ended", None)}
        self.assertEqual(expected | {(f"m{number}", "east") for number in range(300)}, self.sources())
        self.assertEqual([], self.quotas.audit(base.ADMIN))

    def test_refused(self) -> None:
        for bad in ("", " east", "a\nb", "x" * 256, 7):
            self.assertRaises(exceptions.InvalidName, self.reserve, Claim("a", {"gpu": 1}, source=bad))  # type: ignore[arg-type]
            self.assertRaises(exceptions.InvalidName, self.quotas.set_source, base.ADMIN, [], bad)
        self.assertRaises(exceptions.NotAuthorized, self.quotas.set_source, self.context, [], "east")
        self.assertEqual(set(), self.sources())
