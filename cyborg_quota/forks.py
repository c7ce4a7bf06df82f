# SPDX-License-Identifier: Apache-2.0
"""Objects whose locks and connections a forked child must replace.

A fork copies the state of locks. A lock that was held by another thread of the parent stays locked in the child, where
that thread does not exist. Therefore the child replaces the locks first.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Renewable(Protocol):
    """An object that is usable in a forked child after ``renew_after_fork()``."""

    def renew_after_fork(self) -> None:
        """Replace locks and drop references to the connections of the parent. Must not acquire a lock or do I/O."""


class Closable(Protocol):
    """An object whose files a child must not inherit open."""

    def close(self) -> None:
        """Close the files; the next use opens them again."""


_renewables: Final[weakref.WeakSet[Renewable]] = weakref.WeakSet()
_closables: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()


def register(renewable: Renewable) -> None:
    """Give a new object its locks, now and in each child that is forked later. Keeps a weak reference."""
    renewable.renew_after_fork()
    _renewables.add(renewable)


def close_before(closable: Closable) -> None:
    """Close this object before each fork. Keeps a weak reference."""
    _closables.add(closable)


def _close_all() -> None:
    for closable in list(_closables):
        closable.close()


def _renew_all() -> None:
    for renewable in list(_renewables):
        renewable.renew_after_fork()


os.register_at_fork(before=_close_all, after_in_child=_renew_all)
