# SPDX-License-Identifier: Apache-2.0
"""CERN's rules with the enforcement model overbooking."""

import tempfile

from oslo_config import cfg

import cyborg_quota
from cyborg_quota.cli.db import open_database
from cyborg_quota.db import schema
from cyborg_quota.limits import testing


class TestOverbooking(testing.NestedQuotaRules):
    def make_ledger(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        conf = cfg.ConfigOpts()
        cyborg_quota.conf.register_opts(conf)
        conf([], default_config_files=[])
        conf.set_override("connection", f"sqlite:///{directory.name}/quota.sqlite", "database")
        conf.set_override("driver", "database", "limits")
        conf.set_override("enforcement_model", "overbooking", "limits")
        with open_database(conf, verified=False) as database:
            schema.sync(database)
        engine = cyborg_quota.make_engine(conf)
        self.addCleanup(engine.close)
        return engine

    def test_1_the_children_of_atlas_cannot_get_more(self):
        self.set_limit("physics", 130)
        self.assert_not_allowed("operations", 71)

    def test_3_the_children_of_operations_cannot_get_more(self):
        self.set_limit("workflow", 110)
        self.assert_not_allowed("web", 31)

    def test_4_operations_cannot_get_less_than_its_children(self):
        self.set_limit("operations", 35)
        self.assert_not_allowed("operations", 34)
