# SPDX-License-Identifier: Apache-2.0
"""nova-compute with Nova's fake driver, which a test can suspend in the middle of a spawn. Run by Nova's Python.

    python compute.py --config-file ...

While the directory CYBORG_QUOTA_TEST_POINTS holds a file ``hold``, a spawn waits in the driver, and the file
``hold.reached`` shows that one waits. The driver's node has the UUID that Nova keeps on the host, as with libvirt: the
fake driver draws a new one for each process, and nova-compute refuses to restart on an unknown node.
"""

import os
import pathlib
import sys
import time

sys.path.pop(0)  # this directory

from nova.cmd import compute
from nova.virt import fake, node

DIRECTORY = pathlib.Path(os.environ["CYBORG_QUOTA_TEST_POINTS"])
spawn = fake.FakeDriver.spawn


def held_spawn(self, *arguments, **options):
    while (DIRECTORY / "hold").exists():
        (DIRECTORY / "hold.reached").touch()
        time.sleep(0.05)
    return spawn(self, *arguments, **options)


def get_nodenames_by_uuid(self, refresh=False):
    return {node.get_local_node_uuid(): name for name in self.get_available_nodes()}


def get_available_resource(self, nodename):
    return {**resource(self, nodename), "uuid": node.get_local_node_uuid()}


resource = fake.FakeDriver.get_available_resource
fake.FakeDriver.spawn = held_spawn
fake.FakeDriver.get_nodenames_by_uuid = get_nodenames_by_uuid
fake.FakeDriver.get_available_resource = get_available_resource
sys.exit(compute.main())
