# SPDX-License-Identifier: Apache-2.0
"""The tests with the real Cyborg use the complete installed package, as a user does; what its services log first."""

from __future__ import annotations

import filecmp
import re

import cyborg_quota
from tests import installing
from tests.cyborgs import configuration, environment, quota
from tests.cyborgs.service import Service
from tests.cyborgs.starting import ProgramStarter


class TestInstalled(quota.QuotaTestCase):
    options = "source = east"

    def test_one_line_at_the_start(self) -> None:
        for service, name in ((self.stack.api, "API"), (self.stack.conductor, "conductor")):
            [line] = [line for line in service.output().splitlines() if "cyborg_quota " in line]
            place = re.escape(self.engine.location)
            expected = (
                rf" cyborg_quota {re.escape(cyborg_quota.__version__)} in Cyborg's {name}: ledger {place}, "
                r"limit driver database, source east, rules FPGA: fpga; FPGA CUSTOM_FAKE_DEVICE: fpga\.fake, "
                r"heal off\.$"
            )
            self.assertRegex(line, expected)
            self.assertNotIn("@", line)

    def test_the_conductor_as_a_program(self) -> None:
        """Started without a template, it serves in a worker process with threads, as Cyborg's own conductor does."""
        for program in ("cyborg-conductor", "cyborg-quota-conductor"):
            configuration.write_host(self.stack.workdir, program)
            command = [str(self.stack.programs / program), *self.stack.config_files(program)]
            conductor = Service(
                program, command, self.stack.workdir, lambda log: "Created RPC server" in log, starter=ProgramStarter()
            )
            self.addCleanup(conductor.kill)
            conductor.start()
            self.assertEqual(2, len(conductor.pids), program)

    def test_every_file_of_the_tree(self) -> None:
        """The installed package is the present source: an edited file causes a new installation."""
        [packages] = environment.DIRECTORY.glob("env/lib/python*/site-packages")
        paths = [str(path) for path in installing.package_files()]
        self.assertIn("cyborg_quota/db/migrations/script.py.mako", paths)
        _, differ, missing = filecmp.cmpfiles(installing.TOP, packages, paths, shallow=False)
        self.assertEqual(([], []), (differ, missing))
        # The services import it from there.
        self.assertIn(f"application of {packages}/cyborg_quota/cyborg/wsgi.py", self.stack.api.output())
