# SPDX-License-Identifier: Apache-2.0
"""What is charged, what is refused, and what a caller is told."""

from __future__ import annotations

import traceback

import testscenarios

from cyborg_quota import UNLIMITED, Claim, Constraint, Over, Usage, exceptions
from cyborg_quota.types import MAX_AMOUNT
from tests import base, hooks

load_tests = testscenarios.load_tests_apply_scenarios


class TestLimits(base.LedgerTestCase):
    """A request passes, or is told every reason why not."""

    def hold(self, project_id: str = "p1", **deltas: int) -> list[str]:
        """Committed usage, as a set-up."""
        context = base.Context(project_id)
        uuids = self.quotas.reserve(context, deltas)
        self.quotas.commit(context, uuids)
        return uuids

    def refused(self, deltas: dict[str, int], **named: object) -> exceptions.OverQuota:
        return self.assertRaises(
            exceptions.OverQuota, self.quotas.reserve, self.context, deltas, **named
        )

    def test_the_example_of_the_specification(self) -> None:
        self.limits.limits[None, "fpga"] = 5
        self.hold(fpga=3)
        uuids = self.quotas.reserve(self.context, {"fpga": 2})
        self.assertEqual((3, 2), self.figures(resource="fpga"))
        error = self.refused({"fpga": 1})
        self.assertEqual(
            "Quota exceeded: project p1, resource fpga: limit 5, used 3, reserved 2, requested 1",
            str(error),
        )
        self.quotas.commit(self.context, uuids)
        self.assertEqual((5, 0), self.figures(resource="fpga"))

        error = self.refused({"fpga": 1})

        self.assertEqual([Over("p1", "fpga", "project", 5, 1, 5, 0)], error.overs)
        over = error.overs[0]
        self.assertEqual((5, 0, None), (over.used, over.reserved, over.subtree))
        self.assertIn("limit 5, used 5, reserved 0, requested 1", str(error))

    def test_up_to_the_limit_and_not_one_more(self) -> None:
        self.limits.limits[None, "gpu"] = 4
        self.quotas.reserve(self.context, {"gpu": 4})
        self.refused({"gpu": 1})
        self.assertEqual((0, 4), self.figures())

    def test_all_that_is_over_is_named_and_sorted(self) -> None:
        self.limits.limits.update({(None, "gpu"): 1, (None, "fpga"): 0, (None, "gpu.A100"): 7})

        error = self.refused({"gpu.A100": 8, "gpu": 2, "fpga": 1})

        named = [(over.resource, over.limit, over.requested) for over in error.overs]
        self.assertEqual([("fpga", 0, 1), ("gpu", 1, 2), ("gpu.A100", 7, 8)], named)
        for resource in ("fpga", "gpu", "gpu.A100"):
            self.assertIn(f"resource {resource}:", str(error))

    def test_only_what_is_over_is_named(self) -> None:
        self.limits.limits.update({(None, "gpu"): 1, (None, "fpga"): 9})
        error = self.refused({"gpu": 2, "fpga": 1})
        self.assertEqual(["gpu"], [over.resource for over in error.overs])

    def test_a_refusal_shows_nothing_of_how_it_was_found(self) -> None:
        """An internal exception stood above it in every traceback."""
        self.limits.limits[None, "gpu"] = 0
        error = self.refused({"gpu": 1})
        self.assertNotIn("_Refused", "".join(traceback.format_exception(error)))

    def test_none_of_the_resources_is_charged(self) -> None:
        self.limits.limits[None, "gpu"] = 1
        self.refused({"fpga": 3, "gpu": 2})
        self.assertEqual((0, 0), self.figures(resource="fpga"))
        self.assertEqual([], self.quotas.list_reservations(base.ADMIN))

    def test_none_of_the_claims_is_charged(self) -> None:
        self.limits.limits[None, "gpu"] = 3
        claims = [base.claim("a", gpu=2), base.claim("b", gpu=2, fpga=1)]

        error = self.assertRaises(
            exceptions.OverQuota, self.quotas.reserve_many, self.context, claims
        )

        self.assertEqual(4, error.overs[0].requested)
        self.assertEqual([], self.quotas.list_reservations(base.ADMIN))
        self.assertEqual((0, 0), self.figures())

    def test_zero_is_a_limit(self) -> None:
        self.limits.limits[None, "gpu"] = 0
        self.assertEqual(0, self.refused({"gpu": 1}).overs[0].limit)
        self.assertEqual(Usage(0, 0, 0), self.quotas.get_usages(self.context)["gpu"])

    def test_unlimited(self) -> None:
        self.limits.limits[None, "gpu"] = UNLIMITED
        self.quotas.reserve(self.context, {"gpu": 1000000})
        usage = self.quotas.get_usages(self.context)["gpu"]
        self.assertEqual((UNLIMITED, 1000000, None), (usage.limit, usage.reserved, usage.available))

    def test_a_limit_of_one_project_binds_that_project(self) -> None:
        self.limits.limits.update({(None, "gpu"): 1, ("p2", "gpu"): 5})
        self.quotas.reserve(base.Context("p2"), {"gpu": 5})
        self.refused({"gpu": 2})

    def test_a_lowered_limit(self) -> None:
        """Nothing new passes; what is there can be settled and freed as ever (I6)."""
        held = self.hold(gpu=4)
        first, second = (self.quotas.reserve(self.context, {"gpu": 2}) for _ in range(2))
        self.limits.limits[None, "gpu"] = 3

        self.assertEqual(-5, self.quotas.get_usages(self.context)["gpu"].available)
        self.refused({"gpu": 1})
        self.quotas.commit(self.context, first)
        self.assertEqual((6, 2), self.figures())
        self.quotas.rollback(self.context, second)
        self.quotas.release(self.context, held)
        self.assertEqual((2, 0), self.figures())
        self.quotas.reserve(self.context, {"gpu": 1})

    def test_negative_deltas_pass_any_limit(self) -> None:
        self.hold(gpu=4)
        self.limits.limits[None, "gpu"] = 0
        uuids = self.quotas.reserve(self.context, {"gpu": -1})
        self.quotas.commit(self.context, uuids)
        self.assertEqual((3, 0), self.figures())

    def test_expiry_passes_any_limit(self) -> None:
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 4})
        self.limits.limits[None, "gpu"] = 0
        self.make_overdue(uuid)
        self.assertEqual(1, self.quotas.expire(base.ADMIN))
        self.assertEqual((0, 0), self.figures())

    def test_a_limit_beyond_all_integers(self) -> None:
        self.limits.limits[None, "gpu"] = 2**80
        self.limits.subtree_limits["p1", "gpu"] = 2**80
        self.quotas.reserve(self.context, {"gpu": 1})
        self.assertEqual((0, 1), self.figures())

    def test_the_tighter_of_two_constraints(self) -> None:
        self.limits.limits[None, "gpu"] = 5
        self.limits.subtree_limits["p1", "gpu"] = 3
        error = self.refused({"gpu": 4})
        self.assertEqual([("subtree", 3)], [(over.scope, over.limit) for over in error.overs])
        self.quotas.reserve(self.context, {"gpu": 3})

    def test_a_stranger_s_constraint_is_a_fault_of_the_driver(self) -> None:
        self.limits.get_constraints = lambda path, resources: [  # type: ignore[method-assign]
            Constraint("p2", "gpu", 5)
        ]
        self.assertRaises(
            exceptions.ConfigurationError, self.quotas.reserve, self.context, {"gpu": 1}
        )


