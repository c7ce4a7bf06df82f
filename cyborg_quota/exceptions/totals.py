# SPDX-License-Identifier: Apache-2.0
"""The errors of total limits over all projects. Import them from cyborg_quota.exceptions."""

from __future__ import annotations

from collections.abc import Iterable

from cyborg_quota.exceptions.base import NotFound


class TotalLimitNotFound(NotFound):
    """These resources have no total limit over all projects. ``resources``: their names, sorted."""

    def __init__(self, resources: Iterable[str]) -> None:
        self.resources = sorted(resources)
        super().__init__(f"There is no total limit for {', '.join(self.resources)}. Nothing was changed.")
