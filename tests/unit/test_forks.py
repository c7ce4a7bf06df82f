# SPDX-License-Identifier: Apache-2.0
"""The state of objects in a forked child, if other threads of the parent were using them.

The locks of the package are found in its source, and those of an object in its attributes: a new one is tested too, or
fails the test until its class has a row in OBJECTS.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any
from unittest import mock

from oslotest import base

import cyborg_quota
from cyborg_quota.cyborg import bind_tracker, repair
from cyborg_quota.db.database import Database
from cyborg_quota.db.dialects import postgresql
from cyborg_quota.db.settings import DatabaseSettings
from cyborg_quota.limits.sources import cache, keystone_client
from cyborg_quota.metrics import exporter
from tests import forked

LOCK_TYPES = (type(threading.Lock()), type(threading.RLock()))
PACKAGE = pathlib.Path(cyborg_quota.__file__).parent
OWNER_OR_LOCK = re.compile(
    r"(?m)^(?:class|def) (?P<owner>\w+)|^from (?:threading|queue|concurrent\.futures|functools) import"
    r"|(?<!\w)(?:threading|queue|futures|futurist|functools)\.(?:\w*Lock|Condition|Event|\w*Semaphore|Barrier|Timer|local"
    r"|\w*Queue|ThreadPoolExecutor|cached_property)\b"
)
"""What begins at the left margin; and what has a lock, or belongs to a thread.

(A ``cached_property`` has a lock before Python 3.12.)
"""


def make_cache() -> cache.Cache:
    limits = cache.Cache(ttl_seconds=60, stale_seconds=60, timeout_seconds=60)
    limits._requests.add("requested")
    return limits


def make_guard() -> tuple[Any, Any]:
    """Return the guard of a tracker, which renews it; and the tracker, which must be kept."""
    tracker = bind_tracker.BindTracker(mock.Mock(), bind_expire_seconds=60)
    return tracker.guard, tracker


OBJECTS: dict[str, Callable[[], Any]] = {
    "db.database._Pool": lambda: Database(DatabaseSettings(url="sqlite://"))._pool,
    "db.dialects.postgresql._Watcher": lambda: postgresql._Watcher(60.0),
    "limits.sources.cache.Cache": make_cache,
    "cyborg.ledger_guard.LedgerGuard": make_guard,
    "cyborg.bind_tracker.BindTracker": lambda: bind_tracker.BindTracker(mock.Mock(), bind_expire_seconds=60),
    "cyborg.repair.Repair": lambda: repair.Repair(mock.Mock(), is_healing=True),
    "metrics.exporter.LedgerApplication": lambda: exporter.LedgerApplication(mock.Mock(), []),
}
"""Each class of the package whose objects have locks. (That of a child's only thread has the values of the thread that
forked, as ``threading.local`` keeps them.)"""

THREAD_LOCAL = {"db.database.Deadline"}
"""See test_thread_local_values."""

NOT_SHARED = {
    # Programs that do not fork.
    "cli.expirer.Maintenance",
    "cli.expirer.Expirer",
    "cli.main.Shell",
    # Each call has one of its own.
    "limits.sources.keystone_client._prevent_recursive_authentication",
    "pods.measuring.measure",
}


def lock_owners() -> set[str]:
    """``module.name`` of each class, and of each function of a module, that makes locks."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        owner = ""
        for match in OWNER_OR_LOCK.finditer(re.sub("#.*", "", path.read_text())):
            if match["owner"] is None:
                found.add(".".join((*path.relative_to(PACKAGE).with_suffix("").parts, owner)))
            owner = match["owner"] or owner
    return found


def locks_of(subject: Any) -> dict[str, Any]:
    """Return the locks in the attributes of the object, also those of its events, conditions and semaphores."""
    found = {}
    for name, value in vars(subject).items():
        for index, part in enumerate(value.values() if isinstance(value, dict) else [value]):
            inner = getattr(part, "_cond", part)  # of an event or a semaphore
            lock = inner._lock if isinstance(inner, threading.Condition) else inner  # type: ignore[attr-defined]
            if isinstance(lock, LOCK_TYPES):
                found[f"{name} {index}"] = lock
    return found


