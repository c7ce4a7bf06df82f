# SPDX-License-Identifier: Apache-2.0
"""audit and heal: compare the counters with the reservations, and correct them."""

from __future__ import annotations

from typing import Any, Final

from cyborg_quota.cli import base
from cyborg_quota.surface import formats
from cyborg_quota.surface.operations import Operation, cells
from cyborg_quota.types import Drift
from cyborg_quota.types.capacity import CapacityDrift

_COUNTERS: Final = ("used", "reserved", "subtree", "promised", "metered")
_SPARSE: Final = ("promised", "metered")
"""Those that are shown only where they differ."""
_COUNTER_COLUMNS: Final = [f"{column}_{counter}" for counter in _COUNTERS for column in ("recorded", "expected")]
DRIFT_COLUMNS: Final = [
    column._replace(is_sparse=column.name.endswith(_SPARSE))
    for column in cells("project_id", "resource", *_COUNTER_COLUMNS, "provider", "pod")
]


def _drift_row(drift: Drift | CapacityDrift) -> tuple[Any, ...]:
    values: list[formats.Cell] = []
    if isinstance(drift, CapacityDrift):
        for counter in _COUNTERS:
            pair = (drift.recorded, drift.expected) if counter == "used" else (None, None)
            values += [formats.Optional(value) for value in pair]
        return (formats.Optional(None), drift.resource, *values, drift.provider, formats.Optional(None))
    for counter in _COUNTERS:
        recorded, expected = (
            None if counters is None else getattr(counters, counter) for counters in (drift.recorded, drift.expected)
        )
        is_shown = counter not in _SPARSE or recorded != expected
        values += [formats.Optional(value if is_shown else None) for value in (recorded, expected)]
    places = formats.Optional(None), formats.Optional(drift.key.pod or None)
    return (formats.OptionalProject(drift.key.project_id), drift.key.resource, *values, *places)


Audit = base.generate(
    Operation(
        """Compare the usage counters with the reservations; writes nothing.

        If there are differences, prints a row for each (recorded: the counter;
        expected: the sum of the reservations) and exits with 1; otherwise prints
        nothing and exits with 0. A row with a provider is about an inventory of it; a row
        with a pod is about what the project holds in the pod. promised: what the minimums of
        projects below keep. metered: device-seconds, less than 0 while devices are held, so
        that only the difference has a meaning. Both are shown where they differ. `heal`
        repairs the counters.
        """,
        "cyborg-quota audit -f csv",
        lambda run: map(_drift_row, run.engine.audit(run.context)),
        columns=DRIFT_COLUMNS,
        refuses=True,
    )
)

Heal = base.generate(
    Operation(
        """Correct the usage counters that differ from the reservations.

        May run while other programs reserve and commit. Prints a row for each
        corrected counter, with the old value (recorded) and the new one (expected).
        Includes the inventories of providers.
        """,
        "cyborg-quota heal",
        lambda run, progress: map(_drift_row, run.engine.heal(run.context, progress=progress)),
        columns=DRIFT_COLUMNS,
        progress="rows",
    )
)
