# SPDX-License-Identifier: Apache-2.0
"""Which resource is charged for the group of a device profile."""

from __future__ import annotations

from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.conf import resource_rules
from cyborg_quota.conf.resource_rules import ClassNotCounted, ResourceMap, Rule, parse_rule
from cyborg_quota.cyborg.bind_tracker import public_message
from tests import fixtures

COUNTED = ("fpga", "gpu", "gpu.A100")


def resource_map(*rules: str, refuses: bool = True) -> ResourceMap:
    return ResourceMap(map(parse_rule, rules), COUNTED, refuses_unmapped=refuses)


def group(*classes: str, **traits: str) -> dict[str, str]:
    return {
        "accel:bitstream_id": "b",
        **{f"resources:{name}": "1" for name in classes},
        **{f"trait:{name}": value for name, value in traits.items()},
    }


class TestPod(base.BaseTestCase):
    def test_a_wrong_name_is_a_wrong_configuration(self) -> None:
        """It is not the user's error that each bind would be refused."""
        for name in ("", "select", "north\n"):
            conf = fixtures.configuration(cyborg__pod=name)
            error = self.assertRaises(exceptions.ConfigurationError, resource_rules.pod, conf)
            self.assertIn("[cyborg] pod", str(error))
        self.assertEqual("north", resource_rules.pod(fixtures.configuration(cyborg__pod="north")))
        self.assertIsNone(resource_rules.pod(fixtures.configuration()))


class TestRules(base.BaseTestCase):
    def test_parsed(self) -> None:
        for text, rule in (
            ("FPGA: fpga", Rule("FPGA", (), {"fpga": 1})),
            ("  PGPU   CUSTOM_A :gpu,gpu.A100 ", Rule("PGPU", ("CUSTOM_A",), {"gpu": 1, "gpu.A100": 1})),
            ("X A B: r s=12 r=2", Rule("X", ("A", "B"), {"r": 2, "s": 12})),
        ):
            self.assertEqual(rule, parse_rule(text))

    def test_not_a_rule(self) -> None:
        for text in (
            "",
            "FPGA",
            "FPGA:",
            ": fpga",
            "FPGA: ,",
            f"FPGA: {'x' * 256}",
            "FPGA: a\x00b",
            "X: r=",
            "X: r=0",
            "X: r=-1",
            "X: r=1.5",
            "X: r=99999999999",
            "X: r=\uff12",
        ):
            error = self.assertRaises(exceptions.ConfigurationError, parse_rule, text)
            self.assertIn("resource_rule", str(error))
            given = text.partition("r=")[2]
            self.assertTrue(not given or ascii(given).strip("'") in str(error).partition("not ")[2], error)


