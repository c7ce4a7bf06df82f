# SPDX-License-Identifier: Apache-2.0
"""The options of [oslo_limit], and a server that never answers."""

from __future__ import annotations

import socket
import sys
import time
from unittest import mock

import fixtures as fx
from oslotest import base

from cyborg_quota import exceptions, make_engine
from cyborg_quota.limits import sources
from cyborg_quota.limits.sources import keystone_client
from cyborg_quota.limits.sources.keystone import KeystoneLimitDriver
from tests import fixtures, keystones
from tests.keystones import PASSWORD


class TestConfiguration(base.BaseTestCase):
    """Invalid options raise an error when the driver is made, without a request."""

    def test_options_that_are_missing_or_wrong(self) -> None:
        unknown = keystones.settings()
        unknown.set_override("auth_type", "telepathy", group="oslo_limit")
        with_password = f"http://reader:{PASSWORD}@127.0.0.1:5000/v3"
        for conf, words in (
            (fixtures.configuration(limits__driver="keystone"), "[oslo_limit] lacks auth_type: set it to password."),
            (keystones.settings(oslo_limit__auth_url=None), "[oslo_limit] lacks auth_url"),
            (keystones.settings(oslo_limit__endpoint_id=None), "endpoint_id"),
            (
                keystones.settings(oslo_limit__auth_url=with_password),
                "[oslo_limit] auth_url must not contain credentials",
            ),
            (unknown, "auth_type = telepathy"),
        ):
            error = str(self.assertRaises(exceptions.ConfigurationError, make_engine, conf))
            self.assertIn(words, error)
            self.assertNotIn(PASSWORD, error)

    def test_without_the_packages(self) -> None:
        settings = keystones.settings()
        self.useFixture(fx.MockPatch("cyborg_quota.limits.sources.keystone_client"))
        del sources.keystone_client
        with mock.patch.dict(sys.modules, {"cyborg_quota.limits.sources.keystone_client": None}):
            error = self.assertRaises(exceptions.ConfigurationError, KeystoneLimitDriver.from_conf, settings)
        self.assertIn("install cyborg_quota[keystone]", str(error))

    def test_the_time_out_of_oslo_limit_comes_first(self) -> None:
        settings = keystones.settings()
        self.assertEqual(5.0, keystone_client.make_adapter(settings).session.timeout)
        settings.set_override("timeout", 30, group="oslo_limit")
        self.assertEqual(30.0, keystone_client.make_adapter(settings).session.timeout)
        driver = KeystoneLimitDriver.from_conf(settings)
        self.assertEqual(30.0, driver._cache._timeout, "how long others wait for the one who asks")

    def test_options_registered_by_oslo_limit_itself(self) -> None:
        """As in a process that also uses oslo.limit."""
        from oslo_limit import opts

        settings = keystones.settings()
        for group, options in opts.list_opts():
            settings.register_opts([option for option in options if option.dest.startswith("endpoint_")], group=group)
        KeystoneLimitDriver.from_conf(settings)


class TestSilentServer(base.BaseTestCase):
    def test_it_is_an_outage_in_time(self) -> None:
        log = self.useFixture(fx.FakeLogger())
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/v3"
            for auth_type in ("v3password", "password"):
                options = {"oslo_limit__timeout": 0.2, "oslo_limit__auth_type": auth_type}
                driver = KeystoneLimitDriver.from_conf(keystones.settings(oslo_limit__auth_url=url, **options))
                began = time.monotonic()
                error = self.assertRaises(exceptions.LimitsUnavailable, driver.path_of, "p1")
                self.assertLess(time.monotonic() - began, 5.0)
                self.assertIn("does not respond in time", error.reason)
                self.assertNotIn(PASSWORD, str(error) + log.output)
