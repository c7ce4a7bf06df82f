# SPDX-License-Identifier: Apache-2.0
"""The commands on reservations, through the command line."""

from __future__ import annotations

from tests.cli import base

NOBODY = "00000000-0000-4000-8000-000000000000"
COLUMNS = ["uuid", "project_id", "resource", "delta", "state", "consumer", "group", "source", "expire"]


class ReservationTest(base.CliTestCase):
    def reserve(self, *more: str) -> str:
        return str(self.good("reserve", "--project", "p1", *more)[0]["uuid"])

    def state(self, uuid: str) -> str:
        return str(self.good("reservation", "show", uuid)["state"])

    def test_reserve_prints_its_reservations(self) -> None:
        made = self.good("reserve", "--project", "p1", "--consumer", "c", "--group", "g", "gpu=1", "fpga=2")
        self.assertEqual([COLUMNS, COLUMNS], [list(one) for one in made])
        self.assertEqual(
            [("p1", "gpu", 1, "reserved", "c", "g"), ("p1", "fpga", 2, "reserved", "c", "g")],
            [tuple(one.values())[1:7] for one in made],
        )
        self.configure("[quota]\nresources = gpu.A100,odd=name")
        made = self.columns("reserve --project p1 gpu.A100=1 odd=name=2", "resource delta")
        self.assertEqual([("gpu.A100", 1), ("odd=name", 2)], made)

    def test_over_quota_is_one_line_with_all_violations(self) -> None:
        self.limit("gpu:2,fpga:0")
        line = self.refused(1, "reserve", "--project", "p1", "gpu=3", "fpga=1")
        self.assertEqual(
            "cyborg-quota: Quota exceeded: "
            "project p1, resource fpga: limit 0, used 0, reserved 0, requested 1; "
            "project p1, resource gpu: limit 2, used 0, reserved 0, requested 3\n",
            line,
        )
        self.assertEqual([], self.good("reservation", "list"))

    def test_resize_transfer_and_a_name(self) -> None:
        uuid = self.reserve("gpu=1")
        self.good("commit", uuid, "--known-as", "volume")
        who = ("--project", "p1", "--consumer", "volume")
        resized = self.columns("resize --project p1 --consumer volume gpu=3 --expect gpu=1", "uuid delta state")
        self.assertEqual([(uuid, 3, "committed")], resized)
        self.assertIn("holds gpu=3", self.refused(1, "resize", *who, "gpu=4", "--expect", "gpu=1"))
        resized = self.columns(f"resize --reservation {uuid} gpu=2", "uuid consumer delta")
        self.assertEqual([(uuid, "volume", 2)], resized)
        for _ in range(2):
            moved = self.columns("transfer --project p1 --consumer volume --to-project p2", "uuid project_id consumer")
            self.assertEqual([(uuid, "p2", "volume")], moved)
        self.assertIn("'volume' was not found", self.refused(1, "resize", *who, "gpu=4"))

    def test_bad_amounts_and_selections(self) -> None:
        for amount in ("gpu", "gpu=", "=1", "gpu=x", "gpu=1.5", "gpu=\u0661", "gpu=1_0", f"gpu={'9' * 5000}"):
            self.assertIn("RESOURCE=AMOUNT", self.misused("reserve", "--project", "p1", amount))
        self.misused("reserve", "--project", "p1")
        self.misused("reserve", "gpu=1")
        self.refused_each(
            2,
            {
                "reserve --project p1 gpu=2147483648": "at most 2147483647",
                "reserve --project p1 gpu=99999999999": "at most 2147483647",
                "reserve --project p1 gpu=0": "at least 1",
                "reserve --project p1 gpu=1 gpu=1": "given twice",
                "reserve --project p1 tpu=1": "Unknown resource 'tpu'",
                "resize --project p1 --consumer c gpu=0": "at least 1",
                "resize --project p1 gpu=4": "either the consumer or the reservation",
                "resize --project p1 --consumer c --reservation r gpu=4": "not allowed with",
                "resize --consumer c gpu=4": "names a project",
                "commit --project p2 --group g --known-as x": "needs the UUIDs",
                "reservation list --state lost": "lost",
            },
        )
        for call in ("commit", "rollback", "release", "extend"):
            for selection in ([], [NOBODY, "--consumer", "c", "--project", "p1"]):
                self.assertIn("Select the reservations by", self.refused(2, call, *selection))
            self.assertIn("--group needs --project", self.refused(2, call, "--group", "g"))

    def test_commit_rollback_and_release_by_uuid(self) -> None:
        one, two, three = (self.reserve("gpu=1") for _ in range(3))
        self.prepare(f"commit {one} {two}", f"commit {one}", f"rollback {three}", f"release {two}")
        self.assertEqual(["committed", "released", "rolled_back"], [self.state(uuid) for uuid in (one, two, three)])
        self.refused_each(
            1,
            {
                f"rollback {one}": "was committed; release it instead",
                f"commit {three}": "was rolled back",
                f"commit {two}": "was released",
            },
        )

    def test_settling_by_consumer_and_by_group(self) -> None:
        one = self.reserve("--consumer", "c1", "--group", "g", "gpu=1")
        two = self.reserve("--consumer", "c2", "--group", "g", "gpu=1")
        self.good("commit", "--project", "p1", "--consumer", "c1")
        self.assertEqual(["committed", "reserved"], [self.state(one), self.state(two)])
        self.prepare("release --project p1 --group g", "release --project p1 --consumer nobody")
        self.assertEqual(["released", "rolled_back"], [self.state(one), self.state(two)])
        commits = [f"commit --project p1 --{kind} nobody" for kind in ("consumer", "group")]
        self.refused_each(1, dict.fromkeys(commits, "Reservation, consumer or group 'nobody' was not found."))

    def test_extend_and_expire(self) -> None:
        uuid = self.reserve("--consumer", "c", "--expire", "60", "gpu=1")
        times = self.columns(f"reservation show {uuid}", "expire")
        for line in (f"extend {uuid} --expire 3600", "extend --project p1 --consumer c"):
            self.prepare(line)
            times += self.columns(f"reservation show {uuid}", "expire")
        self.assertEqual(sorted({*times}), times)
        for expire in ("soon", "-5", "0"):
            error = self.refused(2, "extend", uuid, "--expire", expire)
            self.assertIn(f"Argument --expire: '{expire}': write an integer from 1 to 3153600000.", error)
        self.make_overdue()
        self.reserve("gpu=1")
        self.assertEqual([{"expired": 1}, {"expired": 0}], [self.good("expire") for _ in range(2)])
        self.assertIn("has expired", self.refused(1, "commit", uuid))

    def test_list_shows_rows_that_match_all_filters(self) -> None:
        one = self.reserve("--consumer", "c1", "--group", "g", "gpu=1")
        two = self.reserve("--consumer", "c2", "--group", "g", "gpu=1")
        self.prepare(f"commit {two}", "reserve --project p2 gpu=1")
        for more, expected in (
            ("--project p1", [one, two]),
            ("--state committed", [two]),
            ("--project p1 --consumer c1", [one]),
            ("--group g --limit 1", [one]),
            ("--project p3", []),
        ):
            self.assertEqual(expected, [row["uuid"] for row in self.good("reservation", "list", *more.split())], more)
        self.assertEqual(3, len(self.good("reservation", "list")))

    def test_show(self) -> None:
        uuid = self.reserve("gpu=1")
        shown = self.good("reservation", "show", uuid)
        self.assertEqual([*COLUMNS, "created_at", "ended_at", "provider"], list(shown))
        self.assertEqual([None, None], [shown["consumer"], shown["ended_at"]])
        self.assertRegex(shown["expire"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
        self.assertIn("was not found", self.refused(1, "reservation", "show", NOBODY))
        self.good("commit", uuid)
        self.assertIsNone(self.good("reservation", "show", uuid)["expire"])
        self.assertTrue(self.call("reservation", "list", "-f", "csv").out.endswith(',"committed","","","",""\n'))