class TestResourceMap(base.BaseTestCase):
    def test_models_traits_wildcards_and_weights(self) -> None:
        """A model and its family are both charged; every trait of a rule is needed.

        Slices and whole devices share a unit; of two weights of one resource, the larger one is charged. Of several
        classes, the first one counts, as in Cyborg.
        """
        models = ("PGPU: gpu", "PGPU CUSTOM_A100: gpu.A100")
        traits = ("PGPU A B: gpu.A100", "PGPU: gpu")
        wildcards = ("CUSTOM_*: gpu", "*GPU CUSTOM_*_A100: gpu.A100")
        weights = ("VGPU: gpu", "VGPU CUSTOM_7G: gpu=7", "PGPU: gpu=7 gpu.A100")
        both = {"gpu": 1, "gpu.A100": 1}
        for rules, requested, deltas in (
            (models, group("PGPU", CUSTOM_A100="required"), both),
            (models, group("PGPU"), {"gpu": 1}),
            (models, group("PGPU", CUSTOM_A100="forbidden"), {"gpu": 1}),
            (models, group("PGPU", CUSTOM_V100="required"), {"gpu": 1}),
            (traits, group("PGPU", A="required"), {"gpu": 1}),
            (traits, group("PGPU", A="required", B="required"), both),
            (wildcards, group("CUSTOM_ANY"), {"gpu": 1}),
            (wildcards, group("VGPU", CUSTOM_NVIDIA_A100="required"), {"gpu.A100": 1}),
            (weights, group("VGPU"), {"gpu": 1}),
            (weights, group("VGPU", CUSTOM_7G="required"), {"gpu": 7}),
            (weights, group("PGPU"), {"gpu": 7, "gpu.A100": 1}),
            (("FPGA: fpga", "PGPU: gpu"), group("FPGA", "PGPU"), {"fpga": 1}),
        ):
            self.assertEqual(deltas, resource_map(*rules).deltas(requested))
        self.assertRaises(ClassNotCounted, resource_map("fpga: fpga").deltas, group("FPGA"))

    def test_no_rule(self) -> None:
        error = self.assertRaises(ClassNotCounted, resource_map("FPGA: fpga").deltas, group("CUSTOM_SSD"))
        expected = "Accelerators of resource class CUSTOM_SSD are not counted in this cloud; ask its operator."
        self.assertEqual((expected, "CUSTOM_SSD"), (public_message(error), error.resource_class))
        self.assertIn("resource_rule", str(error))
        self.assertEqual({}, resource_map("FPGA: fpga", refuses=False).deltas(group("CUSTOM_SSD")))

    def test_rule_for_an_uncounted_resource(self) -> None:
        rules = ("CUSTOM_SSD: ssd", "PGPU: gpu", "PGPU: gpu.H100")
        for resource_class, missing in (("CUSTOM_SSD", "ssd"), ("PGPU", "gpu.H100")):
            error = self.assertRaises(ClassNotCounted, resource_map(*rules).deltas, group(resource_class))
            self.assertIn(f"as {missing}, which [quota] resources does not list", str(error))
        lenient = resource_map(*rules, refuses=False)
        self.assertEqual({}, lenient.deltas(group("CUSTOM_SSD")))
        self.assertEqual({"gpu": 1}, lenient.deltas(group("PGPU")))

    def test_resources(self) -> None:
        self.assertEqual({"fpga", "gpu"}, resource_map("A: fpga", "B: gpu", "C: ssd").resources)

    def test_default(self) -> None:
        """Cyborg's own classes have rules; the default of [quota] resources is charged."""
        conf = fixtures.configuration()
        found = ResourceMap.from_conf(conf)
        self.assertEqual({"fpga": 1}, found.deltas(group("FPGA")))
        self.assertEqual({"gpu": 1}, found.deltas(group("PGPU")))
        self.assertIn("vgpu", str(self.assertRaises(ClassNotCounted, found.deltas, group("VGPU"))))
        conf.set_override("resource_rule", ["nonsense"], "cyborg")
        self.assertRaises(exceptions.ConfigurationError, ResourceMap.from_conf, conf)

    def test_requests_of(self) -> None:
        """As many as Cyborg makes: one for each unit, and two for a Xilinx FPGA."""
        for requested, count in (
            ({"resources:FPGA": "2", "resources:PGPU": "1", "accel:x": "9"}, 3),
            ({"resources:FPGA": "2", "trait:CUSTOM_FPGA_XILINX": "required"}, 4),
            ({"resources:FPGA": "2", "trait:CUSTOM_FPGA_XILINX": "forbidden"}, 2),
            ({"trait:CUSTOM_A": "required"}, 0),
        ):
            self.assertEqual(count, resource_rules.requests_of(requested))


class TestPublicMessages(base.BaseTestCase):
    def test_nothing_of_the_operator(self) -> None:
        """No host, service, region or command, also where the message in the log has them."""
        hint = "Register one in Keystone: openstack registered limit create --service 9dff64 --region RegionOne"
        errors = {
            "No limit is set for resource fpga.": exceptions.LimitNotSet("fpga", hint),
            "Accelerator request a1 already has a different charge.": exceptions.ReservationConflict(
                "a1", {"fpga": 1}, {"fpga": 2}
            ),
        }
        for expected, error in errors.items():
            self.assertEqual(expected, public_message(error))
            self.assertRegex(str(error), "--region|another provider")
        self.assertEqual("Too many.", public_message(exceptions.InvalidRequest("Too many.")))
