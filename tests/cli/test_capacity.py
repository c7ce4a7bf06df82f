# SPDX-License-Identifier: Apache-2.0
"""The commands of capacity: their output in the formats, their exit statuses, and the import of a CSV file."""

from __future__ import annotations

import uuid

from cyborg_quota.capacity import operations
from tests.cli import base


class CapacityTest(base.CliTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.prepare("provider create n1", "inventory set n1 gpu=8")

    def test_a_shared_pool(self) -> None:
        self.prepare("provider create pool --shared", "inventory set pool fpga=8")
        reserve = ("reserve", "--project", "p", "gpu=1", "fpga=2")
        self.assertIn("'n2' was not found", self.refused(1, *reserve, "--provider", "n2"))
        self.assertIn("no single provider", self.refused(1, *reserve, "--provider", "any"))
        self.prepare("provider set pool --serves n1")
        self.assertEqual("pool", self.good("provider", "show", "n1")["served_by"])
        rows = self.good(*reserve, "--provider", "any")
        self.assertEqual({"gpu": "n1", "fpga": "pool"}, {row["resource"]: row["provider"] for row in rows})
        self.prepare("provider set pool --stop-serving n1")
        self.assertIn("no single provider", self.refused(1, *reserve, "--provider", "any"))

    def test_providers(self) -> None:
        given = str(uuid.uuid4())
        create = f"provider create n2 --uuid {given} --parent n1 --pod east --shared"
        self.refused_each(1, {create: "Pod 'east' was not found"})
        self.prepare("pod create east")
        expected = {
            "name": "n2", "uuid": given, "parent": "n1", "can_host": False, "pod": "east", "served_by": None,
            "generation": 0,
        }  # fmt: skip
        self.assertEqual(expected, self.good(*create.split()))
        self.assertIsNone(self.good("provider", "set", "n2", "--no-pod")["pod"])
        self.prepare("provider set n2 --pod east")
        self.assertEqual({**expected, "generation": 2}, self.good("provider", "show", given))
        self.assertTrue(self.good("provider", "set", "n2", "--no-shared")["can_host"])
        self.assertFalse(self.good("provider", "set", "n2", "--shared")["can_host"])
        self.assertEqual(["n1", "n2"], [one["name"] for one in self.good("provider", "list")])
        self.refused_each(1, {"provider delete n1": "nested"})
        for name in ("n2", "n1"):
            self.done("provider", "delete", name)
        self.assertEqual([], self.good("provider", "list"))

    def test_inventories(self) -> None:
        units = "--min-unit 2 --max-unit 6 --step-size 2"
        (record,) = self.good(*f"inventory set n1 fpga=9 --reserved 1 {units} --allocation-ratio 1.5".split())
        self.assertEqual([one.name for one in operations.INVENTORY_COLUMNS if one.cell is not None], list(record))
        self.assertEqual(["n1", "fpga", 9, 1, 2, 6, 2, "1.5", 0, 12, 2, 0], list(record.values()))
        self.assertEqual(2, len(self.good("inventory", "list", "--provider", "n1")))
        self.refused_each(1, {"inventory set n1 fpga=1 --generation 1": "generation 2, not 1"})
        self.call("inventory", "delete", "n1", "fpga")
        self.assertEqual(["gpu"], [one["resource"] for one in self.good("inventory", "list")])

    def test_claims(self) -> None:
        (row,) = self.good("reserve", "--project", "p", "--consumer", "c", "--provider", "any", "gpu=3")
        self.assertEqual("n1", row["provider"])
        self.assertEqual("n1", self.good("reservation", "show", row["uuid"])["provider"])
        self.assertEqual(
            [["n1", "p", "c", "gpu", 3, row["uuid"]]],
            [list(one.values()) for one in self.good("allocation", "list")],
        )
        argv = ("check", "--how-many", "gpu=2", "p", "--provider")
        row = {"how_many": 2, "resource": None, "fits": None, "bound_by": "any provider", "pod": None}
        self.assertEqual([row], self.good(*argv, "any"))
        self.assertEqual([row | {"bound_by": "provider n1"}], self.good(*argv, "n1"))
        no_inventory = "Provider n1 has no inventory of {}. Nothing was changed."
        self.refused_each(
            1,
            {
                "check --how-many gpu=2 p --provider n9": "'n9' was not found",
                "reserve --project p --provider n1 gpu=6": "provider n1, resource gpu: requested 6, capacity 8, used 3",
                "provider delete n1": "claims use 3; see `allocation list --provider n1`; a total",
                "inventory delete n1 gpu": "claims use 3",
                "inventory delete n1 gpu.A100": no_inventory.format("gpu.A100"),
                "inventory delete n1 gpuu": no_inventory.format("gpuu"),
                "provider show n9": "'n9' was not found",
                "inventory list --provider n9": "'n9' was not found",
            },
        )
        self.assertEqual([], self.good("audit"))
        self.assertEqual([], self.good("heal"))
        self.good("release", "--project", "p", "--consumer", "c")
        self.assertEqual([8], [one["free"] for one in self.good("inventory", "list")])

    def test_bad_input(self) -> None:
        self.misused("inventory", "set", "n1", "gpu")
        self.refused_each(
            2,
            {
                "provider create any": "any provider",
                "provider create n3 --uuid x": "not a UUID",
                "provider set n1": "which providers it serves",
                "provider set n1 --serves pool": "is no shared pool",
                "provider set n1 --shared --no-pod": "Change either the pod",
                "provider set n1 --no-shared --pod east": "Change either the pod",
                "inventory set n1 gpu=-1": "total -1",
                "inventory set n1 gpu=1 --reserved 2": "reserved 2",
                "inventory set n1 gpu=1 gpu=2": "given twice",
                "inventory set n1 nope=1": "nope",
                "inventory set n1 gpu=1 --allocation-ratio 0": "allocation_ratio",
                "inventory set n1 gpu=1 --allocation-ratio x": "as in 1.5",
                "inventory set n1 gpu=1 --allocation-ratio 1_0": "as in 1.5",
                "reserve --project p --provider n1 gpu=-1": "at least 1",
                "capacity import": "",
                "capacity import x.csv --from placement": "",
                "capacity import x.csv --nested": "",
                "capacity import --from placement": "[placement] lacks auth_type",
                "capacity import nowhere.csv": "cannot be read",
                "capacity show --chart x.pdf": ".png or .svg",
            },
        )

    def test_import(self) -> None:
        path = self.write_file(
            "nodes.csv",
            "provider,resource,total,parent,allocation_ratio,step_size\n"
            "n1,gpu,9,,,\n"
            "n2,gpu,4,n1,1.5,2\n"
            '"a ""node""",fpga,1,n2,,\n',
        )
        before = self.good("inventory", "list")
        planned = self.good("capacity", "import", path, "--dry-run")
        self.assertEqual((before, 1), (self.good("inventory", "list"), len(self.good("provider", "list"))))
        changes = self.good("capacity", "import", path)
        self.assertEqual(planned, changes)
        self.assertEqual(
            ["set inventory", "add provider", "set inventory", "add provider", "set inventory"],
            [change["change"] for change in changes],
        )
        self.assertEqual((8, 9), (changes[0]["before"], changes[0]["after"]))
        self.assertEqual(
            [('a "node"', "fpga", 1, 1, 1), ("n1", "gpu", 9, 9, 1), ("n2", "gpu", 4, 6, 2)],
            self.columns("inventory list", "provider resource total free step_size"),
        )
        before = self.good("inventory", "list")
        self.assertEqual([], self.good("capacity", "import", path))
        self.assertEqual(before, self.good("inventory", "list"))

    def test_import_of_a_shared_pool_and_parents(self) -> None:
        """A parent may be named by its UUID."""
        uuid = "6f1c0f0e-0000-4000-8000-000000000001"
        header = "provider,resource,total,can_host,uuid,parent\n"
        lines = f"pool,gpu,9,false,,\nn2,gpu,9,true,{uuid},\nn3,gpu,9,,,{uuid}\n"
        self.good("capacity", "import", self.write_file("nodes.csv", header + lines))
        expected = [("n1", True, None), ("n2", True, None), ("n3", True, "n2"), ("pool", False, None)]
        self.assertEqual(expected, self.columns("provider list", "name can_host parent"))
        self.good("capacity", "import", self.write_file("nodes.csv", "provider,resource,total\npool,gpu,9\n"))

    def test_a_wrong_file_writes_nothing(self) -> None:
        before = self.good("inventory", "list")
        known = self.good("provider", "show", "n1")["uuid"]
        for text, expected in (
            ("", "first line"),
            ("provider,resource\nn1,gpu\n", "first line"),
            ("provider,resource,total,colour\nn1,gpu,1,red\n", "colour"),
            ("provider,resource,total\nn2,gpu,1\nn1,gpu,x\n", "line 3: Invalid total 'x'"),
            ("provider,resource,total\nn2,gpu,1\nn1,gpu\n", "line 3"),
            ("provider,resource,total\nn2,gpu,1\nn2,gpu,2\n", "two inventories"),
            ("provider,resource,total\nn2,nope,1\n", "nope"),
            ("provider,resource,total,parent\nn2,gpu,1,n9\n", "n9"),
            ("provider,resource,total,pod\nn2,gpu,1,p9\n", "p9"),
            ("provider,resource,total,pod\nn2,gpu,1,a\nn2,fpga,1,b\n", "differ"),
            ("provider,resource,total,allocation_ratio\nn2,gpu,1,1.23456\n", "decimal places"),
            ("provider,resource,total\nn2,gpu,99999999999\n", "line 2"),
            ("provider,resource,total\nn2,gpu,1\nany,gpu,1\n", "line 3: Invalid provider 'any'"),
            ("provider,resource,total,uuid\nn2,gpu,1,\nn3,gpu,1,x\n", "line 3: Invalid provider UUID"),
            ('provider,resource,total\n"n2,gpu,1\n', "CSV"),
            ("provider,resource,total,can_host\nn2,gpu,1,maybe\n", "line 2: can_host must be true or false"),
            (f"provider,resource,total,uuid\nn2,gpu,1,\nn1,gpu,8,\nn5,gpu,4,{known}\n", "stored provider 'n1'"),
        ):
            status = 1 if expected in ("n9", "p9") else 2
            self.assertIn(
                expected, self.refused(status, "capacity", "import", self.write_file("nodes.csv", text)), text
            )
            self.assertEqual(before, self.good("inventory", "list"), text)
            self.assertEqual(["n1"], [one["name"] for one in self.good("provider", "list")], text)


class ReportTest(base.CliTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.configure("[limits]\ndriver = database\nenforcement_model = strict_hierarchy\nmissing = unlimited")
        self.prepare(
            "provider create n1",
            "inventory set n1 gpu=8 --reserved 1",
            "provider create n2",
            "inventory set n2 gpu=4 --reserved 1",
            "set --default gpu=0",
        )
        for project, parent, limit in (
            ("a", "--no-parent", 20),
            ("a1", "--parent a", 15),
            ("b", "--no-parent", 10),
            ("c", "--no-parent", 8),
        ):
            self.prepare(f"project set {project} {parent}", f"set gpu={limit} {project}")
        self.prepare("reserve --project a1 --provider n1 gpu=3", "reserve --project b gpu=2")

    def test_sums_and_projects(self) -> None:
        """The limit of a1 is within that of a; b holds 2 without a provider, so that 8 remain of its 10."""
        expected = {
            "resource": "gpu", "providers": 2, "total": 12, "reserved": 2, "capacity": 10, "claimed": 3,
            "used_elsewhere": 0, "free": 7, "largest_free": 4, "promised": 38, "oversubscription": 3.8, "not_served": 3,
        }  # fmt: skip
        self.assertEqual([expected], self.good("capacity", "show"))
        self.assertEqual(
            [("a", 20, 3, 17, 10), ("b", 10, 2, 8, 1), ("c", 8, 0, 8, 1)],
            self.columns("capacity show --projects", "project_id limit held remaining missing"),
        )

    def test_a_total_limit_bounds_what_is_promised(self) -> None:
        """5 of the total of 14 are held, so that no project may still get more than 9, of which 7 are free."""
        self.prepare("set --total gpu=14")
        figures = self.columns("capacity show", "promised oversubscription not_served")
        self.assertEqual([(14, 1.4, 3)], figures)
        self.assertEqual(
            [("a", 9, 2), ("b", 8, 1), ("c", 8, 1)],
            self.columns("capacity show --projects", "project_id remaining missing"),
        )
        for line, promised in (
            ("set --total gpu=50", 38),
            ("set gpu=5 d --until 2990-01-01T00:00Z", 43),  # d has only an override
            ("set gpu=-1 a", 50),
        ):
            self.prepare(line)
            self.assertEqual([(promised,)], self.columns("capacity show", "promised"), line)
        # An overfull provider has nothing free: what it lacks is not taken from what others have.
        self.prepare("inventory set n1 gpu=2")
        self.assertEqual([(6, 3, 3, 3)], self.columns("capacity show", "total claimed free largest_free"))

    def test_unlimited_and_without_capacity(self) -> None:
        self.prepare("set --default fpga=0", "set gpu=-1 fpga=3 a")
        self.assertEqual(
            [("fpga", 0, 3, None, 1), ("gpu", 10, -1, None, 2)],
            self.columns("capacity show", "resource capacity promised oversubscription not_served"),
        )
        self.assertIn("unlimited", self.call("capacity", "show").out)

    def test_the_chart(self) -> None:
        path = self.directory / "c.png"
        ended = self.call("capacity", "show", "--chart", str(path), "-f", "csv")
        self.assertEqual((0, ""), (ended.status, ended.err))
        self.assertTrue(path.read_bytes().startswith(b"\x89PNG"))
        self.assertEqual('"gpu",2,12,2,10,3,0,7,4,38,3.8,3', ended.out.splitlines()[1])