class TestCheck(base.LedgerTestCase):
    """check() says what reserve() would, and writes nothing."""

    def both(self, deltas: dict[str, int]) -> list[Over]:
        """What check says, after proof that reserve says the same."""
        found = self.quotas.check(self.context, deltas)
        try:
            uuids = self.quotas.reserve(self.context, deltas)
        except exceptions.OverQuota as error:
            self.assertEqual(found, error.overs)
            self.assertEqual(list(map(str, found)), list(map(str, error.overs)))
        else:
            self.assertEqual([], found)
            self.quotas.rollback(self.context, uuids)
        return found

    def test_room(self) -> None:
        self.limits.limits[None, "gpu"] = 2
        self.assertEqual([], self.both({"gpu": 2}))

    def test_over(self) -> None:
        self.limits.limits.update({(None, "gpu"): 2, (None, "fpga"): 0})
        self.quotas.reserve(self.context, {"gpu": 1})
        found = self.both({"gpu": 2, "fpga": 1})
        self.assertEqual(
            [("fpga", 0, 0), ("gpu", 0, 1)], [(o.resource, o.used, o.reserved) for o in found]
        )

    def test_unlimited_and_negative(self) -> None:
        self.limits.limits.update({(None, "gpu"): UNLIMITED, (None, "fpga"): 0})
        self.assertEqual([], self.both({"gpu": 10**9, "fpga": -1}))

    def test_writes_nothing(self) -> None:
        self.quotas.check(base.Context("never seen"), {"gpu": 1})
        with self.sql.connect() as connection:
            for table in ("quota_usages", "reservations", "projects"):
                self.assertEqual(
                    0, connection.exec_driver_sql(f"SELECT COUNT(*) FROM {table}").scalar()
                )


