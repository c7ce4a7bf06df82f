# SPDX-License-Identifier: Apache-2.0
"""How the exporter calls the ledger: directly, or through the circuit breaker of a Cyborg process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class LedgerCalls(Protocol):
    """Both methods call the function and return its result, or raise a QuotaError instead of calling it."""

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function whose waits for the database have timeouts."""
        ...

    def call_untimed(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function that may wait for the database without a timeout."""
        ...


class DirectCalls:
    """Calls the ledger without a circuit breaker."""

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        return function(*args, **options)

    def call_untimed(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        return function(*args, **options)
