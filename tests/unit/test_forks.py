# SPDX-License-Identifier: Apache-2.0
"""The state of objects in a forked child, if other threads of the parent were using them."""

from __future__ import annotations

import os
import threading
from typing import Any
from unittest import mock

from oslotest import base

from cyborg_quota.db import socket_watchdog
from cyborg_quota.integrations.cyborg import bind_tracker
from cyborg_quota.limits import cache, keystone_client


def status_of_child(evaluate: Any) -> int:
    """Fork, and let the child evaluate ``does()``; the status is 0 if the result is true."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = 0 if evaluate() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class TestLocks(base.BaseTestCase):
    """Each lock is held by another thread when the process forks."""

    def fork_while_held(self, lock: Any, evaluate: Any) -> int:
        is_held, may_end = threading.Event(), threading.Event()

        def hold() -> None:
            with lock:
                is_held.set()
                may_end.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        is_held.wait()
        try:
            return status_of_child(evaluate)
        finally:
            may_end.set()
            holder.join()

    def test_of_the_bind_tracker(self) -> None:
        """The child must not extend the binds of the parent, nor retry its commits."""
        charger = bind_tracker.BindTracker(mock.Mock(), bind_expire_seconds=60)
        flight = mock.Mock()
        charger._running.add(flight)

        def is_empty() -> bool:
            return not charger._lock.locked() and not charger.arqs()

        self.assertEqual(0, self.fork_while_held(charger._lock, is_empty))
        self.assertEqual({flight.request.arq}, charger.arqs())

    def test_of_the_socket_watchdog(self) -> None:
        watcher = socket_watchdog._Watcher(60.0)
        connection = mock.Mock()
        watcher.begin(connection)

        def is_new() -> bool:
            return not watcher._lock.locked() and not watcher._has_thread and not watcher._connections

        self.assertEqual(0, self.fork_while_held(watcher._lock, is_new))
        self.assertEqual([connection], list(watcher._connections))

    def test_of_the_limit_cache(self) -> None:
        """The child does not wait for the response to a request of the parent's threads."""
        limits = cache.Cache(ttl_seconds=60, stale_seconds=60, timeout_seconds=60)
        self.assertEqual(1, limits.get("kept", lambda: 1))
        limits._begin_request("requested", 0.0)

        def answers() -> bool:
            return limits.get("kept", lambda: 2) == 1 and limits.get("requested", lambda: 3) == 3

        self.assertEqual(0, self.fork_while_held(limits._lock, answers))

    def test_of_the_keystone_client(self) -> None:
        client = keystone_client.KeystoneClient(mock.Mock(), connect=mock.Mock())
        client._adapter = mock.Mock()

        def is_new() -> bool:
            return not client._lock.locked() and client._adapter is None

        self.assertEqual(0, self.fork_while_held(client._lock, is_new))
