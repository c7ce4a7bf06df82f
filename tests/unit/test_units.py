# SPDX-License-Identifier: Apache-2.0
"""The unit rules and the capacity of inventories."""

from __future__ import annotations

import dataclasses
import decimal

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota import Inventory, exceptions, units
from cyborg_quota.types.capacity import InventoryRecord

SMALL = st.integers(1, 12)


def passing(amounts: range, min_unit: int, max_unit: int, step_size: int) -> list[int]:
    """The amounts that the rule permits: min_unit, and the multiples of the step up to max_unit."""
    return [one for one in amounts if one == min_unit or (min_unit < one <= max_unit and one % step_size == 0)]


class TestUnits(base.BaseTestCase):
    def test_the_violated_rule_is_named(self) -> None:
        disk, others = (5, 1000, 10), (1, 17, 4)
        for amount, (min_unit, max_unit, step_size), expected in (
            (4, disk, "min_unit is 5: the smallest amount that can be claimed"),
            (17, others, "step_size is 4: an amount above min_unit must be a multiple of it"),
            (19, others, "max_unit is 17: a larger amount cannot be claimed"),
        ):
            rule = units.violated_unit(amount, min_unit=min_unit, max_unit=max_unit, step_size=step_size)
            self.assertEqual(expected, rule)

    @given(st.integers(-5, 50), SMALL, st.integers(1, 40), SMALL)
    def test_the_rule_and_the_largest_amount(self, at_most: int, min_unit: int, max_unit: int, step_size: int) -> None:
        expected = max(passing(range(1, at_most + 1), min_unit, max_unit, step_size), default=0)
        limits = {"min_unit": min_unit, "max_unit": max_unit, "step_size": step_size}
        self.assertEqual(expected, units.largest_permitted(at_most, **limits))
        is_violated = units.violated_unit(at_most, **limits) is not None
        self.assertEqual(passing(range(at_most, at_most + 1), min_unit, max_unit, step_size) == [], is_violated)

    def test_units_precede_the_capacity(self) -> None:
        record = InventoryRecord("n", "gpu", 8, 0, 2, 6, 2, decimal.Decimal(1), 8, 5, 0)
        self.assertIn("max_unit is 6", str(units.violated_rule(8, 8, record)))
        self.assertEqual("the capacity is exceeded", units.violated_rule(2, 4, record))
        self.assertIsNone(units.violated_rule(2, 2, record))


class TestCapacity(base.BaseTestCase):
    def test_decimal_arithmetic(self) -> None:
        """(10 - 0) * 0.7 and 100 * 1.1 differ from these integers in binary floating point, or round down there."""
        for total, reserved, ratio, capacity in (
            (8, 0, "1", 8),
            (10, 3, "1", 7),
            (10, 0, "0.7", 7),
            (100, 0, "1.1", 110),
            (3, 0, "0.1", 0),
            (7, 0, "1.5", 10),
            (29, 0, "1.0001", 29),
            (10, 10, "16", 0),
            (2**31 - 1, 0, "1.0001", 2147698395),
        ):
            inventory = Inventory(total, reserved, allocation_ratio=decimal.Decimal(ratio))
            self.assertEqual(capacity, units.capacity_of(inventory), inventory)

    def test_max_unit_is_the_total_by_default(self) -> None:
        self.assertEqual(9, units.max_unit_of(Inventory(9, 3)))
        self.assertEqual(4, units.max_unit_of(Inventory(9, max_unit=4)))


class TestCheckInventory(base.BaseTestCase):
    def test_each_invalid_value_is_named(self) -> None:
        for field, values in (
            ("total", (-1, True, 1.0, 2**31, None)),
            ("reserved", (-1, 9)),
            ("min_unit", (0,)),
            ("max_unit", (0,)),
            ("step_size", (0, "2")),
            ("allocation_ratio", (0, -1, 1.5, "x", "NaN", "Infinity", "1.00001", None, "1e30", True)),
            ("allocation_ratio", ("1_0", "1e-999999999", "\u0663")),
        ):
            for value in values:
                inventory = Inventory(**{"total": 8, field: value})
                error = self.assertRaises(exceptions.InvalidInventory, units.check_inventory, "gpu", inventory)
                self.assertEqual((field, value, True), (error.field, error.value, field in str(error)))
        large = Inventory(2**31 - 1, allocation_ratio=decimal.Decimal(513))
        error = self.assertRaises(exceptions.InvalidInventory, units.check_inventory, "gpu", large)
        self.assertIn("total * allocation_ratio must be at most 1099511627776", str(error))
        units.check_inventory("gpu", dataclasses.replace(large, allocation_ratio=decimal.Decimal(512)))
        checked = units.check_inventory("gpu", Inventory(5, 5, min_unit=9, allocation_ratio="1.50"))  # type: ignore[arg-type]
        self.assertEqual(decimal.Decimal("1.5"), checked.allocation_ratio)
        units.check_inventory("gpu", Inventory(0))
        low = Inventory(8, min_unit=4, max_unit=3)
        self.assertRaises(exceptions.InvalidInventory, units.check_inventory, "gpu", low)