class TestShapes(base.LedgerTestCase):
    """What a call gives back, and how its parts belong together."""

    def test_the_order_of_uuids(self) -> None:
        claims = [
            base.claim("z", gpu=1, fpga=2),
            base.claim(None, gpu=3),
            Claim("a", {"gpu.A100": 4, "fpga": 5}),
        ]

        uuids = self.quotas.reserve_many(self.context, claims)

        rows = {row.uuid: row for row in self.quotas.list_reservations(base.ADMIN)}
        self.assertEqual(
            [
                ("z", "gpu", 1),
                ("z", "fpga", 2),
                (None, "gpu", 3),
                ("a", "gpu.A100", 4),
                ("a", "fpga", 5),
            ],
            [(rows[uuid].consumer, rows[uuid].resource, rows[uuid].delta) for uuid in uuids],
        )
        self.assertEqual(5, len(rows))

    def test_the_order_of_uuids_of_a_repeated_call(self) -> None:
        first = self.quotas.reserve(self.context, {"gpu": 1, "fpga": 2}, consumer="c")
        again = self.quotas.reserve(self.context, {"fpga": 2, "gpu": 1}, consumer="c")
        self.assertEqual(first, again[::-1])

    def test_one_group_of_several_consumers(self) -> None:
        claims = [base.claim("a", gpu=1), base.claim("b", gpu=2, fpga=1)]
        self.quotas.reserve_many(self.context, claims, group="g")
        self.quotas.commit(self.context, consumer="a")
        self.quotas.rollback(self.context, consumer="b")
        rows = self.quotas.list_reservations(base.ADMIN, group="g")
        self.assertEqual(["committed", "rolled_back", "rolled_back"], [row.state for row in rows])

    def test_groups_of_claims(self) -> None:
        """A claim's own, else the call's; of what is adopted too."""
        claims = [Claim("a", {"gpu": 1, "fpga": 1}, group="g1"), Claim("b", {"gpu": 1}), Claim("c", {"gpu": 1}, "g2")]
        self.quotas.reserve_many(self.context, claims, group="g")
        self.quotas.adopt(base.ADMIN, [Claim("d", {"gpu": 1}, "g2")], self.context.project_id, group="g")
        rows = self.quotas.list_reservations(base.ADMIN)
        expected = [("a", "g1"), ("a", "g1"), ("b", "g"), ("c", "g2"), ("d", "g2")]
        self.assertEqual(expected, sorted((str(row.consumer), str(row.group)) for row in rows))
        self.quotas.release(self.context, group="g2")
        self.assertEqual((0, 2), self.figures())

    def test_claims_from_a_generator(self) -> None:
        uuids = self.quotas.reserve_many(self.context, (base.claim(n, gpu=1) for n in "ab"))
        self.assertEqual(2, len(uuids))

    def test_usages(self) -> None:
        self.limits.limits[None, "gpu"] = 9
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 3}))
        self.quotas.reserve(self.context, {"gpu": 2, "fpga": 1})

        usages = self.quotas.get_usages(self.context)

        self.assertEqual(["fpga", "gpu", "gpu.A100"], list(usages))
        self.assertEqual(
            [Usage(UNLIMITED, 0, 1), Usage(9, 3, 2), Usage(UNLIMITED, 0, 0)], list(usages.values())
        )
        self.assertEqual([None, 4, None], [usage.available for usage in usages.values()])

    def test_usages_of_a_resource_no_longer_registered(self) -> None:
        self.quotas.register_resource("vpu")
        self.quotas.reserve(self.context, {"vpu": 1})
        self.assertEqual(1, self.make_engine().get_usages(self.context)["vpu"].reserved)

    def test_usage_list(self) -> None:
        for name in ("p2", "p1"):
            self.quotas.reserve(base.Context(name), {"gpu": 1, "fpga": 2})
        self.limits.limits["p2", "gpu"] = 6
        found = [
            (u.project_id, u.resource, u.usage.limit) for u in self.quotas.list_usages(base.ADMIN)
        ]
        self.assertEqual(
            [("p1", "fpga", -1), ("p1", "gpu", -1), ("p2", "fpga", -1), ("p2", "gpu", 6)], found
        )
        one = self.quotas.list_usages(base.ADMIN, "p2")
        self.assertEqual(["p2", "p2"], [u.project_id for u in one])


