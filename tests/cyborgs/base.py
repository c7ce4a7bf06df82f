# SPDX-License-Identifier: Apache-2.0
"""The base class of the tests of the real Cyborg."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import ClassVar

from oslotest import base

from tests.cyborgs import environment
from tests.cyborgs import stack as stacks
from tests.cyborgs.client import Client
from tests.servers import sharing


class StackTestCase(base.BaseTestCase):
    """``stack`` is shared by the tests of a process, and has no ARQs; ``rp`` is the first host's device (16 handles).

    A class sets its differences from an unmodified Cyborg in ``conductor``, ``api`` and ``config``; ``version`` is
    Cyborg's.
    """

    conductor: ClassVar[Sequence[str]] = stacks.CONDUCTOR
    api: ClassVar[str] = stacks.API
    config: ClassVar[str] = ""
    hosts: ClassVar[int] = 1
    version: ClassVar[str] = environment.VERSIONS[0]

    def setUp(self) -> None:
        super().setUp()
        services = (self.conductor, self.api, self.config, self.hosts, self.version)
        self.stack = sharing.need(self, "Cyborg", stacks.running, *services)
        self.records = self.stack.records
        self.rps = self.stack.rps
        self.rp = self.rps[0]
        self.admin = self.new_client("admin", "member", "reader")
        self.client = self.new_client("member", "reader")
        self.profile = self.new_profile({"resources:FPGA": "1"})

    def new_client(self, *roles: str) -> Client:
        """A user with these roles in a new project."""
        return self.stack.client(new_id(), *roles)

    def new_profile(self, *groups: dict[str, str]) -> str:
        """Create a device profile of these groups, with a unique name."""
        name = f"profile-{new_id()}"
        self.assertEqual(201, self.admin.create_profile(name, *groups).status)
        return name

    def bind(self, arqs: Sequence[str], client: Client | None = None) -> str:
        """Bind these to a new instance on the first host, successfully; returns the instance."""
        instance = str(uuid.uuid4())
        self.assertEqual((202, None), (client or self.client).bind(arqs, instance, self.rp))
        return instance

    def refused(self, arqs: Sequence[str], status: int = 403, client: Client | None = None) -> str:
        """Bind these to a new instance on the first host, which fails with this status; returns the message."""
        answer = (client or self.client).bind(arqs, str(uuid.uuid4()), self.rp)
        self.assertEqual(status, answer.status, answer)
        return answer.message


def new_id() -> str:
    """A UUID in Keystone's format, which Cyborg requires for a project."""
    return uuid.uuid4().hex
