# SPDX-License-Identifier: Apache-2.0
"""The periodic work of the conductor, without Cyborg."""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any
from unittest import mock

from oslo_config import cfg
from oslotest import base

from cyborg_quota import conf as quota_conf
from cyborg_quota.integrations.cyborg.mapping import ResourceMap

LONG_SECONDS = 60.0


class TestUpkeep(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.conf = cfg.ConfigOpts()
        quota_conf.register_opts(self.conf)
        self.conf([])
        self.conf.set_override("reconcile_interval", 0, group="cyborg")
        self.conf.set_override("bind_expire", 3, group="cyborg")
        self.tracker = mock.MagicMock()
        self.upkeep = self.imported().Upkeep(self.conf, self.tracker, ResourceMap.from_conf(self.conf))

    def imported(self) -> Any:
        """The module, which is removed after the test: it imports Cyborg's records, of which this is a stand-in."""
        package = "cyborg_quota.integrations.cyborg"
        sys.modules[f"{package}.arq_records"] = mock.MagicMock()
        self.addCleanup(sys.modules.pop, f"{package}.arq_records")
        self.addCleanup(sys.modules.pop, f"{package}.periodic", None)
        return importlib.import_module(f"{package}.periodic")

    def test_running_binds_are_extended_while_keystone_is_slow(self) -> None:
        """The check of the tree asks Keystone about fifty projects, one after the other."""
        began, release, ended = threading.Event(), threading.Event(), threading.Event()
        self.addCleanup(release.set)

        def ask_keystone(_context: object) -> list[str]:
            began.set()
            release.wait(LONG_SECONDS)
            ended.set()
            return []

        self.tracker.engine.administration.tree_warnings = ask_keystone
        self.upkeep.turn()
        self.assertTrue(began.wait(LONG_SECONDS))
        self.upkeep.turn()
        self.assertEqual((2, False), (self.tracker.extend_running.call_count, ended.is_set()))
