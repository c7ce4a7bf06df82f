# SPDX-License-Identifier: Apache-2.0
"""What QuotaEngine and the interfaces of its subjects have in common."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cyborg_quota import validation
from cyborg_quota.policy import Policy
from cyborg_quota.types import Author, Resource
from cyborg_quota.validation import Context

if TYPE_CHECKING:  # the command line's help must not load a database
    from cyborg_quota.driver import DbQuotaDriver


Method = TypeVar("Method", bound=Callable[..., Any])


def admin_call(method: Method, action: str | None = None) -> Method:
    """A method that needs an admin's context, its first argument. It raises NotAuthorized otherwise.

    ``action``: what the error names; None: the method.
    """

    @functools.wraps(method)
    def checked(subject: Any, context: Context, *args: Any, **options: Any) -> Any:
        validation.admin_only(context, action or method.__name__)
        return method(subject, context, *args, **options)

    return checked  # type: ignore[return-value]


_MAX_LIST_AGE_SECONDS: Final = 60.0


class Resources(dict[str, Resource]):
    """The resources that are counted, by name: those of the configuration, and a copy of those that are stored.

    A look-up reads nothing. What another process has stored is found by ``renew``. Shared by threads: each step is one
    dictionary operation.
    """

    def __init__(self, driver: DbQuotaDriver, configured: Iterable[str]) -> None:
        super().__init__((validation.new_name("resource", name), Resource(name)) for name in configured)
        self._driver = driver
        self._read_at = -math.inf

    def renew(self, max_age_seconds: float) -> None:
        """Read the stored resources if the copy is older than that."""
        now = time.monotonic()
        if now - self._read_at >= max_age_seconds:
            self.update(self._driver.resources.read())
            self._read_at = now

    def names(self) -> list[str]:
        """The names, sorted. Those that another process has stored are at most a minute late."""
        self.renew(_MAX_LIST_AGE_SECONDS)
        return sorted(self)

    def register(self, resource: Resource) -> None:
        """Store a resource that is not known, or its description and its unit. One that is None stays as it is."""
        if resource.name not in self:
            self.renew(0)
        if resource.name not in self or (resource.description, resource.unit) != (None, None):
            self._driver.resources.store(resource)
            self.renew(0)


class Subject:
    """Checks arguments, and calls the parts of the driver."""

    def __init__(
        self, driver: DbQuotaDriver, resources: Resources, authority: Policy, *, require_reason: bool = False
    ) -> None:
        """``require_reason``: [limits] require_reason."""
        self._driver = driver
        self._resources = resources
        self._authority = authority
        self._require_reason = require_reason

    def _author(self, context: Context, reason: str | None) -> Author:
        """Who makes a change, and why. Raises InvalidRequest, ReasonRequired."""
        return validation.author_of(context, reason, is_required=self._require_reason)
