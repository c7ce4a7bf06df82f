# SPDX-License-Identifier: Apache-2.0
"""A QuotaEngine that counts its calls, and the counters of a process, which prometheus_client keeps.

The engine itself knows nothing of metrics, and costs nothing without them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import prometheus_client

from cyborg_quota import exceptions, forks
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
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds: a call usually takes 1 to 10 ms; [quota] retry_seconds bounds it at 6 s."""
_MAPPINGS: Final = (dict, Mapping)  # (dict first: the check of an abstract class takes longer)
GRANTED: Final = "granted"
FAILED: Final = "failed"
"""Any other error."""


class Recorder:
    """Counts calls. ``registry`` has the values. ``retries``: of transactions, by reason. ``durations``: by call."""

    def __init__(self) -> None:
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Start at 0 in a child, which has not made its parent's calls, nor can wait for the locks of its threads."""
        self.registry = prometheus_client.CollectorRegistry()
        self._reserves = prometheus_client.Counter(
            "cyborg_quota_reserves",
            "Reserves, by resource and result. A reserve of two resources counts once for each.",
            ["resource", "result"],
            registry=self.registry,
        )
        self.retries = prometheus_client.Counter(
            "cyborg_quota_retries",
            "Retries of transactions, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.durations = prometheus_client.Histogram(
            "cyborg_quota_call_duration_seconds",
            "Duration of the calls of the engine.",
            ["call"],
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def count_reserve(self, resources: Iterable[str], result: str) -> None:
        """Count a reserve, once for each of its resources."""
        for resource in resources:
            self._reserves.labels(resource, result).inc()


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
            self._recorder.durations.labels(name).observe(time.perf_counter() - began)

    return call


class MeasuredEngine(QuotaEngine):
    """Counts each reserve, and records the duration of each call that a request waits for."""

    def __init__(self, driver: DbQuotaDriver, **options: Any) -> None:
        """Raises ConfigurationError if prometheus_client is missing."""
        super().__init__(driver, **options)
        self._recorder = recorder()
        driver.database.observe_retries(lambda reason: self._recorder.retries.labels(reason).inc())

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
            self._recorder.durations.labels("reserve").observe(time.perf_counter() - began)
            # The claims may be invalid. (Resources that are not registered would create series without end.)
            resources = {
                resource
                for claim in claims
                if isinstance(claim, Claim) and isinstance(claim.deltas, _MAPPINGS)
                for resource in claim.deltas
                if resource in self._resources
            }
            self._recorder.count_reserve(resources, result)


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
