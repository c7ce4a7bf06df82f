# SPDX-License-Identifier: Apache-2.0
"""The names of pods, which limits and providers refer to: a pod exists, and is not removed in the meantime."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import clock
from cyborg_quota.db.models import pods

_pod = pods.c


def require(connection: sa.Connection, names: Iterable[str]) -> None:
    """Raise PodNotFound for the first of these names that no pod has."""
    for name in names:
        if connection.execute(sa.select(_pod.id).where(_pod.name == name)).first() is None:
            raise exceptions.PodNotFound(name)


def lock(connection: sa.Connection, name: str) -> None:
    """Lock a pod against removal, new bindings and other changes. Raises PodNotFound."""
    advance = sa.update(pods).where(_pod.name == name)
    advance = advance.values(generation=_pod.generation + 1, updated_at=clock.utc_now())
    if connection.execute(advance).rowcount == 0:
        raise exceptions.PodNotFound(name)