class TestRetry(base.LedgerTestCase):
    """A call retried with the same consumers is charged once (I7)."""

    def test_several_consumers(self) -> None:
        claims = [base.claim("a", gpu=1), base.claim("b", fpga=2, gpu=3)]
        first = self.quotas.reserve_many(self.context, claims)
        self.assertEqual(first, self.quotas.reserve_many(self.context, claims))
        self.assertEqual((0, 4), self.figures())

    def test_at_the_limit(self) -> None:
        self.limits.limits[None, "gpu"] = 3
        first = self.quotas.reserve(self.context, {"gpu": 3}, consumer="a")
        self.assertEqual(first, self.quotas.reserve(self.context, {"gpu": 3}, consumer="a"))

    def test_one_more_consumer_than_before(self) -> None:
        (first,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="a")
        uuids = self.quotas.reserve_many(
            self.context, [base.claim("b", gpu=2), base.claim("a", gpu=1), base.claim(None, gpu=4)]
        )
        self.assertEqual(first, uuids[1])
        self.assertEqual((0, 7), self.figures())

    def test_one_consumer_has_something_else(self) -> None:
        self.quotas.reserve(self.context, {"gpu": 1}, consumer="a")
        claims = [base.claim("b", gpu=2), base.claim("a", gpu=5)]
        error = self.assertRaises(
            exceptions.ReservationConflict, self.quotas.reserve_many, self.context, claims
        )
        self.assertEqual("a", error.consumer)
        self.assertIn("gpu=1", str(error))
        self.assertEqual((0, 1), self.figures())

    def test_the_same_consumer_of_another_project(self) -> None:
        (mine,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="a")
        (theirs,) = self.quotas.reserve(base.Context("p2"), {"gpu": 2}, consumer="a")
        self.assertNotEqual(mine, theirs)

    def test_a_negative_delta(self) -> None:
        first = self.quotas.reserve(self.context, {"gpu": -1}, consumer="a")
        self.assertEqual(first, self.quotas.reserve(self.context, {"gpu": -1}, consumer="a"))


