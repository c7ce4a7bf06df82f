# SPDX-License-Identifier: Apache-2.0
"""Total limits over all projects, the public interface. They apply in addition to the limits of projects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cyborg_quota import exceptions, validation
from cyborg_quota.subject import Subject
from cyborg_quota.types import MAX_LIMIT, RecordedChange, TotalLimit
from cyborg_quota.validation import Context


class Totals(Subject):
    """The largest amount of a resource that all projects may hold together. All calls need an admin's context.

    Only [limits] driver = database has total limits; with another driver, ``list`` returns none, and the other calls
    raise LimitsReadOnly.
    """

    def set(
        self,
        context: Context,
        limits: Mapping[str, int],
        *,
        reason: str | None = None,
    ) -> None:
        """Set total limits ({resource: limit}). They are enforced when the call returns.

        The call counts what all projects hold, while other calls reserve. The limit may be below the present usage:
        reserves are then refused until the usage is below it. Raises UnknownResource, InvalidRequest.
        """
        validation.admin_only(context, "set_total_limits")
        self._driver.total_limits.set(self._check(limits), self._author(context, reason))

    def preview(self, context: Context, limits: Mapping[str, int]) -> list[RecordedChange]:
        """The changes that ``set`` would make. Writes nothing. Raises the errors of ``set``."""
        validation.admin_only(context, "preview_total_limits")
        return self._driver.total_limits.find_changes(self._check(limits))

    def unset(
        self,
        context: Context,
        resources: Iterable[str],
        *,
        reason: str | None = None,
    ) -> None:
        """Remove total limits, all or none. Raises TotalLimitNotFound."""
        validation.admin_only(context, "unset_total_limits")
        names = [validation.check_name("resource", name) for name in validation.resource_list(resources)]
        author = self._author(context, reason)
        self._driver.total_limits.set(dict.fromkeys(names), author, must_exist=True)

    def list(self, context: Context) -> list[TotalLimit]:
        """All total limits, by resource; with another limit driver, none."""
        validation.admin_only(context, "list_total_limits")
        try:
            return self._driver.total_limits.read()
        except exceptions.LimitsReadOnly:
            return []

    def count_held(self, context: Context, resources: Iterable[str]) -> dict[str, int]:
        """What all projects have in use and reserved, by resource, whether a total limit is set or not.

        Adds up the counters of all projects in one statement.
        """
        validation.admin_only(context, "count_total_limits_held")
        names = [validation.check_name("resource", name) for name in validation.resource_list(resources)]
        return self._driver.total_limits.count_held(names)

    def _check(self, limits: Mapping[str, int]) -> dict[str, int]:
        if not isinstance(limits, Mapping) or not limits:
            raise exceptions.InvalidRequest("Total limits must map at least one resource to a limit.")
        validation.refuse_unknown(limits, self._resources)
        for resource, limit in limits.items():
            rule = f"The total limit of {resource} must be an integer from 0 to {MAX_LIMIT}"
            validation.integer(limit, 0, MAX_LIMIT, rule)
        return {validation.check_name("resource", resource): int(limit) for resource, limit in limits.items()}
