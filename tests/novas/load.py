# SPDX-License-Identifier: Apache-2.0
"""A user who makes, rebuilds, shelves, unshelves and deletes servers at random, and ignores errors."""

from __future__ import annotations

import collections
import random
import threading
from collections.abc import Callable

from keystoneauth1 import exceptions as ksa_exceptions

from tests.novas.user import User

KEPT = 4
"""The maximum number of servers per user."""
PAUSE_SECONDS = 0.5


class Load:
    """One user, in a thread of its own. ``flavors``: with one device and with two."""

    def __init__(self, user: User, flavors: tuple[str, str], image_id: str, seed: str) -> None:
        self.user = user
        self._flavors = flavors
        self._image_id = image_id
        self._rng = random.Random(seed)
        self.outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
        """{(call, HTTP status or the name of the error): count}"""

    def work(self, stop: threading.Event) -> None:
        """Run until stopped; the call in progress is completed."""
        while not stop.is_set():
            self._try("list", self._act)
            stop.wait(PAUSE_SECONDS)

    def _act(self) -> None:
        servers = self.user.servers()
        choice = self._rng.choices(["create", "delete", "rebuild", "shelve", "unshelve"], [5, 3, 1, 1, 1])[0]
        if not servers or (choice == "create" and len(servers) < KEPT):
            flavor = self._rng.choice(self._flavors)
            self._try("create", lambda: self.user.create_servers(flavor))
            return
        server = self._rng.choice(servers)
        details = {"imageRef": self._image_id} if choice == "rebuild" else None
        if choice in ("create", "delete"):
            self._try("delete", lambda: self.user.call("compute", "DELETE", f"/servers/{server}"))
        else:
            self._try(choice, lambda: self.user.act(server, choice, details))

    def _try(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except ksa_exceptions.HttpError as error:
            self.outcomes[what, str(error.http_status)] += 1
        except ksa_exceptions.ClientException as error:
            self.outcomes[what, type(error).__name__] += 1
        else:
            self.outcomes[what, "accepted"] += what != "list"