class TestLostCommit(base.LedgerTestCase):
    """The COMMIT was done, its answer was lost: the call is done again by itself, and nothing is done twice."""

    def lose(self, times: int = 1) -> hooks.LostCommits:
        self.quotas.check(self.context, {"gpu": 1})
        return self.useFixture(hooks.LostCommits(self.engine, self.backend, times))

    def test_reserve(self) -> None:
        for consumer in (None, "c"):
            lost = self.lose()
            (uuid,) = self.quotas.reserve(self.context, {"gpu": 2}, consumer=consumer)
            self.assertEqual(1, lost.lost)
            self.assertEqual(["reserved"], self.states(uuid))
        self.assertEqual((0, 4), self.figures())
        self.assertEqual(2, len(self.quotas.list_reservations(base.ADMIN)))

    def test_reserve_at_the_limit(self) -> None:
        """The second try finds no room: its own first try took it."""
        self.limits.limits[None, "gpu"] = 2
        lost = self.lose()
        self.quotas.reserve(self.context, {"gpu": 2})
        self.assertEqual((1, (0, 2)), (lost.lost, self.figures()))

    def test_reserve_many(self) -> None:
        lost = self.lose()
        uuids = self.quotas.reserve_many(
            self.context, [base.claim("a", gpu=1), base.claim(None, gpu=2, fpga=1)], group="g"
        )
        self.assertEqual((1, (0, 3)), (lost.lost, self.figures()))
        self.assertEqual(["reserved"] * 3, self.states(*uuids))

    def test_reserve_for_one_consumer_that_holds_it_and_one_that_does_not(self) -> None:
        (held,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="a")
        lost = self.lose()
        uuids = self.quotas.reserve_many(
            self.context, [base.claim("a", gpu=1), base.claim("b", gpu=2)]
        )
        self.assertEqual((1, (0, 3)), (lost.lost, self.figures()))
        self.assertEqual(held, uuids[0])

    def test_adopt(self) -> None:
        lost = self.lose()
        self.quotas.adopt(base.ADMIN, [base.claim("a", gpu=2)], "p1")
        self.assertEqual((1, (2, 0)), (lost.lost, self.figures()))

    def test_several_times(self) -> None:
        lost = self.lose(3)
        uuids = self.quotas.reserve(self.context, {"gpu": 2})
        self.quotas.commit(self.context, uuids)
        self.quotas.release(self.context, uuids)
        self.assertEqual((3, (0, 0)), (lost.lost, self.figures()))

    def settle(self, call: str, state: str, figures: tuple[int, int]) -> None:
        other = self.quotas.reserve(self.context, {"gpu": 8}, consumer="other")
        uuids = self.quotas.reserve(self.context, {"gpu": 2}, consumer="c", group="g")
        self.quotas.commit(self.context, other)
        lost = self.lose()
        self.assertIsNone(getattr(self.quotas, call)(self.context, group="g"))
        self.assertEqual((1, [state]), (lost.lost, self.states(*uuids)))
        self.assertEqual(figures, self.figures())

    def test_commit(self) -> None:
        self.settle("commit", "committed", (10, 0))

    def test_rollback(self) -> None:
        self.settle("rollback", "rolled_back", (8, 0))

    def test_release_of_what_is_in_flight(self) -> None:
        self.settle("release", "rolled_back", (8, 0))

    def test_extend(self) -> None:
        self.settle("extend", "reserved", (8, 2))

    def test_release(self) -> None:
        uuids = self.quotas.reserve(self.context, {"gpu": 2, "fpga": 1}, consumer="c")
        self.quotas.commit(self.context, uuids)
        lost = self.lose()
        self.quotas.release(self.context, consumer="c")
        self.assertEqual(1, lost.lost)
        self.assertEqual(["released"] * 2, self.states(*uuids))
        self.assertEqual((0, 0), self.figures())

    def test_commit_of_what_is_overdue(self) -> None:
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 2})
        self.make_overdue(uuid)
        lost = self.lose()
        self.assertRaises(exceptions.ReservationExpired, self.quotas.commit, self.context, [uuid])
        self.assertEqual((1, ["expired"]), (lost.lost, self.states(uuid)))

    def test_commit_of_a_clamped_negative_delta(self) -> None:
        uuids = self.quotas.reserve(self.context, {"gpu": -2})
        lost = self.lose()
        self.quotas.commit(self.context, uuids)
        self.assertEqual((1, (0, 0)), (lost.lost, self.figures()))
        self.assertEqual([-2, 2], [row.delta for row in self.quotas.list_reservations(base.ADMIN)])

    def test_fold(self) -> None:
        for _ in range(3):
            self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 2}))
        lost = self.lose()
        self.quotas.purge(base.ADMIN, 0)
        self.assertEqual((1, (6, 0)), (lost.lost, self.figures()))


