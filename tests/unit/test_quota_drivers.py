# SPDX-License-Identifier: Apache-2.0
"""A quota driver of another package: which attributes it needs, and that [quota] driver loads it."""

from __future__ import annotations

import re

from tests.unit import test_docs

ROOT = test_docs.ROOT
PAGE = ROOT / "doc/source/contributor/quota-drivers.rst"

DRIVER = """
class Parts:
    location = "nowhere"

    def __init__(self):
        self.held = {}

    def charge(self, request):
        self.held = {f"uuid-{number}": claim for number, claim in enumerate(request.claims)}
        return list(self.held)

    def settle(self, call, selection, ttl_microseconds=0):
        print(call, request_of(self.held, selection))

    def read(self, wanted):
        return [wanted.consumer]


def request_of(held, selection):
    return [dict(held[uuid].deltas) for uuid in selection.uuids]


class OwnDriver:
    def __init__(self, limits):
        self.reserver = self.settler = self.reservations = self.database = self.history = Parts()

    @classmethod
    def from_conf(cls, conf, limits):
        return cls(limits)
"""
PROGRAM = """
import sys
import cyborg_quota
from oslo_config import cfg
from oslo_context import context as oc

conf = cfg.ConfigOpts()
cyborg_quota.conf.register_opts(conf)
conf([])
quotas, context = cyborg_quota.make_engine(conf), oc.RequestContext(project_id="p")
quotas.commit(context, quotas.reserve(context, {"gpu": 2}))
print(quotas.get_reservations(context, consumer="arq"), quotas.location)
print([name for name in sys.modules if name == "sqlalchemy"])
"""


class TestQuotaDrivers(test_docs.ExampleTestCase):
    def test_the_page_lists_what_the_engine_calls(self) -> None:
        called: dict[str, set[str]] = {}
        for path in (*(ROOT / "cyborg_quota").glob("*.py"), ROOT / "cyborg_quota/metrics/monitoring.py"):
            text = path.read_text()
            for part, name in re.findall(r"self\._driver\.(\w+)\.(\w+)", text):
                called.setdefault(part, set()).add(name)
        rows = re.findall(r"(?m)^   \* - ``(\w+)``\n((?:     .*\n)+)", PAGE.read_text())
        listed = {part: set(re.findall(r"``([a-z_]+)``", cell.partition(". Raises")[0])) for part, cell in rows}
        self.assertEqual(called, listed)

    def test_a_driver_of_another_package(self) -> None:
        """It is found by its entry point, has only the parts that are used, and loads no database."""
        (self.directory / "own_driver.py").write_text(DRIVER)
        self.install("own_driver", "[cyborg_quota.drivers]\nown = own_driver:OwnDriver\n")
        output = self.run_python("-c", PROGRAM, OS_QUOTA__DRIVER="own")
        self.assertEqual("commit [{'gpu': 2}]\n['arq'] nowhere\n[]\n", output)
