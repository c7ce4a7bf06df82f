# SPDX-License-Identifier: Apache-2.0
"""The base classes of the exceptions."""

from __future__ import annotations

from typing import Any


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
