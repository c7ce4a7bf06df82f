# SPDX-License-Identifier: Apache-2.0
"""Read Cyborg's tables by SQL: bound ARQs, their projects, and free handles."""

from __future__ import annotations

import collections
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from tests.cyborgs.service import ServiceError
from tests.servers import machine

HANDLES_PER_HOST = 16
REPORT_TIMEOUT_SECONDS = 60.0

ARQS = "SELECT uuid, state, project_id, instance_uuid FROM extended_accelerator_requests ORDER BY id"
# Completely reported: with its handles in Cyborg, and its provider in Placement.
PROVIDERS = f"""
    SELECT v.hostname, d.rp_uuid FROM devices v JOIN deployables d ON d.device_id = v.id
    JOIN attach_handles h ON h.deployable_id = d.id
    WHERE d.rp_uuid IS NOT NULL GROUP BY v.hostname, d.rp_uuid HAVING COUNT(*) = {HANDLES_PER_HOST}
"""
HANDLES_IN_USE = "SELECT COUNT(*) FROM attach_handles WHERE in_use"


class Records:
    """The database of one Cyborg."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")

    def arqs(self) -> dict[str, sa.Row[Any]]:
        """Return the rows of all ARQs, by UUID, oldest first."""
        with self._engine.connect() as connection:
            return {row.uuid: row for row in connection.execute(sa.text(ARQS))}

    def states(self, arqs: Collection[str]) -> list[str | None]:
        """Return the state of each of these; None for a deleted one."""
        found = self.arqs()
        return [found[uuid].state if uuid in found else None for uuid in arqs]

    def bound(self) -> dict[str, int]:
        """Return the number of ARQs in state Bound of each project."""
        return dict(collections.Counter(str(arq.project_id) for arq in self.arqs().values() if arq.state == "Bound"))

    def handles_in_use(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.scalar(sa.text(HANDLES_IN_USE)))

    def providers(self) -> dict[str, str]:
        """Return host -> UUID of its device's resource provider, for the hosts that can be used."""
        with self._engine.connect() as connection:
            return {row.hostname: row.rp_uuid for row in connection.execute(sa.text(PROVIDERS))}

    def wait_for_devices(self, hosts: Collection[str]) -> None:
        """Wait until each of these hosts' devices can be bound. Raises ServiceError."""
        machine.wait_until(lambda: set(hosts) <= set(self.providers()), REPORT_TIMEOUT_SECONDS)
        if missing := set(hosts) - set(self.providers()):
            raise ServiceError(f"the report of the agent on {min(missing)} did not arrive")

    def clear(self) -> None:
        """Delete every ARQ and every device profile, and free every handle."""
        with self._engine.connect() as connection:
            connection.execute(sa.text("DELETE FROM extended_accelerator_requests"))
            connection.execute(sa.text("DELETE FROM device_profiles"))
            connection.execute(sa.text("UPDATE attach_handles SET in_use = 0"))

    def close(self) -> None:
        self._engine.dispose()
