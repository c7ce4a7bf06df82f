# SPDX-License-Identifier: Apache-2.0
"""The CADF events of limit changes, over a real transport of oslo.messaging, and without a message bus."""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any
from unittest import mock

import fixtures as fx
import oslo_messaging
from oslo_config import cfg
from oslo_messaging.notify import _impl_test
from oslotest import base
from pycadf import cadftaxonomy

from cyborg_quota import exceptions, factory, validation
from cyborg_quota.limits import cadf
from cyborg_quota.types import Author, RecordedChange, RecordedChanges
from tests import fixtures

AUTHOR = Author("os:alice", "operators", "req-1", "workshop")


class TestEvents(base.BaseTestCase):
    def test_each_kind(self) -> None:
        changes = [
            RecordedChange("set limit", "p", "gpu", None, 5),
            RecordedChange("set limit", None, "gpu", 5, -1),
            RecordedChange("unset limit", "p", "gpu", 5, None),
            RecordedChange("set minimum", "p", "gpu", 0, 5),
            RecordedChange("set budget", "p", "gpu", None, {"hours": 5}),
            RecordedChange("set budget", "p", "gpu", {"hours": 5}, {"hours": 6}),
            RecordedChange("adjust budget", "p", "gpu", None, {"hours": 1}),
            RecordedChange("delete budget", "p", "gpu", {"hours": 6}, None),
            RecordedChange("add project", "p", None, None, "parent"),
            RecordedChange("move project", "p", None, "parent", None),
            RecordedChange("remove project", "p", None, None, None),
        ]
        found = list(cadf.events(RecordedChanges(7, AUTHOR, None, changes)))
        self.assertEqual(
            [
                ("cyborg_quota.limit.created", "create", "p"),
                ("cyborg_quota.limit.updated", "update", "default"),
                ("cyborg_quota.limit.deleted", "delete", "p"),
                ("cyborg_quota.minimum.updated", "update", "p"),
                ("cyborg_quota.budget.created", "create", "p"),
                ("cyborg_quota.budget.updated", "update", "p"),
                ("cyborg_quota.budget.updated", "update", "p"),
                ("cyborg_quota.budget.deleted", "delete", "p"),
                ("cyborg_quota.project.created", "create", "p"),
                ("cyborg_quota.project.updated", "update", "p"),
                ("cyborg_quota.project.deleted", "delete", "p"),
            ],
            [(kind, payload["action"], payload["target"]["id"]) for kind, payload in found],
        )
        for _, payload in found:
            self.assertTrue(cadftaxonomy.is_valid_action(payload["action"]))
            for part in ("target", "initiator", "observer"):
                self.assertTrue(cadftaxonomy.is_valid_resource(payload[part]["typeURI"]), payload[part])
        payload = found[0][1]
        self.assertEqual(("os:alice", "success"), (payload["initiator"]["id"], payload["outcome"]))
        (attachment,) = payload["attachments"]
        self.assertEqual(
            {
                "operation": None, "project_id": "p", "resource": "gpu", "before": None, "after": 5,
                "generation": 7, "reason": "workshop", "initiator_project_id": "operators", "request_id": "req-1",
            },
            attachment["content"],
        )  # fmt: skip

    def test_every_action(self) -> None:
        """Each action that the history records has an event, except those of capacity and of pods."""
        top = pathlib.Path(cadf.__file__).parents[1]
        action = r'"((?:set|unset|add|move|remove|cancel|adjust|delete) (?!pod|provider|inventory|used)[a-z]+)"'
        texts = [path.read_text() for path in top.rglob("*.py") if path.name != "cadf.py"]
        found = {name for text in texts for name in re.findall(action, text)}
        self.assertEqual(set(cadf._VERBS), found)


class TestSending(base.BaseTestCase):
    def make_conf(self, transport: str = "fake://", driver: str = "test", **options: object) -> cfg.ConfigOpts:
        """A configuration with an empty ledger."""
        url = f"sqlite:///{self.useFixture(fx.TempDir()).path}/ledger.sqlite"
        fixtures.create_schema(url)
        defaults = {"notices__notifications": True, "database__connection": url, "limits__driver": "database"}
        conf = fixtures.configuration(**{**defaults, **options})
        oslo_messaging.get_notification_transport(conf)  # registers its options
        conf.set_override("driver", [driver], "oslo_messaging_notifications")
        conf.set_override("transport_url", transport, "oslo_messaging_notifications")
        _impl_test.reset()
        return conf

    def limits(self, conf: cfg.ConfigOpts) -> Any:
        engine = factory.make_engine(conf)
        self.addCleanup(engine.close)
        return engine.limits

    @staticmethod
    def sent() -> list[dict[str, Any]]:
        return [message for _, message, *_ in _impl_test.NOTIFICATIONS]

    def test_a_change_is_sent_after_its_commit(self) -> None:
        admin = self.limits(self.make_conf())
        admin.set_limit(validation.admin_context("os:alice"), "gpu", 5, reason="opening")
        (message,) = self.sent()
        reason = message["payload"]["attachments"][0]["content"]["reason"]
        expected = ("INFO", "cyborg_quota.limit.created", "opening")
        self.assertEqual(expected, (message["priority"], message["event_type"], reason))
        admin.set_limit(validation.admin_context(), "gpu", 5)  # no change
        self.assertEqual(1, len(self.sent()))
        silent = self.limits(self.make_conf(notices__notifications=False))
        silent.set_limit(validation.admin_context(), "gpu", 5)
        self.assertEqual([], self.sent())

    def test_without_a_message_bus_the_change_is_made(self) -> None:
        """The transport refuses the connection. The call returns, and a line in the log has no password."""
        log = self.useFixture(fx.FakeLogger())
        conf = self.make_conf("rabbit://guest:s3cret@127.0.0.1:1/", "messagingv2")
        admin = self.limits(conf)
        admin.set_limit(validation.admin_context(), "gpu", 5)
        self.assertEqual(5, admin.list_limits(validation.admin_context())[0].limit)
        self.assertIn("changed: set limit", log.output)
        self.assertNotIn("s3cret", log.output)

    def test_without_pycadf(self) -> None:
        conf = self.make_conf()
        with mock.patch.dict(sys.modules, {"pycadf": None}):
            self.assertRaisesRegex(exceptions.ConfigurationError, "needs pycadf", factory.make_engine, conf)
