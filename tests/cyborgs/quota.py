# SPDX-License-Identifier: Apache-2.0
"""The base class of the tests of Cyborg with quota: the real services, and a ledger on the same MariaDB."""

from __future__ import annotations

import hashlib
import os
import pathlib
import tempfile
import uuid
from collections.abc import Sequence
from typing import ClassVar

import sqlalchemy as sa
from oslo_config import cfg

import cyborg_quota
from cyborg_quota import QuotaEngine
from cyborg_quota.conf import loading
from tests import base as ledger_base
from tests import fixtures, invariants
from tests.cyborgs import base, environment
from tests.cyborgs import stack as stacks
from tests.cyborgs.records import Records
from tests.cyborgs.starting import ProcessSettings
from tests.forked import Ended as Output
from tests.servers import machine

CONDUCTOR = ("cyborg-quota-conductor",)
API = "cyborg_quota.cyborg.wsgi:application"
POINTED_CONDUCTOR = ("python", str(pathlib.Path(__file__).with_name("points.py")))
"""The same conductor, which can be killed or suspended at a named point: see points.py."""

COMMAND_TIMEOUT_SECONDS = 120
FIGURES_SECONDS = 60.0
LEDGER = "cyborg"
"""A bus of its own: a conductor continues after its tests, and expires what it finds."""

QUOTA_CONF = """\
[database]
connection = {url}
[limits]
driver = database
missing = unlimited
enforcement_model = flat
[quota]
resources = fpga, fpga.fake
expire_interval = 1
[api]
# This Cyborg has no keystonemiddleware.
auth = noauth
[cyborg]
source = cyborg
# The conductor and the API repair nothing, unless a test says so.
reconcile_heal = false
resource_rule = FPGA: fpga
resource_rule = FPGA CUSTOM_FAKE_DEVICE: fpga.fake
{more}
"""


def write_conf(directory: pathlib.Path, url: str, options: str = "") -> pathlib.Path:
    """A cyborg_quota.conf for a ledger; ``options`` is more text, in [cyborg]."""
    text = QUOTA_CONF.format(url=url.replace("$", "$$"), more=options)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = directory / f"quota-{os.getpid()}-{digest}.conf"
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def charged(engine: QuotaEngine) -> dict[str, int]:
    """Return the attached accelerators according to the ledger: fpga by project, like Records.bound()."""
    usages = engine.list_usages(ledger_base.ADMIN)
    return {usage.project_id: usage.usage.used for usage in usages if usage.resource == "fpga" and usage.usage.used}


def differences(engine: QuotaEngine, records: Records, sql: sa.Engine) -> list[str]:
    """What is in flight, charges that are not what Cyborg has bound, and violations of the invariants."""
    reserved = engine.list_reservations(ledger_base.ADMIN, state="reserved")
    found = [f"reserved for ARQ {row.consumer}" for row in reserved]
    if (attached := charged(engine)) != (bound := records.bound()):
        found.append(f"charged {attached}, bound {bound}")
    with sql.connect() as connection:
        return found + invariants.find_violations(connection)


def run_program(stack: stacks.Stack, program: str, *arguments: str) -> Output:
    """Run one of our programs in Cyborg's environment."""
    with tempfile.TemporaryDirectory() as directory:
        out, err = (pathlib.Path(directory) / name for name in ("out", "err"))
        command = [str(stack.programs / program), *arguments]
        settings = ProcessSettings(out, err, os.environ, pathlib.Path.cwd())
        status = stack.starter.start(command, settings).wait(COMMAND_TIMEOUT_SECONDS)
        return Output(status, out.read_text(), err.read_text())


def cyborg_files(stack: stacks.Stack) -> list[str]:
    """Return the arguments by which reconcile finds Cyborg's configuration."""
    return [part for name in stack.config_files() for part in ("--cyborg-config-file", name.split("=")[1])]


def reconcile(stack: stacks.Stack, conf_file: pathlib.Path, *arguments: str) -> Output:
    """cyborg-quota reconcile, without a wait."""
    named = ("--config-file", str(conf_file), "reconcile", "--grace", "0", *cyborg_files(stack))
    return run_program(stack, "cyborg-quota", *named, *arguments)


