# SPDX-License-Identifier: Apache-2.0
"""Objects whose locks and connections a forked child must replace.

A fork copies locks as they are. A lock that another thread of the parent held stays locked in the child for ever, for
that thread does not exist there. So the child replaces such locks before it does anything else.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """An object that is usable in a forked child after ``renew_after_fork()``."""

    def renew_after_fork(self) -> None:
        """Replace locks and drop what belongs to the parent. Must acquire no lock, and do no I/O."""


_renewables: weakref.WeakSet[Renewable] = weakref.WeakSet()


def register(renewable: Renewable) -> None:
    """From now on, renew this object in every forked child. It is referenced weakly."""
    _renewables.add(renewable)


def _renew_all() -> None:
    for renewable in list(_renewables):
        renewable.renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