class TestEveryLock(base.BaseTestCase):
    def test_every_class_has_a_row(self) -> None:
        self.assertEqual(OBJECTS.keys() | THREAD_LOCAL | NOT_SHARED, lock_owners())

    def test_every_lock_is_free_in_a_child(self) -> None:
        """Another thread holds all locks of the object when the process forks."""
        for name, make in OBJECTS.items():
            made = make()
            subject = made[0] if isinstance(made, tuple) else made
            locks = locks_of(subject)
            self.assertNotEqual({}, locks, name)
            with contextlib.ExitStack() as stack:
                for lock in locks.values():
                    stack.enter_context(held_elsewhere(lock))
                self.assertTrue(is_true_in_child(lambda of=subject: are_free(of)), name)  # type: ignore[misc]
                self.assertFalse(are_free(subject), name)

    def test_thread_local_values(self) -> None:
        """A child has the values of the thread that forked, which continues there, and of no other."""
        database = Database(DatabaseSettings(url="sqlite://"))
        with held_elsewhere(database.deadline):
            self.assertTrue(is_true_in_child(lambda: database.deadline.began is None))
        with database.deadline:
            self.assertTrue(is_true_in_child(lambda: database.deadline.began is not None))


def are_free(subject: Any) -> bool:
    return all(lock.acquire(blocking=False) for lock in locks_of(subject).values())


@contextlib.contextmanager
def held_elsewhere(lock: Any) -> Iterator[None]:
    """Another thread has entered ``lock`` while the block runs."""
    with futures.ThreadPoolExecutor(1) as aside:
        aside.submit(lock.__enter__).result()
        try:
            yield
        finally:
            aside.submit(lock.__exit__, None, None, None).result()


def is_true_in_child(evaluate: Callable[[], Any]) -> bool:
    """Fork, and let the child evaluate. (A child that waits for ever is killed.)"""

    def check() -> None:
        assert evaluate()

    return forked.wait(forked.start(check), 10) == 0


class TestState(base.BaseTestCase):
    """What an object has in a child, if another thread holds its lock when the process forks."""

    def test_of_the_bind_tracker(self) -> None:
        """The child must not extend the binds of the parent, and finds out itself whether the ledger answers."""
        charger = bind_tracker.BindTracker(mock.Mock(**{"ping.return_value": False}), bind_expire_seconds=60)
        flight = mock.Mock()
        charger.running.add(flight)
        charger.guard.reaches()

        def is_new() -> bool:
            return not charger.running and not charger.guard.is_open and charger.release("a1", "p1")

        with held_elsewhere(charger.guard._lock):
            self.assertTrue(is_true_in_child(is_new))
        self.assertEqual(({flight}, True), (charger.running, charger.guard.is_open))

    def test_of_the_socket_watchdog(self) -> None:
        watcher = postgresql._Watcher(60.0)
        connection = mock.Mock()
        watcher.begin(connection, mock.Mock(info={}))

        def is_new() -> bool:
            return not watcher._lock.locked() and not watcher._has_thread and not watcher._connections

        with held_elsewhere(watcher._lock):
            self.assertTrue(is_true_in_child(is_new))
        self.assertEqual([connection], list(watcher._connections))

    def test_of_the_limit_cache(self) -> None:
        """The child does not wait for the response to a request of the parent's threads."""
        limits = make_cache()
        self.assertEqual(1, limits.get("kept", lambda: 1))

        def answers() -> bool:
            return limits.get("kept", lambda: 2) == 1 and limits.get("requested", lambda: 3) == 3

        with held_elsewhere(limits._answered):
            self.assertTrue(is_true_in_child(answers))

    def test_of_the_keystone_client(self) -> None:
        client = keystone_client.KeystoneClient(mock.Mock(), connect=mock.Mock())
        client._adapter = mock.Mock()
        self.assertTrue(is_true_in_child(lambda: client._adapter is None))
