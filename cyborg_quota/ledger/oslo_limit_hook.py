# SPDX-License-Identifier: Apache-2.0
"""The hook where oslo.limit's enforcement goes (so named in Cyborg's specification).

It enforces nothing until DriverSettings has a hook. See doc/source/contributor/limit-drivers.rst.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from cyborg_quota import exceptions
from cyborg_quota.ledger.enforcers import Enforcer, PendingClaim
from cyborg_quota.types import Over, ReserveRequest

Enforce = Callable[[str, Mapping[str, int]], None]
"""``enforce(project_id, deltas)``, as of oslo_limit.limit.Enforcer. A refusal is an exception that has the attribute
``over_limit_info_list``, as oslo_limit.exception.ProjectOverLimit.
"""


class OsloLimitHook(Enforcer):
    """Asks a function before each reserve, resize and transfer, and in each check. Limits apply as well."""

    field: ClassVar[str | None] = "deltas"  # (each claim has them)

    def __init__(self, enforce: Enforce) -> None:
        self._enforce = enforce

    def check(self, project_id: str, request: Mapping[str, int]) -> Sequence[Over]:
        """What the function refuses."""
        try:
            self._enforce(project_id, dict(request))
        except Exception as error:
            if (infos := getattr(error, "over_limit_info_list", None)) is None:
                raise
            return [
                Over(project_id, one.resource_name, "project", one.limit, one.delta, one.current_usage, 0)
                for one in infos
            ]
        return ()

    def prepare(self, pending: Sequence[PendingClaim]) -> None:
        """Block the claims that the function refuses together; but none that is charged already."""
        amounts: Counter[str] = Counter()
        for item in pending:
            item.blocked = None
            amounts.update(item.claim.deltas)
        if pending[0].is_limited and (overs := self.check(pending[0].project_id, amounts)):
            pending[0].blocked = exceptions.OverQuota(overs)

    def explain(self, request: ReserveRequest, pending: Sequence[PendingClaim]) -> None:  # noqa: ARG002
        """Raise what the function has refused."""
        for item in pending:
            if item.blocked is not None:
                raise item.blocked from None
