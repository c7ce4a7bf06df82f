# SPDX-License-Identifier: Apache-2.0
"""Objects whose locks and connections a forked child must replace.

A fork copies the state of locks. A lock that was held by another thread of the parent stays locked in the child, where
that thread does not exist. Therefore the child replaces the locks first.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Final

_renewables: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_closables: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def register(renewable: Any, *, closes_before_fork: bool = False) -> None:
    """Give a new object its locks, now and in each child that is forked later. Keeps a weak reference.

    Calls ``renewable.renew_after_fork()``, which replaces locks and drops references to the connections of the parent,
    and must not acquire a lock or do I/O. ``closes_before_fork``: calls its ``close()`` before each fork, because a
    child must not inherit its open files; the next use opens them again.
    """
    renewable.renew_after_fork()
    _renewables.add(renewable)
    if closes_before_fork:
        _closables.add(renewable)


def _close_all() -> None:
    for closable in list(_closables):
        closable.close()


def _renew_all() -> None:
    for renewable in list(_renewables):
        renewable.renew_after_fork()


os.register_at_fork(before=_close_all, after_in_child=_renew_all)
