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
        for limit, held, is_over in ((5, 5, False), (5, 6, True), (None, 9, False), (UNLIMITED, 9, False)):
            self.assertEqual(is_over, usage(limit, held)["is_over"], (limit, held))
        for limit, fits, is_full in ((5, 0, True), (UNLIMITED, UNLIMITED, False)):
            self.assertEqual(is_full, usage(limit, fits=fits)["is_full"], (limit, fits))


class TestProjects(base.BaseTestCase):
    names = {"2": "atlas", "1": "Atlas", "9": "cms", "5": "biology"}

    def test_filter(self) -> None:
        for field, text, expected in (
            ("name", " ", ["1", "2", "5", "9"]),
            ("name", "TLA", ["1", "2"]),
            ("id", " 5 ", ["5"]),
            ("id", "atlas", []),
        ):
            self.assertEqual(expected, [one["id"] for one in rows.select_projects(self.names, field, text)])

    def test_names_in_the_place_of_ids(self) -> None:
        text = "The limit of a1 is 30, not that of a1-b or a12; see a1."
        self.assertEqual(
            "The limit of atlas is 30, not that of a1-b or a12; see atlas.", rows.replace_words(text, {"a1": "atlas"})
        )

    def test_pages(self) -> None:
        items = rows.select_projects({str(number): str(number) for number in range(5)}, "", "")

        for marker, expected in (
            ({}, ("01", False, True)),
            ({"after": "1"}, ("23", True, True)),
            ({"after": "3"}, ("4", True, False)),
            ({"before": "4"}, ("23", True, True)),
            ({"before": "1"}, ("01", False, True)),  # as many as there are before
            ({"after": "deleted"}, ("01", False, True)),
        ):
            found, before, after = rows.page_of(items, 2, **marker)
            self.assertEqual(expected, ("".join(one["id"] for one in found), before, after), marker)

    @given(st.integers(0, 30), st.integers(1, 7))
    def test_the_pages_together_are_the_list(self, count: int, size: int) -> None:
        items = [{"id": str(number), "name": ""} for number in range(count)]
        seen: list[rows.Row] = []
        has_more = True
        while has_more:
            page, _before, has_more = rows.page_of(items, size, seen[-1]["id"] if seen else None)
            seen += page
        self.assertEqual(items, seen)
