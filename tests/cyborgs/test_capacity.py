# SPDX-License-Identifier: Apache-2.0
"""Capacity with the real Placement and Cyborg: imports, what is used elsewhere, and binds that claim capacity."""

from __future__ import annotations

import dataclasses
import json
import uuid
from typing import Any

from keystoneauth1 import noauth, session
from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.capacity.imports import plan, sources
from cyborg_quota.capacity.imports.changes import CapacityImporter, Change
from cyborg_quota.conf import loading, resource_rules
from tests import base as ledger_base
from tests import doc_examples
from tests.cyborgs import client, quota
from tests.cyborgs import stack as stacks
from tests.servers import sharing

ADMIN = ledger_base.ADMIN
PLACEMENT = """\
claim_capacity = true
reconcile_grace = 0
[placement]
auth_type = admin_token
token = admin
endpoint = {url}
endpoint_override = {url}
"""
HEADERS = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.36"}
HANDLES = 16


class CapacityTestCase(quota.QuotaTestCase):
    """Two hosts with a device of 16 units each; the conductor claims capacity."""

    hosts = 2

    @property
    def options(self) -> str:  # type: ignore[override]
        stack = sharing.need(self, "Cyborg", stacks.of_this_process, self.version)
        return PLACEMENT.format(url=stack.placement_url)

    def changes(self, *, nested: bool = False, text: str | None = None) -> list[Any]:
        """Import from Placement. ``text``: another configuration file."""
        path = self.conf_file.with_suffix(".other")
        self.addCleanup(path.unlink, missing_ok=True)
        path.write_text(text or self.conf_file.read_text())
        conf = loading.load(cfg.ConfigOpts(), ["--config-file", str(path)])
        changes = plan.run(conf, self.engine.capacity, self.engine.resources, ADMIN, "placement", nested=nested)
        return [dataclasses.astuple(change) for change in changes]

    def inventory(self, provider: str) -> tuple[int, int, int, int]:
        [record] = [one for one in self.engine.capacity.list_inventories(ADMIN, provider) if one.resource == "fpga"]
        return record.total, record.used, record.used_elsewhere, record.free

    def allocate(self, consumer: str, rp: str, amount: int) -> None:
        """Allocate in Placement, as Nova's scheduler does."""
        self.addCleanup(self.deallocate, consumer)
        holder = {"project_id": self.project_id, "user_id": "nova", "consumer_generation": None}
        body = {"allocations": {rp: {"resources": {"FPGA": amount}}}, **holder}
        answer = client.call(self.stack.placement_url, "PUT", f"/allocations/{consumer}", body, HEADERS)
        self.assertEqual(204, answer.status, answer)

    def deallocate(self, consumer: str) -> None:
        client.call(self.stack.placement_url, "DELETE", f"/allocations/{consumer}", None, HEADERS)


