# SPDX-License-Identifier: Apache-2.0
"""What is imported for the providers of Placement and Cyborg: sums at the host, nested devices, and hosts by name."""

from __future__ import annotations

import decimal
from collections.abc import Sequence

from oslotest import base

from cyborg_quota import Inventory, units
from cyborg_quota.capacity.imports import plan, sources
from cyborg_quota.capacity.imports.changes import WantedProvider
from cyborg_quota.capacity.imports.sources import SourceProvider
from cyborg_quota.conf.resource_rules import ResourceMap, parse_rule

RULES = ("PGPU: gpu", "PGPU CUSTOM_A100: gpu.A100", "CUSTOM_*: any_custom", "NET_*: nic")
COUNTED = ("gpu", "gpu.A100", "any_custom", "nic")
VCPU = {"VCPU": Inventory(64)}


def wanted(providers: Sequence[SourceProvider], *, nested: bool = False) -> list[WantedProvider]:
    resource_map = ResourceMap(map(parse_rule, RULES), COUNTED, refuses_unmapped=True)
    return plan.wanted_providers(providers, resource_map, nested=nested)


def device(name: str, parent: str, *traits: str, used: int = 0, **classes: Inventory) -> SourceProvider:
    return SourceProvider(
        name, name, parent, frozenset(traits), classes, {"server": dict.fromkeys(classes, used)} if used else {}
    )


CLOUD = [
    device("gpu2", "numa1", "CUSTOM_A100", used=1, PGPU=Inventory(1)),
    device("gpu1", "numa1", "CUSTOM_A100", used=1, PGPU=Inventory(1)),
    device("gpu3", "host1", PGPU=Inventory(1)),
    SourceProvider("numa1", "numa1", "host1", used={}),
    SourceProvider("host1", "host1", inventories=VCPU, used={}),
    SourceProvider("host2", "host2", inventories=VCPU, used={}),
]


class TestPlan(base.BaseTestCase):
    def test_summed_at_the_host(self) -> None:
        found = {one.name: one for one in wanted(CLOUD)}
        host = found["host1"]
        self.assertEqual({"gpu": Inventory(3), "gpu.A100": Inventory(2)}, host.inventories)
        assert host.used is not None
        self.assertEqual({"gpu": {"server": 2}, "gpu.A100": {"server": 2}}, host.used)
        self.assertEqual(["host1"], [name for name, one in found.items() if one.is_needed])

    def test_nested(self) -> None:
        """Each after the one that contains it; a host without accelerators is not needed."""
        found = wanted(CLOUD, nested=True)
        self.assertEqual(
            [("host1", None), ("gpu3", "host1"), ("numa1", "host1"), ("gpu1", "numa1"), ("gpu2", "numa1")],
            [(one.name, one.parent) for one in found if one.is_needed],
        )
        self.assertEqual({"gpu": Inventory(1)}, next(one for one in found if one.name == "gpu3").inventories)

    def test_a_wildcard_matches_accelerators_only(self) -> None:
        """The rule NET_* would count network bandwidth, and * would count processors."""
        classes = {"CUSTOM_X": Inventory(1), "NET_BW_EGR_KILOBIT_PER_SEC": Inventory(1000), "VCPU": Inventory(8)}
        (found,) = wanted([SourceProvider("a", "a", inventories=classes)])
        self.assertEqual({"any_custom"}, set(found.inventories))

    def test_sums_of_different_inventories(self) -> None:
        ratio = decimal.Decimal("1.5")
        for parts, expected in (
            ([Inventory(4, max_unit=2), Inventory(4, max_unit=100)], Inventory(8, max_unit=6)),
            ([Inventory(4, reserved=1, max_unit=2**31 - 1)], Inventory(4, reserved=1, max_unit=2**31 - 1)),
            ([Inventory(4, min_unit=2, step_size=2)] * 2, Inventory(8, min_unit=2, step_size=2)),
            ([Inventory(4, min_unit=2, step_size=2), Inventory(4, step_size=1)], Inventory(8)),
            ([Inventory(4, allocation_ratio=ratio), Inventory(3, reserved=1)], Inventory(8, max_unit=7)),
            ([Inventory(4, allocation_ratio=ratio)] * 2, Inventory(12, max_unit=8)),
            # Each device can take one claim of one. Rounded together, there would be a third one.
            ([Inventory(1, allocation_ratio=ratio)] * 2, Inventory(2)),
            ([Inventory(2, reserved=1, allocation_ratio=ratio), Inventory(3, allocation_ratio=ratio)], Inventory(5)),
        ):
            self.assertEqual(expected, plan.total_of(parts))
            self.assertEqual(sum(map(units.capacity_of, parts)), units.capacity_of(expected))

    def test_a_ratio_of_an_api(self) -> None:
        for value, expected in ((1.0, "1"), (16.0, "16"), (0.1, "0.1"), (1.33333333, "1.3333"), (1e30, "1e30")):
            self.assertEqual(decimal.Decimal(expected), sources.ratio_of(value))

    def test_the_host_of_a_deployable(self) -> None:
        hosts = ["node1", "node1_a", "node10", "gpu.example.org"]
        for name, expected in (
            ("node1_0000:00:06.0", "node1"),
            ("node1_a_FakeDevice", "node1_a"),
            ("node10_x", "node10"),
            ("gpu_example_org_FakeDevice", "gpu.example.org"),
            ("node11_x", None),
        ):
            self.assertEqual(expected, sources.host_of(name, hosts))
