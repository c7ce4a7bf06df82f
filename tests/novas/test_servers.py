# SPDX-License-Identifier: Apache-2.0
"""Servers with accelerators on the real Nova: the charges and releases of each operation."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator

from keystoneauth1 import exceptions as ksa_exceptions

from tests.novas import base
from tests.servers import machine


class TestLimit(base.NovaTestCase):
    def test_one_device_each(self) -> None:
        """Three servers are admitted, the fourth is refused, and one more is admitted after a delete."""
        options = ("--flavor", self.one_device, "--image", self.cloud.image_id, "--nic", "none")
        made = [self.openstack("server", "create", *options, "-f", "json", "server") for _ in range(4)]
        servers = [json.loads(server)["id"] for server in made]
        self.assertEqual(["ACTIVE"] * 3 + ["ERROR"], [self.user.wait(server) for server in servers])
        self.assert_charged(3)
        self.openstack("server", "delete", "--wait", servers[0])
        self.assert_charged(2)
        self.active(self.one_device)
        self.assert_charged(3)

    def test_two_devices_each(self) -> None:
        """All of a server's devices are charged or none, so that a smaller server can use the remaining quota.

        Cyborg's answer contains the sentence of the refusal, but Nova 34 keeps only its status. The conductor's log
        names the server, and the user can read limit and use.
        """
        self.active(self.two_devices)
        [refused] = self.user.create_servers(self.two_devices)
        self.assertEqual("ERROR", self.user.wait(refused))
        self.assert_charged(2)
        fault = json.loads(self.openstack("server", "show", "-f", "json", refused))["fault"]["message"]
        self.assertIn("Invalid response from Cyborg: <Response [403]>", fault)
        first, second = re.findall(r"[0-9a-f-]{36}", fault)
        words = f"project {self.project_id}, resource fpga: limit 3, used 2, reserved 0, requested 2"
        lines = self.cloud.conductor.output().splitlines()
        about = (refused, "are not bound", first, second)
        [named] = [line for line in lines if all(text in line for text in about)]
        [request] = re.findall(r"req-[0-9a-f-]{36}", named)
        self.assertEqual(1, sum(request in line and words in line for line in lines), self.cloud.conductor.tail())
        detail = self.user.call("accelerator", "GET", f"/v2/quotas/{self.project_id}/detail")["quota"]["fpga"]
        held = {"limit": 3, "in_use": 2, "reserved": 0, "fits": 1}
        self.assertEqual({**held, "bound_by": None, "override": None, "in_force": "own"}, detail)
        self.active(self.one_device)
        self.assert_charged(3)


class TestLifecycle(base.NovaTestCase):
    def test_rebuild(self) -> None:
        """A rebuilt server stays on its host and keeps its devices."""
        [server] = self.active(self.two_devices)
        before = set(self.cloud.records.arqs())
        self.user.act(server, "rebuild", {"imageRef": self.cloud.image_id})
        self.assertEqual("ACTIVE", self.user.wait(server))
        self.assert_charged(2)
        self.assertEqual(before, set(self.cloud.records.arqs()))

    def test_shelve_and_unshelve(self) -> None:
        """A shelved server releases its devices; it can be unshelved when the quota allows it."""
        [server] = self.active(self.two_devices)
        self.user.act(server, "shelve")
        self.assertEqual("SHELVED_OFFLOADED", self.user.wait(server))
        self.assert_charged(0)
        others = self.active(self.one_device, 2)
        self.user.act(server, "unshelve")
        self.assertEqual("SHELVED_OFFLOADED", self.user.wait(server))
        self.assert_charged(2)
        self.user.delete(*others)
        self.user.act(server, "unshelve")
        machine.wait_until(lambda: self.user.wait(server) == "ACTIVE", 30.0)
        self.assert_charged(2)

    def test_resize_is_refused_by_nova(self) -> None:
        """Nova resizes and migrates no server with accelerators, on any hypervisor; nothing is charged for the try."""
        [server] = self.active(self.one_device)
        flavors = {flavor["name"]: flavor["id"] for flavor in self.user.call("compute", "GET", "/flavors")["flavors"]}
        for user, action, details in (
            (self.user, "resize", {"flavorRef": flavors[self.two_devices]}),
            (self.cloud.admin, "migrate", None),
        ):
            error = self.assertRaises(ksa_exceptions.ClientException, user.act, server, action, details)
            self.assertIn("not supported with instances that have accelerators", error.response.text)
        self.assertEqual("ACTIVE", self.user.wait(server))
        self.assert_charged(1)


class TestDeadHost(base.NovaTestCase):
    def host_of(self, server: str) -> str:
        return str(self.cloud.admin.show(server)["OS-EXT-SRV-ATTR:host"])

    @contextlib.contextmanager
    def evacuated(self, flavor: str) -> Iterator[str]:
        """A server whose host is dead while the block runs, and which runs on the other host."""
        [server] = self.active(flavor)
        host = self.host_of(server)
        with self.cloud.dead(host):
            self.cloud.admin.act(server, "evacuate", {})
            machine.wait_until(lambda: self.host_of(server) != host, 60.0)
            self.assertEqual("SHUTOFF", self.user.wait(server))  # as of API version 2.95
            yield server

    def test_evacuate(self) -> None:
        """The old devices are released; the new ones are charged to the project whose token Nova used, the admin's.

        So Cyborg hides them from the server's own project, whose delete leaves them bound, and they stay charged.
        """
        with self.evacuated(self.two_devices) as server:
            self.assert_charged(0, of_admin=2)
        self.user.delete(server)
        self.assert_charged(0, of_admin=2)
        path = f"/v2/accelerator_requests?instance={server}"
        self.assertRaises(ksa_exceptions.Forbidden, self.cloud.admin.call, "accelerator", "DELETE", path)
        self.cloud.admin.call("accelerator", "DELETE", path, service_token=self.cloud.services.token)
        self.assert_charged(0)

    def test_evacuated_and_deleted_by_the_admin(self) -> None:
        with self.evacuated(self.one_device) as server:
            self.assert_charged(0, of_admin=1)
            self.cloud.admin.delete(server)
            machine.wait_until(lambda: server not in self.user.servers(), 60.0)
            self.assert_charged(0)

    def test_delete_while_the_host_is_dead(self) -> None:
        [server] = self.active(self.two_devices)
        with self.cloud.dead(self.host_of(server)):
            self.user.delete(server)
            self.assert_charged(0)

    def test_killed_in_the_middle_of_a_spawn(self) -> None:
        """The devices stay bound and charged until the server is deleted."""
        hold = self.cloud.workdir / "hold"
        self.addCleanup(hold.unlink, missing_ok=True)
        hold.touch()
        [server] = self.user.create_servers(self.two_devices)
        reached = self.cloud.workdir / "hold.reached"
        machine.wait_until(reached.exists, 60.0)
        reached.unlink()
        host = self.host_of(server)
        self.cloud.computes[host].kill()
        self.assert_charged(2)
        hold.unlink()
        self.cloud.computes[host].start()
        self.assertEqual("ERROR", self.user.wait(server))
        self.assert_charged(2)
        self.user.delete(server)
        self.assert_charged(0)
