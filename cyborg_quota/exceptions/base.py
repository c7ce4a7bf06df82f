# SPDX-License-Identifier: Apache-2.0
"""The base classes of the exceptions."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any, Final

MOST_VIOLATIONS: Final = 20
"""The most violations that a message names. A call may have thousands of claims; ``overs`` has all of them."""


def listed(items: Collection[object], most: int) -> str:
    """The first ``most`` items, and the number of the others: "a; b; and 3 more"."""
    texts = [str(item) for item in itertools.islice(items, most)]
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return "; ".join(texts + more)


class QuotaError(Exception):
    """The base class of all exceptions of this package.

    ``next_step``: a sentence about the command that helps, for those who have a command line. ``conflict``: the error
    code of the REST API, which answers 409; empty: it answers otherwise (api/errors.py).
    """

    next_step: str = ""
    conflict: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle an error with its attributes: the constructor cannot be called with the message alone."""
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[QuotaError], args: tuple[Any, ...], data: dict[str, Any]) -> QuotaError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(data)
    return error


class NotFound(QuotaError):
    """What the call names does not exist, or is not visible to the context."""


class InvalidRequest(QuotaError, ValueError):
    """The request is invalid. Repeating it cannot succeed."""
