# SPDX-License-Identifier: Apache-2.0
"""The options of [oslo_limit], and real sockets: a closed port, and a server that never answers."""

from __future__ import annotations

import socket
import sys
import time
from typing import Any
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

    def refused(self, **options: Any) -> str:
        settings = keystones.settings(**options)
        return str(self.assertRaises(exceptions.ConfigurationError, make_engine, settings))

    def test_it_is_found_by_its_name(self) -> None:
        engine = make_engine(keystones.settings())
        self.assertIsInstance(engine._driver.limit_driver, KeystoneLimitDriver)

    def test_an_untouched_configuration(self) -> None:
        made = fixtures.configuration(limits__driver="keystone")
        error = self.assertRaises(exceptions.ConfigurationError, make_engine, made)
        self.assertEqual("[oslo_limit] lacks auth_type: set it to password.", str(error))

    def test_missing_options(self) -> None:
        self.assertIn("[oslo_limit] lacks auth_url", self.refused(oslo_limit__auth_url=None))
        self.assertIn("endpoint_id", self.refused(oslo_limit__endpoint_id=None))

    def test_a_password_in_the_url(self) -> None:
        output = self.refused(oslo_limit__auth_url=f"http://reader:{PASSWORD}@127.0.0.1:5000/v3")
        self.assertIn("[oslo_limit] auth_url must not contain credentials", output)
        self.assertNotIn(PASSWORD, output)

    def test_an_unknown_plugin(self) -> None:
        settings = keystones.settings()
        settings.set_override("auth_type", "telepathy", group="oslo_limit")
        error = self.assertRaises(exceptions.ConfigurationError, make_engine, settings)
        self.assertIn("auth_type = telepathy", str(error))

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


class TestSockets(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fx.FakeLogger())
        self.listener = socket.socket()
        self.addCleanup(self.listener.close)
        self.listener.bind(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def unavailable(self, **options: Any) -> exceptions.LimitsUnavailable:
        driver = KeystoneLimitDriver.from_conf(
            keystones.settings(
                oslo_limit__auth_url=f"http://127.0.0.1:{self.port}/v3",
                oslo_limit__timeout=0.2,
                **options,
            )
        )
        error = self.assertRaises(exceptions.LimitsUnavailable, driver.parent_of, "p1")
        self.assertNotIn(PASSWORD, str(error))
        self.assertNotIn(PASSWORD, self.log.output)
        return error

    def test_closed_port(self) -> None:
        error = self.unavailable()
        self.assertIn(f"Keystone at http://127.0.0.1:{self.port}/v3 cannot be reached", error.reason)

    def test_server_that_never_answers(self) -> None:
        self.listener.listen()
        for auth_type in ("v3password", "password"):
            began = time.monotonic()
            error = self.unavailable(oslo_limit__auth_type=auth_type)
            self.assertIn("does not respond in time", error.reason)
            self.assertLess(time.monotonic() - began, 5.0)