class TestImport(CapacityTestCase):
    def test_hosts_devices_and_a_repeat(self) -> None:
        """The devices of each host, with the resources that the rules give for their class and trait.

        Nothing is counted twice: what is nested now has a total of 0 at the host, and the other way round.
        """
        expected = [
            change
            for host in self.stack.hosts
            for change in (
                ("add provider", host, None, None, host),
                ("set inventory", host, "fpga", None, HANDLES),
                ("set inventory", host, "fpga.fake", None, HANDLES),
            )
        ]
        [shown] = doc_examples.commands_of(__name__)
        words = shown.command.split()[1:]
        ended = self.command(*words)
        self.assertEqual((0, ""), (ended.status, ended.err))
        self.assertLessEqual({*shown.output.splitlines()}, {*ended.out.splitlines()})
        ended = self.command(*words, "-f", "json")
        self.assertEqual((0, ""), (ended.status, ended.err))
        self.assertEqual(expected, [tuple(row.values()) for row in json.loads(ended.out)])
        self.assertEqual([], self.engine.capacity.list_providers(ADMIN))
        self.assertEqual([expected, []], [self.changes(), self.changes()])
        self.assertEqual(self.stack.hosts, [one.name for one in self.engine.capacity.list_providers(ADMIN)])
        self.changes(nested=True)
        self.assertEqual([], self.changes(nested=True))
        device = next(one for one in self.engine.capacity.list_providers(ADMIN) if one.uuid == self.rp)
        self.assertEqual("fake-host-0", device.parent)
        self.assertEqual([0, HANDLES], [self.inventory(one)[0] for one in ("fake-host-0", self.rp)])
        self.changes()
        self.assertEqual([HANDLES, 0], [self.inventory(one)[0] for one in ("fake-host-0", self.rp)])

    def test_claims_and_use_elsewhere(self) -> None:
        """What others hold in Placement reduces what is free; the use of our own claims is counted once."""
        self.changes()
        arqs = self.client.created(self.profile, 2)
        instance = str(uuid.uuid4())
        self.allocate(instance, self.rp, 2)
        self.assertEqual((202, None), self.client.bind(arqs, instance, self.rp))
        self.assertEqual((HANDLES, 2, 0, 14), self.inventory("fake-host-0"))
        # The profile does not require the trait, so that the bind was not charged as fpga.fake. But these are in use.
        self.assertEqual([("set used elsewhere", "fake-host-0", "fpga.fake", 0, 2)], self.changes())
        other = str(uuid.uuid4())
        self.allocate(other, self.rp, 13)
        self.assertEqual([(0, 13), (2, 15)], [change[-2:] for change in self.changes()])
        self.assertEqual((HANDLES, 2, 13, 1), self.inventory("fake-host-0"))

        arqs = self.client.created(self.profile, 2)
        self.assertEqual("The provider of the accelerator has no capacity left for it.", self.refused(arqs))
        self.bind(arqs[:1])
        self.assertEqual((HANDLES, 3, 13, 0), self.inventory("fake-host-0"))
        self.deallocate(other)
        self.changes()
        self.bind(arqs[1:])
        self.assertEqual(204, self.client.delete_instance(instance).status)
        self.assertEqual((HANDLES, 2, 0, 14), self.inventory("fake-host-0"))
        self.assertEqual([], self.engine.audit(ADMIN))
        self.assert_agree()

    def test_a_device_that_is_not_imported(self) -> None:
        """It is charged to the quota only, and counts as used elsewhere after the next import."""
        [arq] = self.client.created(self.profile)
        instance = str(uuid.uuid4())
        self.allocate(instance, self.rp, 1)
        self.assertEqual((202, None), self.client.bind([arq], instance, self.rp))
        self.stack.conductor.wait_for("the bind claims no capacity")
        self.changes()
        self.assertEqual((HANDLES, 0, 1, 15), self.inventory("fake-host-0"))
        self.assert_agree()

    def test_errors(self) -> None:
        text = self.conf_file.read_text()
        for wrong, reason in (
            (text.replace(self.stack.placement_url, "http://127.0.0.1:1"), "cannot be reached"),
            (text.replace("token = admin", "token = wrong"), "not permitted"),
            (text[: text.index("[placement]")], r"\[placement\] lacks auth_type"),
            (text.replace("http://", "http://u:hunter2@"), "must not contain credentials"),
        ):
            error = self.assertRaises(exceptions.QuotaError, self.changes, text=wrong)
            self.assertRegex(str(error), reason)
            self.assertNotIn("hunter2", str(error))
        self.assertEqual([], self.engine.capacity.list_providers(ADMIN))


class TestCyborg(CapacityTestCase):
    def read(self) -> list[sources.SourceProvider]:
        headers = {"X-Identity-Status": "Confirmed", "X-Project-Id": "p", "X-User-Id": "u", "X-Roles": "admin"}
        cyborgs = session.Session(noauth.NoAuth(), additional_headers=headers)
        endpoint = f"{self.stack.api_url}/v2"
        return sources.read_cyborg(
            sources.ServiceApi.from_session(cyborgs, sources.ACCELERATOR, endpoint_override=endpoint)
        )

    def run_import(self, *, nested: bool = False) -> list[Change]:
        rules = [resource_rules.parse_rule(text) for text in ("FPGA: fpga", "FPGA CUSTOM_FAKE_DEVICE: fpga.fake")]
        resource_map = resource_rules.ResourceMap(rules, ["fpga", "fpga.fake"], refuses_unmapped=True)
        importer = CapacityImporter(self.engine.capacity, ADMIN, self.engine.resources)
        return importer.run(lambda: plan.wanted_providers(self.read(), resource_map, nested=nested))

    def test_as_from_placement(self) -> None:
        """Cyborg's API and Placement give the same inventories, so that an import from the other changes nothing."""
        self.assertEqual(3 * len(self.stack.hosts), len(self.run_import()))
        self.assertEqual([], self.run_import())
        self.assertEqual([], self.changes())
        self.assertEqual(["set inventory"], sorted({one[0] for one in self.changes(nested=True)} - {"add provider"}))
        self.assertEqual([], self.run_import(nested=True))
        self.assertEqual((HANDLES, 0, 0, HANDLES), self.inventory(self.rp))
