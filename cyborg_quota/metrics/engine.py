# SPDX-License-Identifier: Apache-2.0
"""A QuotaEngine that counts its calls. The engine itself knows nothing of metrics, and costs nothing without them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast

from cyborg_quota import exceptions
from cyborg_quota.engine import Expire, QuotaEngine
from cyborg_quota.metrics.recorder import Recorder, recorder
from cyborg_quota.types import Claim
from cyborg_quota.validation import Context

F = TypeVar("F", bound=Callable[..., Any])

_RESULTS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (exceptions.OverQuota, "over_quota"),
    (exceptions.OverCapacity, "over_capacity"),
    (exceptions.TooManyOpenReservations, "too_many_open"),
    (exceptions.ReservationConflict, "conflict"),
    (exceptions.LimitsUnavailable, "limits_unavailable"),
    (exceptions.LimitNotSet, "limit_not_set"),
    (exceptions.DatabaseError, "database_error"),
    (exceptions.InvalidRequest, "invalid"),
)
GRANTED: Final = "granted"
FAILED: Final = "failed"
"""Any other error."""


def result_of(error: BaseException) -> str:
    """The result of a reserve that raised this error, for the label of the counter."""
    return next((result for kind, result in _RESULTS if isinstance(error, kind)), FAILED)


def _timed(method: F) -> F:
    """A method that also records its duration under its name."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: MeasuredEngine, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(self, *args, **kwargs)
        finally:
            self.recorder.observe_call(name, time.perf_counter() - began)

    return cast(F, call)


class MeasuredEngine(QuotaEngine):
    """Counts each reserve, and records the duration of each call that a request waits for."""

    @property  # (A cached_property has a lock before Python 3.12, which a forked child could inherit locked.)
    def recorder(self) -> Recorder:
        """The recorder of this process."""
        return recorder()

    def reserve_many(
        self,
        context: Context,
        claims: Iterable[Claim],
        expire: Expire = None,
        project_id: str | None = None,
        *,
        group: str | None = None,
    ) -> list[str]:
        claims = claims if isinstance(claims, list) else list(claims)
        result = FAILED
        began = time.perf_counter()
        try:
            uuids = super().reserve_many(context, claims, expire, project_id, group=group)
            result = GRANTED
            return uuids
        except exceptions.QuotaError as error:
            result = result_of(error)
            raise
        finally:
            self.recorder.observe_call("reserve", time.perf_counter() - began)
            self.recorder.count_reserve(self._resources_of(claims), result)

    def _resources_of(self, claims: list[Claim]) -> Iterable[str]:
        """The registered resources of the claims, which may be invalid. (Others would create series without end.)"""
        if len(claims) == 1 and _is_claim(claims[0]):
            return [resource for resource in claims[0].deltas if resource in self._resources]
        named = (claim.deltas for claim in claims if _is_claim(claim))
        return {resource for deltas in named for resource in deltas if resource in self._resources}

    commit = _timed(QuotaEngine.commit)
    rollback = _timed(QuotaEngine.rollback)
    release = _timed(QuotaEngine.release)
    extend = _timed(QuotaEngine.extend)
    resize = _timed(QuotaEngine.resize)
    transfer = _timed(QuotaEngine.transfer)
    adopt = _timed(QuotaEngine.adopt)
    check = _timed(QuotaEngine.check)
    headroom = _timed(QuotaEngine.headroom)
    get_usages = _timed(QuotaEngine.get_usages)
    get_detail = _timed(QuotaEngine.get_detail)
    expire = _timed(QuotaEngine.expire)


def _is_claim(claim: Any) -> bool:
    """Whether the claim has the form of one."""
    return isinstance(claim, Claim) and isinstance(claim.deltas, dict | Mapping)