class TestNegative(base.LedgerTestCase):
    """A negative delta frees something when it is committed, and never below zero."""

    def hold(self, amount: int) -> None:
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": amount}))

    def test_in_flight_it_counts_nowhere(self) -> None:
        self.hold(3)
        self.quotas.reserve(self.context, {"gpu": -2})
        self.assertEqual((3, 0), self.figures())

    def test_committed(self) -> None:
        self.hold(3)
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -2}))
        self.assertEqual((1, 0), self.figures())

    def test_rolled_back_or_expired(self) -> None:
        self.hold(3)
        first, second = (self.quotas.reserve(self.context, {"gpu": -2}) for _ in range(2))
        self.quotas.rollback(self.context, first)
        self.make_overdue(*second)
        self.assertEqual(1, self.quotas.expire(base.ADMIN))
        self.assertEqual((3, 0), self.figures())

    def test_room_for_others_only_after_its_commit(self) -> None:
        self.limits.limits[None, "gpu"] = 3
        self.hold(3)
        uuids = self.quotas.reserve(self.context, {"gpu": -2})
        self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {"gpu": 2})
        self.quotas.commit(self.context, uuids)
        self.quotas.reserve(self.context, {"gpu": 2})

    def test_clamped_at_zero_with_an_adjustment(self) -> None:
        self.hold(3)
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -5}))
        self.assertEqual((0, 0), self.figures())
        rows = self.quotas.list_reservations(base.ADMIN, state="committed")
        self.assertEqual([3, -5, 2], [row.delta for row in rows])
        self.assertIsNone(rows[-1].consumer)

    def test_clamped_beside_what_is_in_flight(self) -> None:
        self.quotas.reserve(self.context, {"gpu": 4})
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -1}))
        self.assertEqual((0, 4), self.figures())

    def test_released(self) -> None:
        self.hold(3)
        uuids = self.quotas.reserve(self.context, {"gpu": -2})
        self.quotas.commit(self.context, uuids)
        self.quotas.release(self.context, uuids)
        self.assertEqual((3, 0), self.figures())

    def test_release_of_the_positive_after_the_negative(self) -> None:
        uuids = self.quotas.reserve(self.context, {"gpu": 3})
        self.quotas.commit(self.context, uuids)
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -2}))
        self.quotas.release(self.context, uuids)
        self.assertEqual((0, 0), self.figures())
        self.hold(2)
        self.assertEqual((2, 0), self.figures())

    def test_mixed_in_one_claim(self) -> None:
        self.hold(3)
        self.limits.limits[None, "gpu"] = 0
        uuids = self.quotas.reserve(self.context, {"gpu": -1, "fpga": 2})
        self.assertEqual([(3, 0), (0, 2)], [self.figures(), self.figures(resource="fpga")])
        self.quotas.commit(self.context, uuids)
        self.assertEqual([(2, 0), (2, 0)], [self.figures(), self.figures(resource="fpga")])

    def test_mixed_in_one_call(self) -> None:
        self.limits.limits[None, "gpu"] = 3
        self.hold(3)
        claims = [base.claim("a", gpu=1), base.claim("b", gpu=-1)]
        error = self.assertRaises(
            exceptions.OverQuota, self.quotas.reserve_many, self.context, claims
        )
        self.assertEqual(1, error.overs[0].requested)


