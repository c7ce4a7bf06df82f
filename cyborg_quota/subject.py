# SPDX-License-Identifier: Apache-2.0
"""What QuotaEngine and the interfaces of its subjects have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from cyborg_quota import validation
from cyborg_quota.policy import Policy
from cyborg_quota.types import Author
from cyborg_quota.validation import Context

if TYPE_CHECKING:  # the command line's help must not load a database
    from cyborg_quota.driver import DbQuotaDriver


Method = TypeVar("Method", bound=Callable[..., Any])


def admin_call(method: Method) -> Method:
    """A method that needs an admin's context, its first argument. It raises NotAuthorized, with its name, otherwise."""

    @functools.wraps(method)
    def checked(subject: Any, context: Context, *args: Any, **options: Any) -> Any:
        validation.admin_only(context, method.__name__)
        return method(subject, context, *args, **options)

    return checked  # type: ignore[return-value]


class Subject:
    """Checks arguments, and calls the parts of the driver."""

    def __init__(
        self, driver: DbQuotaDriver, resources: dict[str, Any], authority: Policy, *, require_reason: bool = False
    ) -> None:
        """``resources``: the registered resources, by name. ``require_reason``: [limits] require_reason."""
        self._driver = driver
        self._resources = resources
        self._authority = authority
        self._require_reason = require_reason

    def _author(self, context: Context, reason: str | None) -> Author:
        """Who makes a change, and why. Raises InvalidRequest, ReasonRequired."""
        return validation.author_of(context, reason, is_required=self._require_reason)
