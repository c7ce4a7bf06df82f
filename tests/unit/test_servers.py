"""What the private servers leave behind when their owner is killed, and what is said without their programs.

That they outlive a kill and a stop is tested by each test of an outage (tests/faults).
"""

import subprocess
import sys
from pathlib import Path

import testscenarios
import testtools

from tests import needs, servers
from tests.servers import machine

ROOT = Path(__file__).parents[2]


class TestServer(testscenarios.WithScenarios, testtools.TestCase):
    scenarios = [(kind.name, {"kind": kind}) for kind in servers.KINDS]

    def test_dies_with_its_killed_owner_and_is_removed(self):
        server = self.kind()
        needs.start(self, server)
        server.close()
        code = (
            "import sys, time; from tests import servers;"
            "server = servers.KINDS[int(sys.argv[1])](); server.start();"
            "print(server.pid, server.directory, flush=True); time.sleep(60)"
        )
        owner = subprocess.Popen(
            [sys.executable, "-c", code, str(servers.KINDS.index(self.kind))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        with owner:
            pid, directory = owner.stdout.readline().split()
            self.assertTrue(machine.alive(int(pid)))
            owner.kill()
        machine.wait_until(lambda: not machine.alive(int(pid)), 60)
        self.assertFalse(machine.alive(int(pid)))
        # The next owner that starts a server removes what dead owners left.
        server = self.kind()
        server.start()
        server.close()
        self.assertFalse(Path(directory).exists())