class TestOverflow(base.LedgerTestCase):
    """A counter is 32 bits wide on each database, and says so before it is passed."""

    def assert_overflow(self, call: object, *args: object) -> None:
        before = self.quotas.list_reservations(base.ADMIN)
        error = self.assertRaises(exceptions.UsageOverflow, call, *args)
        self.assertEqual(("p1", "gpu"), (error.project_id, error.resource))
        self.assertIn("2147483647", str(error))
        self.assertEqual(before, self.quotas.list_reservations(base.ADMIN))

    def test_full(self) -> None:
        self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.assertEqual((0, MAX_AMOUNT), self.figures())

    def test_one_more_than_reserved(self) -> None:
        self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.assert_overflow(self.quotas.reserve, self.context, {"gpu": 1})
        self.assertEqual((0, MAX_AMOUNT), self.figures())

    def test_more_than_used_and_reserved(self) -> None:
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT - 1}))
        self.quotas.reserve(self.context, {"gpu": 1})
        self.assert_overflow(self.quotas.reserve, self.context, {"fpga": 1, "gpu": 1})
        self.assertEqual((0, 0), self.figures(resource="fpga"))

    def test_under_a_limit_that_is_larger(self) -> None:
        self.limits.limits[None, "gpu"] = 2**40
        self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.assert_overflow(self.quotas.reserve, self.context, {"gpu": 1})

    def test_adopt(self) -> None:
        self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.assert_overflow(self.quotas.adopt, base.ADMIN, [base.claim("a", gpu=1)], "p1")

    def test_full_can_be_settled(self) -> None:
        uuids = self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.quotas.commit(self.context, uuids)
        self.assertEqual((MAX_AMOUNT, 0), self.figures())
        self.quotas.release(self.context, uuids)
        self.assertEqual((0, 0), self.figures())

    def test_the_most_negative(self) -> None:
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -MAX_AMOUNT}))
        self.assertEqual((0, 0), self.figures())


class TestAdopt(base.LedgerTestCase):
    """Charges what is attached already, whatever the limits."""

    CLAIMS = [base.claim("a", gpu=2), base.claim("b", gpu=1, fpga=1)]

    def test_ignores_limits(self) -> None:
        self.limits.limits[None, "gpu"] = 0
        uuids = self.quotas.adopt(base.ADMIN, self.CLAIMS, "p1", group="g")
        self.assertEqual(["committed"] * 3, self.states(*uuids))
        self.assertEqual([(3, 0), (1, 0)], [self.figures(), self.figures(resource="fpga")])

    def test_again(self) -> None:
        first = self.quotas.adopt(base.ADMIN, self.CLAIMS, "p1")
        self.assertEqual(first, self.quotas.adopt(base.ADMIN, self.CLAIMS, "p1"))
        self.assertEqual((3, 0), self.figures())

    def test_conflict(self) -> None:
        self.quotas.reserve(self.context, {"gpu": 7}, consumer="b")
        error = self.assertRaises(
            exceptions.ReservationConflict, self.quotas.adopt, base.ADMIN, self.CLAIMS, "p1"
        )
        self.assertEqual(("b", {"gpu": 7}), (error.consumer, error.held))
        self.assertEqual((0, 7), self.figures())

    def test_does_not_expire(self) -> None:
        uuids = self.quotas.adopt(base.ADMIN, self.CLAIMS, "p1")
        rows = self.quotas.list_reservations(base.ADMIN, reservations=uuids)
        self.assertEqual([None] * 3, [row.expire for row in rows])
        self.assertEqual(0, self.quotas.expire(base.ADMIN))

    def test_released_as_any_other(self) -> None:
        self.quotas.adopt(base.ADMIN, self.CLAIMS, "p1")
        self.quotas.release(self.context, consumer="b")
        self.assertEqual((2, 0), self.figures())

    def test_negative(self) -> None:
        self.assertRaises(
            exceptions.InvalidDelta,
            self.quotas.adopt,
            base.ADMIN,
            [base.claim("a", gpu=-1)],
            "p1",
        )
