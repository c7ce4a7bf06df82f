# SPDX-License-Identifier: Apache-2.0
"""Records which service uses the name of a source (Claim.source), so that two services with one name are detected.

A service that repairs the charges of its source would release those of another service that has the same name. So each
registers with its identity: a few texts that no other service has, such as the UUIDs of its own records. The first
one owns the name. Another one, which shares no text with the owner, is stored as a rival. As long as there is one,
nobody is the only user of the name.

Eight rows of ``fences`` belong to a name: four of its owner, four of rivals. The generation of a row is the first
31 bits of the SHA-256 of a text of the identity, and zero if the row is vacant. So a service with a thousand texts is
taken for another one with a probability of 2 in a million.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cyborg_quota.db import leases
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.errors import ConcurrentChange

_ROWS: Final = 4
_VACANT: Final = 0


@dataclasses.dataclass(frozen=True)
class Users:
    """The numbers of the texts of a name's owner and of its rivals. Pure."""

    owner: tuple[int, ...] = (_VACANT,) * _ROWS
    rivals: tuple[int, ...] = (_VACANT,) * _ROWS

    def is_only(self, numbers: Sequence[int]) -> bool:
        """Whether the service with these numbers is the only one, or nobody has registered."""
        others = set(self.rivals) - {_VACANT, *numbers}
        return not others and (not any(self.owner) or self._is_owner(numbers))

    def registered(self, numbers: Sequence[int], *, replace: bool = False) -> Users:
        """After a registration: the owner's rows are renewed, because its texts change, or a rival is added.

        ``replace``: it becomes the owner, and all rivals are forgotten. A service without texts changes nothing.
        """
        if not numbers:
            return self
        if replace:
            return Users(_filled((), numbers))
        if self._is_owner(numbers) or not any(self.owner):
            kept = [number if number in numbers else _VACANT for number in self.owner]
            return Users(_filled(kept, numbers), self._without(self.rivals, numbers))
        if set(self.rivals) & set(numbers) or _VACANT not in self.rivals:
            return self
        place = self.rivals.index(_VACANT)
        return Users(self.owner, (*self.rivals[:place], numbers[0], *self.rivals[place + 1 :]))

    def left(self, numbers: Sequence[int]) -> Users:
        """After this service has stopped to use the name."""
        owner = (_VACANT,) * _ROWS if self._is_owner(numbers) else self.owner
        return Users(owner, self._without(self.rivals, numbers))

    def _is_owner(self, numbers: Sequence[int]) -> bool:
        return bool(set(self.owner) & set(numbers))

    @staticmethod
    def _without(stored: Iterable[int], numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(_VACANT if number in numbers else number for number in stored)


def _filled(kept: Sequence[int], numbers: Iterable[int]) -> tuple[int, ...]:
    """``kept`` with its vacant places filled by other ``numbers``."""
    places = [*kept, *[_VACANT] * (_ROWS - len(kept))]
    others = (number for number in numbers if number not in kept)
    return tuple(number or next(others, _VACANT) for number in places)


class SourceUsers:
    """The stored users of each name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, source: str, identity: Sequence[str], *, replace: bool = False, dry_run: bool = False) -> bool:
        """Register a service; returns whether it is the only user of the name. ``dry_run``: writes nothing."""
        numbers = _numbers(identity)
        if dry_run:
            users = self._database.read(lambda connection: _read(connection, source))
            return users.registered(numbers).is_only(numbers)
        users = self._change(source, lambda users: users.registered(numbers, replace=replace))
        return users.is_only(numbers)

    def leave(self, source: str, identity: Sequence[str]) -> bool:
        """Remove a service from the users of a name; returns whether no other one remains."""
        numbers = _numbers(identity)
        return self._change(source, lambda users: users.left(numbers)) == Users()

    def _change(self, source: str, change: Callable[[Users], Users]) -> Users:
        def work(connection: Connection) -> Users:
            users = _read(connection, source)
            changed = change(users)
            pairs = zip(_names(source), (*users.owner, *users.rivals), (*changed.owner, *changed.rivals), strict=True)
            for name, before, after in pairs:
                if before != after and not leases.replace(connection, name, before, after):
                    raise ConcurrentChange
            return changed

        return self._database.write(work)


def _names(source: str) -> list[str]:
    """The names of the rows, which have at most 32 characters."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:20]
    return [f"source:{digest}:{kind}{number}" for kind in ("o", "r") for number in range(_ROWS)]


def _read(connection: Connection, source: str) -> Users:
    numbers = [leases.generation(connection, name) for name in _names(source)]
    return Users(tuple(numbers[:_ROWS]), tuple(numbers[_ROWS:]))


def _numbers(identity: Iterable[str]) -> list[int]:
    digests = (hashlib.sha256(text.encode()).digest() for text in identity)
    return list(dict.fromkeys(int.from_bytes(digest[:4], "big") >> 1 or 1 for digest in digests))