class QuotaTestCase(base.StackTestCase):
    """``engine`` is an admin's view of the ledger; ``options`` is more text for cyborg_quota.conf, in [cyborg]."""

    conductor: ClassVar[Sequence[str]] = CONDUCTOR
    api: ClassVar[str] = API
    options: ClassVar[str] = ""
    ledger: ClassVar[str] = LEDGER

    @property
    def config(self) -> str:  # type: ignore[override]
        """The content of cyborg.conf. The file's name changes with its text, so that services are restarted with it."""
        return f"[cyborg_quota]\nconfig_file = {self.conf_file}\n"

    def setUp(self) -> None:
        fixtures.need_server(self, "mariadb")
        # Before the services are started, and before super().setUp(), which reads it.
        self.url = fixtures.synced_url("mariadb", os.getpid(), self.ledger)
        self.conf_file = write_conf(environment.DIRECTORY, self.url_for(self.url), self.options)
        self.addCleanup(self.conf_file.unlink, missing_ok=True)
        super().setUp()
        self.useFixture(fixtures.EmptyLedger("mariadb", self.ledger))
        conf = loading.load(cfg.ConfigOpts(), ["--config-file", str(self.conf_file)])
        self.engine: QuotaEngine = cyborg_quota.make_engine(conf)
        self.addCleanup(self.engine.close)
        self.sql = fixtures.plain_engine(self.url)
        self.project_id = self.client.project_id

    def url_for(self, url: str) -> str:
        """Return the URL of the ledger for the services and commands."""
        return url

    # --- the ledger ---

    def set_limit(self, limit: int, resource: str = "fpga", project_id: str | None = None) -> None:
        """Set a limit of the test's own project, or of another one."""
        administration = self.engine.limits
        administration.set_limit(ledger_base.ADMIN, resource, limit, project_id or self.project_id)

    def figures(self, resource: str = "fpga", project_id: str | None = None) -> tuple[int, int]:
        """Return (used, reserved)."""
        usage = self.engine.get_usages(ledger_base.ADMIN, project_id or self.project_id)[resource]
        return usage.used, usage.reserved

    def wait_for_figures(self, used: int, reserved: int = 0) -> None:
        """Wait until this much fpga is charged to the test's own project."""
        machine.wait_until(lambda: self.figures() == (used, reserved), FIGURES_SECONDS)
        self.assertEqual((used, reserved), self.figures())

    def reservations(self, arq: str) -> list[tuple[str, str, int, str, str | None]]:
        """Return (project, resource, delta, state, group) of every reservation of an ARQ, oldest first."""
        return [
            (row.project_id, row.resource, row.delta, row.state, row.group)
            for row in self.engine.list_reservations(ledger_base.ADMIN, consumer=arq)
        ]

    def assert_agree(self) -> None:
        """Assert that nothing is reserved, the ledger is consistent, and it agrees with Cyborg."""
        self.assertEqual([], differences(self.engine, self.records, self.sql))

    def expire_all(self) -> None:
        """Make all reservations overdue, and expire them.

        The sweeper of a conductor may have locked them: then it expires them, and this call skips them.
        """
        with self.sql.begin() as connection:
            connection.execute(
                sa.text("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000' WHERE state = 'reserved'")
            )
        self.engine.expire(ledger_base.ADMIN)
        machine.wait_until(
            lambda: not self.engine.list_reservations(ledger_base.ADMIN, state="reserved"), FIGURES_SECONDS
        )

    def bind_refuse_release(self) -> None:
        """What each Cyborg does with two accelerators of three."""
        self.set_limit(2)
        arqs = self.client.created(self.profile, 3)
        self.refused(arqs)
        self.assertEqual(["Initial"] * 3, self.records.states(arqs), "all or none")
        instance = self.bind(arqs[:2])
        self.assertEqual((2, 0), self.figures())
        expected = f"project {self.project_id}, resource fpga: limit 2, used 2, reserved 0, requested 1"
        self.assertEqual(f"Quota exceeded: {expected}", self.refused(arqs[2:]).strip())
        self.assertEqual(["Initial"], self.records.states(arqs[2:]))
        self.assertEqual([], [event for event in self.stack.nova.events if event["tag"] in arqs[2:]])
        self.assert_agree()
        self.assertEqual(204, self.client.delete_instance(instance).status)
        self.assertEqual((0, 0), self.figures())
        self.bind(arqs[2:])
        self.assertEqual(202, self.client.unbind(arqs[2:]).status)
        self.assertEqual(["released"], [row[3] for row in self.reservations(arqs[2])])
        self.assert_agree()
        self.assertEqual(Output(0, "", ""), self.reconcile())

    def fail_binds(self) -> None:
        """Cyborg stops at the second of three: the first is bound, and the bind of the third is not started.

        Then a job fails after the call was answered, and Cyborg does not change the state of its ARQ.
        """
        arqs = self.client.created(self.profile, 3)
        answer = self.client.bind(arqs, str(uuid.uuid4()), [self.rp, str(uuid.uuid4()), self.rp])
        self.assertEqual(404, answer.status)
        # (There is no image service for the bitstream.)
        arqs += self.client.created(self.new_profile({"resources:FPGA": "1", "accel:bitstream_id": str(uuid.uuid4())}))
        instance = self.bind(arqs[3:])
        self.wait_for_figures(1)
        self.assertEqual({}, self.stack.nova.told_of(instance))
        self.assertEqual(["Bound", "BindStarted", "Initial", "BindStarted"], self.records.states(arqs))
        states = [[row[3] for row in self.reservations(arq)] for arq in arqs]
        self.assertEqual([["committed"], *[["rolled_back"]] * 3], states)
        self.assertEqual(1, self.records.handles_in_use())
        self.assert_agree()

    # --- commands ---

    def run_program(self, program: str, *arguments: str) -> Output:
        """Run one of our programs in Cyborg's environment."""
        return run_program(self.stack, program, *arguments)

    def command(self, *arguments: str) -> Output:
        """cyborg-quota, with the test's configuration."""
        return self.run_program("cyborg-quota", "--config-file", str(self.conf_file), *arguments)

    def reconcile(self, *arguments: str) -> Output:
        """cyborg-quota reconcile, without a wait."""
        return reconcile(self.stack, self.conf_file, *arguments)
