# SPDX-License-Identifier: Apache-2.0
"""audit: compare the counters with the reservations, and with --heal correct them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from cyborg_quota.cli import base
from cyborg_quota.cli.errors import REFUSED
from cyborg_quota.surface import formats
from cyborg_quota.surface.operations import Argument, Operation, cells
from cyborg_quota.types import Drift
from cyborg_quota.types.capacity import CapacityDrift

_COUNTERS: Final = ("used", "reserved", "subtree")
DRIFT_COLUMNS: Final = cells(
    "project_id",
    "resource",
    *(f"{column}_{counter}" for counter in _COUNTERS for column in ("recorded", "expected")),
    "provider",
    "pod",
)


def _drift_row(drift: Drift | CapacityDrift) -> tuple[Any, ...]:
    values: list[formats.Cell] = []
    if isinstance(drift, CapacityDrift):
        for counter in _COUNTERS:
            pair = (drift.recorded, drift.expected) if counter == "used" else (None, None)
            values += [formats.Optional(value) for value in pair]
        return (formats.Optional(None), drift.resource, *values, drift.provider, formats.Optional(None))
    for counter in _COUNTERS:
        values += [
            formats.Optional(None if counters is None else getattr(counters, counter))
            for counters in (drift.recorded, drift.expected)
        ]
    places = formats.Optional(None), formats.Optional(drift.key.pod or None)
    return (formats.OptionalProject(drift.key.project_id), drift.key.resource, *values, *places)


def _audit(run: base.Run, *, heal: bool) -> Iterator[tuple[Any, ...]]:
    if heal:
        with base.progress_bar(None, "rows") as progress:
            return map(_drift_row, run.engine.heal(run.context, progress=progress))
    drifts = run.engine.audit(run.context)
    run.status = REFUSED if drifts else run.status
    return map(_drift_row, drifts)


Audit = base.generate(
    Operation(
        """Compare the usage counters with the reservations; with --heal, correct the counters.

        If there are differences, prints a row for each (recorded: the counter;
        expected: the sum of the reservations) and exits with 1; otherwise prints
        nothing and exits with 0. A row with a provider is about an inventory of it; a row
        with a pod is about what the project holds in the pod. Writes nothing.

        With --heal, corrects each counter that differs, prints a row for it, with the old
        value (recorded) and the new one (expected), and exits with 0. May run while other
        programs reserve and commit.
        """,
        "cyborg-quota audit -f csv\n  cyborg-quota audit --heal",
        _audit,
        (Argument("--heal", action="store_true", help="correct the counters that differ"),),
        DRIFT_COLUMNS,
    )
)
