# SPDX-License-Identifier: Apache-2.0
"""The tests with the real Cyborg use the complete installed package, as a user does."""

from __future__ import annotations

import filecmp

from tests import installing
from tests.cyborgs import configuration, environment, quota
from tests.cyborgs.service import Service
from tests.cyborgs.starting import ProgramStarter


class TestInstalled(quota.QuotaTestCase):
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
        [packages] = environment.DIRECTORY.glob("env/lib/python*/site-packages")
        paths = [str(path) for path in installing.package_files()]
        self.assertIn("cyborg_quota/db/migrations/script.py.mako", paths)
        _, differ, missing = filecmp.cmpfiles(installing.TOP, packages, paths, shallow=False)
        self.assertEqual(([], []), (differ, missing))
        # The services import it from there.
        self.assertIn(f"application of {packages}/cyborg_quota/cyborg/wsgi.py", self.stack.api.output())
