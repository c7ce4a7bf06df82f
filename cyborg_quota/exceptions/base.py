# SPDX-License-Identifier: Apache-2.0
"""The base classes of the exceptions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

MOST_VIOLATIONS: Final = 20
"""The most violations that a message names. A call may have thousands of claims; ``overs`` has all of them."""


def listed(items: Iterable[object], most: int) -> str:
    """The first ``most`` items, and the number of the others: "a; b; and 3 more"."""
    texts = [str(item) for item in items]
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return "; ".join([*texts[:most], *more])


class QuotaError(Exception):
    """The base class of all exceptions of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle an error with its attributes: the constructor cannot be called with the message alone."""
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[QuotaError], args: tuple[Any, ...], data: dict[str, Any]) -> QuotaError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(data)
    return error


class InvalidRequest(QuotaError, ValueError):
    """The request is invalid. Repeating it cannot succeed."""
