# SPDX-License-Identifier: Apache-2.0
"""How a program embeds the engine: by its configuration, with the calls that it already makes."""

from __future__ import annotations

import socket
import traceback
from unittest import mock

import fixtures as pyfixtures
import sqlalchemy as sa
from oslo_config import cfg
from oslotest import base as oslo_base

import cyborg_quota
from cyborg_quota import exceptions
from tests import base, fixtures, hooks

SECRET = "correct-horse-battery"


class TestMakeEngine(oslo_base.BaseTestCase):
    """make_engine(conf): it does no I/O, and raises a typed error for invalid options."""

    def test_without_our_options(self) -> None:
        """They are registered explicitly; twice does no harm. No global configuration is used."""
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[], default_config_dirs=[])
        self.assertRaisesRegex(exceptions.ConfigurationError, "register_opts", cyborg_quota.make_engine, conf)
        conf = fixtures.configuration()
        cyborg_quota.conf.register_opts(conf)
        self.assertEqual("noop", conf.limits.driver)
        self.assertEqual(["fpga", "gpu"], cyborg_quota.make_engine(conf).resources)
        self.assertNotIn("quota", cfg.CONF)

    def test_no_io(self) -> None:
        directory = self.useFixture(pyfixtures.TempDir()).path
        for url in (
            f"mysql+pymysql://u:{SECRET}@nowhere.invalid/quota",
            f"postgresql+psycopg2://u:{SECRET}@nowhere.invalid/quota",
            f"sqlite:///{directory}/missing/quota.sqlite",
        ):
            with (
                mock.patch.object(socket, "socket", side_effect=AssertionError),
                mock.patch.object(sa, "create_engine", side_effect=AssertionError),
            ):
                engine = cyborg_quota.make_engine(fixtures.configuration(database__connection=url))
                engine.close()
            self.assertNotIn(SECRET, repr(vars(engine)))

    def test_invalid_options(self) -> None:
        """The error is raised when the engine is made, not at the first attach; so it is for an unknown database."""
        urls = (
            *(SECRET, f"mysql+pymysql://u:{SECRET}@host:port/x", f"://{SECRET}", " "),
            *(f"oracle9://u:{SECRET}@host/x", f"mysql+nodriver://u:{SECRET}@host/x", f"mysql://u:{SECRET}@host/x"),
        )
        # SQLAlchemy has this driver, and it may be installed.
        drivers = ("mysql+pymysql", "postgresql+psycopg2", "sqlite")
        others = ("mysql+mysqldb", "postgresql+psycopg", "sqlite+aiosqlite", "oracle+oracledb")
        cases: list[tuple[tuple[str, ...], dict[str, object]]] = [
            *((("[database] connection",), {"database__connection": url}) for url in urls),
            *(((one, *drivers), {"database__connection": f"{one}://u:{SECRET}@host/x"}) for one in others),
            (("[quota] driver", "oracle"), {"quota__driver": "oracle"}),
            (("[limits] driver", "stars"), {"limits__driver": "stars"}),
            (("connection_parameters",), {"database__connection_parameters": "nonsense"}),
        ]
        for name in ("", " gpu", "g\npu"):
            cases.append((("[quota] resources",), {"quota__resources": ["fpga", name]}))
            cases.append((("[limits] limits",), {"limits__driver": "config", "limits__limits": {name: 1}}))
        for limit in ("x", -2, 1.5, None):
            cases.append((("[limits] limits",), {"limits__driver": "config", "limits__limits": {"gpu": limit}}))
        for words, options in cases:
            error = self.assertRaises(
                exceptions.ConfigurationError, cyborg_quota.make_engine, fixtures.configuration(**options)
            )
            self.assertEqual([], [word for word in words if word not in str(error)])
            self.assertNotIn(SECRET, "".join(traceback.format_exception(error)))

    def test_connection_parameters(self) -> None:
        conf = fixtures.configuration(database__connection="sqlite:///x?a=1", database__connection_parameters="b=2&c=3")
        url = hooks.database_of(cyborg_quota.make_engine(conf))._url
        self.assertEqual({"a": "1", "b": "2", "c": "3"}, dict(url.query))

    def test_a_driver_that_is_not_installed(self) -> None:
        """The error names the package and the command that installs it, at the first use, which imports the package."""
        for scheme, module, extra in (
            ("mysql+pymysql", "pymysql", "cyborg_quota[mysql]"),
            ("mariadb+pymysql", "pymysql", "cyborg_quota[mysql]"),
            ("postgresql+psycopg2", "psycopg2", "cyborg_quota[postgresql]"),
        ):
            engine = cyborg_quota.make_engine(
                fixtures.configuration(database__connection=f"{scheme}://u:{SECRET}@host/x")
            )
            with mock.patch.dict("sys.modules", {module: None}):
                error = self.assertRaises(exceptions.ConfigurationError, engine.reserve, base.ADMIN, {"gpu": 1})
            self.assertEqual([], [word for word in (module, extra) if word not in str(error)])
            self.assertNotIn(SECRET, str(error))

    def test_values_out_of_range(self) -> None:
        for group, name, value in (
            ("quota", "reservation_expire", 0),
            ("quota", "reservation_expire", 10**10),
            ("quota", "expire_grace", -1),
            ("quota", "expire_grace", float("inf")),
            ("quota", "purge_age", 10**10),
            ("cyborg", "bind_expire", 10**10),
            ("quota", "retry_seconds", -1),
            ("quota", "connect_timeout", 0),
            ("quota", "purge_age", -1),
            ("limits", "limits", "gpu:-2"),
            ("limits", "limits", "gpu:many"),
        ):
            self.assertRaises(ValueError, fixtures.configuration, **{f"{group}__{name}": value})


class TestCyborgsCalls(base.LedgerTestCase):
    """The calls of cyborg.quota.QUOTAS, as Cyborg makes them."""

    def test_a_real_context(self) -> None:
        from oslo_context import context

        uuids = self.quotas.reserve(context.RequestContext(project_id="p1"), {"gpu": 1})
        self.quotas.commit(context.RequestContext(project_id="p9", is_admin=True), uuids)
        user = context.RequestContext(project_id="p1", roles=["admin"])
        self.assertRaises(exceptions.NotAuthorized, self.quotas.expire, user)
        self.assertEqual((1, 0), self.figures())
