# SPDX-License-Identifier: Apache-2.0
"""The tests with the real Cyborg use the complete installed package, as a user does."""

from __future__ import annotations

import configparser
import pathlib
import shlex
import uuid

import fixtures as fx
from oslo_config import cfg

import cyborg_quota
from cyborg_quota.conf import loading
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import base as ledger_base
from tests import fixtures, installing
from tests.cyborgs import configuration, environment, quota
from tests.cyborgs.service import Service
from tests.cyborgs.starting import ProgramStarter

PATHS = """
[DEFAULT]
logging_context_format_string = %(pathname)s says %(message)s
"""


def same(one: pathlib.Path, other: pathlib.Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


class TestInstalled(quota.QuotaTestCase):
    def setUp(self) -> None:
        super().setUp()
        [self.site_packages] = environment.DIRECTORY.glob("env/lib/python*/site-packages")

    @property
    def config(self) -> str:  # type: ignore[override]
        return super().config + PATHS

    def test_the_conductor_and_the_api(self) -> None:
        self.set_limit(0)
        arqs = self.client.created(self.profile)
        self.assertEqual(403, self.client.bind(arqs, str(uuid.uuid4()), self.rp).status)
        integration = self.site_packages / "cyborg_quota/cyborg"
        self.assertIn(f"{integration}/conductor.py says Bind refused: ", self.stack.conductor.output())
        self.assertIn(f"application of {integration}/wsgi.py", self.stack.api.output())

    def test_the_conductor_as_a_program(self) -> None:
        """Started without a template, it serves in a worker process with threads, as Cyborg's own conductor does."""
        conductors = {}
        for program in ("cyborg-conductor", "cyborg-quota-conductor"):
            configuration.write_host(self.stack.workdir, program)
            command = [str(self.stack.programs / program), *self.stack.config_files(program)]
            conductors[program] = Service(
                program, command, self.stack.workdir, lambda log: "Created RPC server" in log, starter=ProgramStarter()
            )
            self.addCleanup(conductors[program].kill)
            conductors[program].launch()
        for conductor in conductors.values():
            conductor.wait()
        self.assertEqual([2, 2], [len(conductor.pids) for conductor in conductors.values()])

    def test_every_file_of_the_tree(self) -> None:
        """The installed package is the present source: an edited file causes a new installation."""
        paths = installing.package_files()
        self.assertIn("cyborg_quota/db/migrations/script.py.mako", map(str, paths))
        differ = [str(path) for path in paths if not same(installing.TOP / path, self.site_packages / path)]
        self.assertEqual([], differ)

    def test_the_expirer_s_unit(self) -> None:
        """The command of the systemd unit expires an overdue reservation of a ledger without a conductor."""
        directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        url = f"sqlite:///{directory}/ledger.sqlite"
        schema.sync(Database(fixtures.settings(url)))
        conf_file = quota.write_conf(directory, url)
        engine = cyborg_quota.make_engine(loading.load(cfg.ConfigOpts(), ["--config-file", str(conf_file)]))
        self.addCleanup(engine.close)
        engine.reserve(ledger_base.ADMIN, {"fpga": 1}, consumer="arq", expire=1)

        unit = configparser.RawConfigParser(strict=False)  # systemd allows an option several times
        unit.read(installing.TOP / "etc/systemd/cyborg-quota-expirer.service")
        replacements = {
            "/opt/cyborg/venv": str(environment.DIRECTORY / "env"),
            "/etc/cyborg_quota/cyborg_quota.conf": str(conf_file),
        }
        command = unit["Service"]["ExecStart"]
        for old, new in replacements.items():
            self.assertIn(old, command)
            command = command.replace(old, new)
        expirer = Service(
            "expirer",
            shlex.split(command),
            directory,
            lambda _: [row.state for row in engine.list_reservations(ledger_base.ADMIN)] == ["expired"],
            starter=self.stack.starter,
        )
        self.addCleanup(expirer.kill)
        expirer.start()
        expirer.stop()
