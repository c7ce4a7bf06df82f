# SPDX-License-Identifier: Apache-2.0
"""What Horizon shows of a resource, and which projects are on a page; without Horizon."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota.horizon import rows
from cyborg_quota.types import UNLIMITED

AMOUNT = st.integers(0, 2**31 - 1)


def usage(limit: int | None, in_use: int = 0, reserved: int = 0, **changes: Any) -> rows.Row:
    detail = {"limit": limit, "in_use": in_use, "reserved": reserved, "fits": 1, "bound_by": None, **changes}
    return rows.usage("gpu", detail)


class TestBars(base.BaseTestCase):
    def test_shares_of_the_limit(self) -> None:
        for limit, in_use, reserved, expected in (
            (20, 5, 1, (25, 5)),
            (20, 20, 0, (100, 0)),
            (20, 15, 5, (75, 25)),
            (20, 25, 3, (100, 0)),  # over the limit
            (1000, 1, 0, (1, 0)),  # not nothing
            (1000, 0, 999, (0, 99)),  # not full
            (0, 0, 0, (0, 0)),
            (0, 1, 0, (100, 0)),
            (None, 3, 0, (0, 0)),
            (UNLIMITED, 3, 0, (0, 0)),
        ):
            one = usage(limit, in_use, reserved)
            self.assertEqual(expected, (one["used_percent"], one["reserved_percent"]), one)

    @given(AMOUNT, AMOUNT, AMOUNT)
    def test_a_bar_is_never_longer_than_its_frame(self, limit: int, in_use: int, reserved: int) -> None:
        one = usage(limit, in_use, reserved)
        self.assertTrue(0 <= one["used_percent"] <= 100 and one["reserved_percent"] >= 0, one)
        length = one["used_percent"] + one["reserved_percent"]
        self.assertEqual(in_use + reserved >= limit and in_use + reserved > 0, length == 100)

    def test_the_width_of_a_counter_that_is_nearly_full_bounds(self) -> None:
        bound = {"project_id": "p", "scope": "counter", "limit": 2**31 - 1}
        for fits, shown in ((0, 0), (2**30 - 1, 2**30 - 1), (2**30, None)):
            self.assertEqual(shown, usage(UNLIMITED, fits=fits, bound_by=bound)["bounded_fits"])

    def test_over_and_full(self) -> None:
        self.assertEqual([False, True], [usage(5, held)["is_over"] for held in (5, 6)])
        self.assertEqual([False, False], [usage(limit, 9)["is_over"] for limit in (None, UNLIMITED)])
        self.assertTrue(usage(5, fits=0)["is_full"])
        self.assertFalse(usage(UNLIMITED, fits=UNLIMITED)["is_full"])


class TestProjects(base.BaseTestCase):
    names = {"2": "atlas", "1": "Atlas", "9": "cms", "5": "biology"}

    def select(self, field: str, text: str) -> list[str]:
        return [one["id"] for one in rows.select_projects(self.names, field, text)]

    def test_filter(self) -> None:
        self.assertEqual(["1", "2", "5", "9"], self.select("name", " "))
        self.assertEqual(["1", "2"], self.select("name", "TLA"))
        self.assertEqual(["5"], self.select("id", " 5 "))
        self.assertEqual([], self.select("id", "atlas"))

    def test_names_in_the_place_of_ids(self) -> None:
        text = "The limit of a1 is 30, not that of a1-b or a12; see a1."
        self.assertEqual(
            "The limit of atlas is 30, not that of a1-b or a12; see atlas.", rows.replace_words(text, {"a1": "atlas"})
        )

    def test_pages(self) -> None:
        items = rows.select_projects({str(number): str(number) for number in range(5)}, "", "")

        def page(**marker: str) -> tuple[str, bool, bool]:
            found, before, after = rows.page_of(items, 2, **marker)
            return "".join(one["id"] for one in found), before, after

        self.assertEqual(("01", False, True), page())
        self.assertEqual(("23", True, True), page(after="1"))
        self.assertEqual(("4", True, False), page(after="3"))
        self.assertEqual(("23", True, True), page(before="4"))
        self.assertEqual(("01", False, True), page(before="1"), "as many as there are before")
        self.assertEqual(("01", False, True), page(after="deleted"))

    @given(st.integers(0, 30), st.integers(1, 7))
    def test_the_pages_together_are_the_list(self, count: int, size: int) -> None:
        items = [{"id": str(number), "name": ""} for number in range(count)]
        seen: list[rows.Row] = []
        has_more = True
        while has_more:
            page, _before, has_more = rows.page_of(items, size, seen[-1]["id"] if seen else None)
            seen += page
        self.assertEqual(items, seen)
