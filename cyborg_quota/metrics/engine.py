# SPDX-License-Identifier: Apache-2.0
"""A QuotaEngine that counts its calls. The engine itself knows nothing of metrics, and costs nothing without them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cyborg_quota import exceptions
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.metrics.setup import recorder
from cyborg_quota.types import Claim
from cyborg_quota.validation import Context

if TYPE_CHECKING:
    from cyborg_quota.driver import DbQuotaDriver

_RESULTS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (exceptions.OverQuota, "over_quota"),
    (exceptions.OverCapacity, "over_capacity"),
    (exceptions.ReservationConflict, "conflict"),
    (exceptions.LimitsUnavailable, "limits_unavailable"),
    (exceptions.LimitNotSet, "limit_not_set"),
    (exceptions.DatabaseError, "database_error"),
    (exceptions.InvalidRequest, "invalid"),
)
_MAPPINGS: Final = (dict, Mapping)  # (dict first: the check of an abstract class takes longer)
GRANTED: Final = "granted"
FAILED: Final = "failed"
"""Any other error."""


def result_of(error: BaseException) -> str:
    """The result of a reserve that raised this error, for the label of the counter."""
    return next((result for kind, result in _RESULTS if isinstance(error, kind)), FAILED)


def _timed(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that also records its duration under its name."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: MeasuredEngine, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(self, *args, **kwargs)
        finally:
            self._recorder.record(name, time.perf_counter() - began)

    return call


class MeasuredEngine(QuotaEngine):
    """Counts each reserve, and records the duration of each call that a request waits for."""

    def __init__(self, driver: DbQuotaDriver, **options: Any) -> None:
        """Raises ConfigurationError if prometheus_client is missing."""
        super().__init__(driver, **options)
        self._recorder = recorder()
        driver.observe_retries(self._recorder.count_retry)

    def reserve_many(self, context: Context, claims: Iterable[Claim], *args: Any, **kwargs: Any) -> list[str]:
        claims = claims if isinstance(claims, list) else list(claims)
        result = GRANTED
        began = time.perf_counter()
        try:
            return super().reserve_many(context, claims, *args, **kwargs)
        except BaseException as error:
            result = result_of(error)
            raise
        finally:
            self._recorder.record("reserve", time.perf_counter() - began, self._resources_of(claims), result)

    def _resources_of(self, claims: list[Claim]) -> Iterable[str]:
        """The registered resources of the claims, which may be invalid. (Others would create series without end.)"""
        return {
            resource
            for claim in claims
            if isinstance(claim, Claim) and isinstance(claim.deltas, _MAPPINGS)
            for resource in claim.deltas
            if resource in self._resources
        }


for _method in (
    QuotaEngine.commit,
    QuotaEngine.rollback,
    QuotaEngine.release,
    QuotaEngine.extend,
    QuotaEngine.resize,
    QuotaEngine.transfer,
    QuotaEngine.adopt,
    QuotaEngine.check,
    QuotaEngine.headroom,
    QuotaEngine.get_usages,
    QuotaEngine.get_detail,
    QuotaEngine.expire,
):
    setattr(MeasuredEngine, _method.__name__, _timed(_method))
