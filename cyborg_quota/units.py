# SPDX-License-Identifier: Apache-2.0
"""The rules of inventories: which amounts a claim may take, and how large the capacity is; units. Pure: no I/O.

The rules are those of the specification "Resource Providers - Base Models". Placement differs: there, min_unit must be
a multiple of step_size to be claimed.
"""

from __future__ import annotations

import decimal
import functools
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.safe_repr import safe_repr
from cyborg_quota.types import MAX_AMOUNT
from cyborg_quota.types.capacity import Inventory, InventoryRecord

MAX_RATIO_PLACES: Final = 4
"""The maximum number of decimal places of allocation_ratio that the database stores."""

MAX_CAPACITY: Final = 2**40
"""The largest capacity of an inventory: the sum of millions of inventories fits into 64 bits, the limit of SQLite."""

_MAX_RATIO: Final = decimal.Decimal(10) ** 9
_CONTEXT: Final = decimal.Context(prec=60, rounding=decimal.ROUND_FLOOR)


_BYTES: Final = (
    ("B", "KB", "MB", "GB", "TB", "PB", "EB"),
    ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"),
)


def larger_unit(unit: str | None, amount: int) -> str:
    """The unit in which an amount that is too large fits, for a message. Known are those of bytes.

    ``unit``: that of the resource; None: it has none, and might be counted in bytes.
    """
    for units in _BYTES:
        for steps, larger in enumerate(units[units.index(unit) + 1 :] if unit in units else (), 1):
            if amount <= MAX_AMOUNT * 1024**steps:
                return f"{larger} (1 {larger} = {1024**steps} {unit})"
    known = unit is None or any(unit in units for units in _BYTES)
    return f"a larger unit{' than ' + safe_repr(unit) if unit else ''}{' (1 TB = 1024 GB)' if known else ''}"


def capacity_of(inventory: Inventory) -> int:
    """(total - reserved) * allocation_ratio, in decimal arithmetic, rounded down."""
    product = _CONTEXT.multiply(decimal.Decimal(inventory.total - inventory.reserved), inventory.allocation_ratio)
    return int(product.to_integral_value(rounding=decimal.ROUND_FLOOR, context=_CONTEXT))


def max_unit_of(inventory: Inventory) -> int:
    """max_unit, which defaults to the total."""
    return inventory.total if inventory.max_unit is None else inventory.max_unit


def violated_unit(amount: int, *, min_unit: int, max_unit: int, step_size: int) -> str | None:
    """The unit rule that ``amount`` violates, as a sentence without a full stop.

    None if it passes. min_unit itself passes. Above it, only multiples of step_size up to max_unit pass.
    """
    if amount == min_unit:
        return None
    if amount < min_unit:
        return f"min_unit is {min_unit}: the smallest amount that can be claimed"
    if amount <= max_unit and amount % step_size == 0:
        return None
    if amount > max_unit:
        return f"max_unit is {max_unit}: a larger amount cannot be claimed"
    return f"step_size is {step_size}: an amount above min_unit must be a multiple of it"


def largest_permitted(at_most: int, *, min_unit: int, max_unit: int, step_size: int) -> int:
    """The largest amount that is not above ``at_most`` and passes ``violated_unit``; 0 if there is none."""
    highest = min(at_most, max_unit)
    in_steps = highest - highest % step_size
    if in_steps > min_unit:
        return in_steps
    return min_unit if at_most >= min_unit else 0


def violated_rule(
    amount: int, taken: int, record: InventoryRecord, exceeded: str = "the capacity is exceeded"
) -> str | None:
    """The rule of ``record`` that a claim of ``amount`` violates.

    ``taken``: what all claims of the call take there, or by how much one grows; if that does not fit: ``exceeded``.
    """
    violated = violated_unit(amount, min_unit=record.min_unit, max_unit=record.max_unit, step_size=record.step_size)
    return violated or (exceeded if taken > max(0, record.free) else None)


def check_inventory(resource: str, inventory: Inventory) -> Inventory:
    """Return the inventory with plain values. Raises InvalidInventory, which names the value."""

    def integer(field: str, low: int, high: int = MAX_AMOUNT) -> int:
        value = getattr(inventory, field)
        if isinstance(value, bool) or not isinstance(value, int):
            raise exceptions.InvalidInventory(resource, field, value, "it must be an integer")
        if not low <= value <= high:
            raise exceptions.InvalidInventory(resource, field, value, f"it must be between {low} and {high}")
        return int(value)

    total = integer("total", 0)
    min_unit = integer("min_unit", 1)
    return Inventory(
        total=total,
        reserved=integer("reserved", 0, total),
        min_unit=min_unit,
        max_unit=None if inventory.max_unit is None else integer("max_unit", min_unit),
        step_size=integer("step_size", 1),
        allocation_ratio=_check_ratio(resource, inventory.allocation_ratio, total),
    )


def _check_ratio(resource: str, value: object, total: int) -> decimal.Decimal:
    refuse = functools.partial(exceptions.InvalidInventory, resource, "allocation_ratio", value)
    if isinstance(value, bool) or not isinstance(value, (int, str, decimal.Decimal)):
        raise refuse("it must be a Decimal, an integer or a text; a float is not exact")
    # (Decimal also reads the digits of other scripts, and underscores.)
    if isinstance(value, str) and not (value.isascii() and "_" not in value):
        raise refuse("it must be a decimal number, as in 1.5")
    try:
        ratio = decimal.Decimal(value)
    except (decimal.InvalidOperation, ValueError):
        raise refuse("it must be a decimal number, as in 1.5") from None
    if not ratio.is_finite() or not 0 < ratio <= _MAX_RATIO or not (exact := ratio.normalize(_CONTEXT)):
        raise refuse(f"it must be above 0 and at most {_MAX_RATIO}")
    exponent = exact.as_tuple().exponent
    if not isinstance(exponent, int) or -exponent > MAX_RATIO_PLACES:
        raise refuse(f"it must have at most {MAX_RATIO_PLACES} decimal places")
    if total * ratio > MAX_CAPACITY:
        raise refuse(f"total * allocation_ratio must be at most {MAX_CAPACITY}")
    return ratio
