# SPDX-License-Identifier: Apache-2.0
"""The private message bus: it listens on loopback only, without a helper process, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import pathlib

from oslotest import base

from tests import needs
from tests.servers import machine
from tests.servers.rabbitmq import RabbitMQ

LISTENING = "0A"
LOOPBACK = "0100007F"


def listening_addresses(pid: int) -> list[str]:
    """Return the local addresses, in hexadecimal, on which a process listens."""
    sockets = set()
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(descriptor))
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                found.append(fields[1].partition(":")[0])
    return found


class TestRabbitMQ(base.BaseTestCase):
    def test_on_loopback_only_and_removed(self) -> None:
        bus = RabbitMQ()
        needs.start(self, bus)
        self.assertEqual([LOOPBACK] * 2, listening_addresses(bus.pid), "for AMQP, and for other nodes")
        children = machine.descendants(bus.pid)
        names = [pathlib.Path(f"/proc/{pid}/comm").read_text().strip() for pid in children]
        self.assertEqual([], [name for name in names if name == "epmd"])
        directory, pid = bus.directory, bus.pid
        bus.close()
        assert directory is not None
        self.assertFalse(directory.exists())
        self.assertEqual([], [process for process in [pid, *children] if machine.alive(process)])
