# SPDX-License-Identifier: Apache-2.0
"""Every cell of the table of calls and states: each call in each state, by UUID, by consumer and by group."""

from __future__ import annotations

import functools
from collections.abc import Callable

import testscenarios

from cyborg_quota import exceptions
from tests import base, fixtures, hooks

OK = None
EXPIRED = exceptions.ReservationExpired
ROLLED_BACK = exceptions.ReservationRolledBack
RELEASED = exceptions.ReservationReleased
COMMITTED = exceptions.ReservationCommitted
NOT_FOUND = exceptions.ReservationNotFound

# call: {state before: (result, state after)}
TABLE: dict[str, dict[str, tuple[type[Exception] | None, str]]] = {
    "commit": {
        "reserved": (OK, "committed"),
        "overdue": (EXPIRED, "expired"),
        "committed": (OK, "committed"),
        "rolled_back": (ROLLED_BACK, "rolled_back"),
        "expired": (EXPIRED, "expired"),
        "released": (RELEASED, "released"),
    },
    "rollback": {
        "reserved": (OK, "rolled_back"),
        "overdue": (OK, "expired"),
        "committed": (COMMITTED, "committed"),
        "rolled_back": (OK, "rolled_back"),
        "expired": (OK, "expired"),
        "released": (OK, "released"),
    },
    "release": {
        "reserved": (OK, "rolled_back"),
        "overdue": (OK, "expired"),
        "committed": (OK, "released"),
        "rolled_back": (OK, "rolled_back"),
        "expired": (OK, "expired"),
        "released": (OK, "released"),
    },
    "extend": {
        "reserved": (OK, "reserved"),
        "overdue": (EXPIRED, "expired"),
        "committed": (OK, "committed"),
        "rolled_back": (ROLLED_BACK, "rolled_back"),
        "expired": (EXPIRED, "expired"),
        "released": (RELEASED, "released"),
    },
    "commit as": {
        "reserved": (OK, "committed"),
        "overdue": (EXPIRED, "expired"),
        "committed": (OK, "committed"),
        "rolled_back": (ROLLED_BACK, "rolled_back"),
        "expired": (EXPIRED, "expired"),
        "released": (RELEASED, "released"),
    },
    "resize": {
        "reserved": (OK, "reserved"),
        "overdue": (EXPIRED, "expired"),
        "committed": (OK, "committed"),
        "rolled_back": (ROLLED_BACK, "rolled_back"),
        "expired": (EXPIRED, "expired"),
        "released": (RELEASED, "released"),
    },
    "expire": {
        "reserved": (OK, "reserved"),
        "overdue": (OK, "expired"),
        "committed": (OK, "committed"),
        "rolled_back": (OK, "rolled_back"),
        "expired": (OK, "expired"),
        "released": (OK, "released"),
    },
}
TABLE["transfer"] = TABLE["resize"]
SELECTED: dict[str, tuple[str, ...]] = {
    "expire": ("all",),
    "commit as": ("uuid",),
    "resize": ("consumer",),
    "transfer": ("consumer",),
}
"""How the calls name a reservation that cannot name it by UUID, by consumer and by group."""
STEPS = {"committed": ("commit",), "released": ("commit", "release"), "rolled_back": ("rollback",)}
"""The calls that bring a reservation to a state."""
COUNTERS = {
    "reserved": (0, 2),
    "committed": (2, 0),
}  # (used, reserved) of two gpus; (0, 0) in any other state


class StateTestCase(base.LedgerTestCase):
    def bring_to(self, state: str) -> str:
        """One reservation of two gpus by consumer c in group g, in that state."""
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 2}, consumer="c", group="g")
        if state in ("overdue", "expired"):
            self.make_overdue(uuid)
        if state == "expired":
            self.assertEqual(1, self.quotas.expire(base.ADMIN))
        for call in STEPS.get(state, ()):
            getattr(self.quotas, call)(self.context, [uuid])
        self.assertEqual(["reserved" if state == "overdue" else state], self.states(uuid))
        return uuid


class TestSettledByAnotherProcess(base.LedgerTestCase):
    """I3: another process commits the reservation after this one has made it, or has read it."""

    def test_committed_meanwhile(self) -> None:
        other = self.make_engine()
        for engine in (self.engine, self.make_engine()):  # the first one knows it; the second one reads it
            kept, uuid = (self.engine.reserve(self.context, {"gpu": 1})[0] for _ in range(2))
            commit = functools.partial(other.commit, self.context, [uuid])
            if engine is self.engine:
                commit()
                self.assertRaises(exceptions.ReservationCommitted, engine.rollback, self.context, [uuid])
            elif self.backend != "sqlite":  # (which has one writer)
                with hooks.Interleaved(engine, "UPDATE reservations", commit):
                    self.assertRaises(exceptions.ReservationCommitted, engine.rollback, self.context, [uuid])
                self.assertEqual((1, 1), self.figures())
            self.assert_invariants()
            self.engine.release(self.context, [kept, uuid])


class TestCalls(StateTestCase):
    """A call on one reservation."""

    scenarios = testscenarios.multiply_scenarios(
        fixtures.SCENARIOS,
        [
            (f"{call},{name}", {"call": call, "by": name})
            for call in TABLE
            for name in SELECTED.get(call, ("uuid", "consumer", "group"))
        ],
        [(state, {"state": state}) for state in TABLE["commit"]],
    )
    call = state = by = ""

    def test_answer(self) -> None:
        uuid = self.bring_to(self.state)
        answer, after = TABLE[self.call][self.state]

        if self.call == "expire":
            if self.state != "reserved":  # (only what is reserved expires, whatever its time)
                self.make_overdue(uuid)
            self.assertEqual(int(self.state == "overdue"), self.quotas.expire(base.ADMIN))
        else:
            calls: dict[str, Callable[..., object]] = {
                "commit as": functools.partial(self.quotas.commit, self.context, known_as="c"),
                "resize": functools.partial(self.quotas.resize, self.context, {"gpu": 2}),
                "transfer": functools.partial(self.quotas.transfer, base.ADMIN, "p2", "p1"),
            }
            method = calls.get(self.call) or functools.partial(getattr(self.quotas, self.call), self.context)
            named = {
                "uuid": {"reservations": [uuid]},
                "consumer": {"consumer": "c"},
                "group": {"group": "g"},
            }[self.by]
            if answer is None:
                self.assertIsNone(method(**named))
            else:
                self.assertEqual(uuid, self.assertRaises(answer, method, **named).uuid)

        self.assertEqual([after], self.states(uuid))
        self.assertEqual(COUNTERS.get(after, (0, 0)), self.figures("p2" if self.call == "transfer" else "p1"))


class TestUnknown(base.LedgerTestCase):
    """An unknown reservation, and one of another project, get the same answer; none of the list is settled."""

    def test_answer(self) -> None:
        (mine,) = self.quotas.reserve(self.context, {"gpu": 1})
        (theirs,) = self.quotas.reserve(base.Context("p2"), {"gpu": 2}, consumer="c", group="g")
        for call in ("commit", "rollback", "release", "extend"):
            method = functools.partial(getattr(self.quotas, call), self.context)
            for other in (theirs, "5b5d71cd-2f3a-44ee-9d33-64a6a5f2a9cc"):
                self.assertEqual(other, self.assertRaises(NOT_FOUND, method, [mine, other]).uuid)
            for named in ({"consumer": "nobody"}, {"group": "nothing"}):
                if call == "release":
                    self.assertIsNone(method(**named))
                else:
                    self.assertRaises(NOT_FOUND, method, **named)
        self.assertEqual(["reserved", "reserved"], self.states(mine, theirs))


class TestReserveAgain(StateTestCase):
    """The same consumer reserves again."""

    scenarios = testscenarios.multiply_scenarios(
        fixtures.SCENARIOS, [(state, {"state": state}) for state in TABLE["commit"]]
    )
    state = ""

    def test_same_deltas(self) -> None:
        uuid = self.bring_to(self.state)

        (again,) = self.quotas.reserve(self.context, {"gpu": 2}, consumer="c", group="g")

        if self.state in ("reserved", "committed"):
            self.assertEqual((uuid, COUNTERS[self.state]), (again, self.figures()))
        else:
            self.assertNotEqual(uuid, again)
            before = "expired" if self.state == "overdue" else self.state
            self.assertEqual(([before, "reserved"], (0, 2)), (self.states(uuid, again), self.figures()))

    def test_other_deltas(self) -> None:
        uuid = self.bring_to(self.state)

        for deltas in ({"gpu": 1}, {"fpga": 2}, {"gpu": 2, "fpga": 1}):
            if self.state in ("reserved", "committed"):
                error = self.assertRaises(
                    exceptions.ReservationConflict,
                    self.quotas.reserve,
                    self.context,
                    deltas,
                    consumer="c",
                )
                self.assertEqual(("c", {"gpu": 2}, deltas), (error.consumer, error.held, error.requested))
                self.assertEqual([self.state], self.states(uuid))
            else:
                fresh = self.quotas.reserve(self.context, deltas, consumer="c")
                self.assertEqual(len(deltas), len(set(fresh) - {uuid}))
                self.quotas.rollback(self.context, fresh)


class TestAllOrNone(base.LedgerTestCase):
    """A list, a consumer or a group is settled completely or not at all; rows already in the state count as settled."""

    def setUp(self) -> None:
        super().setUp()
        self.uuids = self.reserve("g")

    def reserve(self, group: str) -> list[str]:
        claims = [base.claim(f"{group}a", gpu=1), base.claim(f"{group}b", gpu=2), base.claim(f"{group}c", fpga=3)]
        return self.quotas.reserve_many(self.context, claims, group=group)

    def test_one_is_in_another_state(self) -> None:
        """Before the call, and also if it is repeated."""
        for before, index, call, answer, states in (
            ("rollback", 1, "commit", ROLLED_BACK, ["reserved", "rolled_back", "reserved"]),
            ("overdue", 2, "commit", EXPIRED, ["reserved", "reserved", "expired"]),
            ("overdue", 0, "extend", EXPIRED, ["expired", "reserved", "reserved"]),
            ("commit", 0, "commit", OK, ["committed"] * 3),
            ("commit", 0, "rollback", COMMITTED, ["committed", "reserved", "reserved"]),
            ("commit", 0, "release", OK, ["released", "rolled_back", "rolled_back"]),
        ):
            for is_by_name in (True, False):
                group = f"{before} {index} {call} {is_by_name}"
                uuids = self.reserve(group)
                if before == "overdue":
                    self.make_overdue(uuids[index])
                else:
                    getattr(self.quotas, before)(self.context, [uuids[index]])
                named = {"group": group} if is_by_name else {"reservations": uuids}
                for _ in range(2):
                    if answer is OK:
                        getattr(self.quotas, call)(self.context, **named)
                    else:
                        error = self.assertRaises(answer, getattr(self.quotas, call), self.context, **named)
                        self.assertEqual(uuids[index], error.uuid)
                self.assertEqual(states, self.states(*uuids), group)

    def test_a_previous_attempt_is_not_selected(self) -> None:
        """An instance whose old accelerator was detached can attach another one, and commit it by group."""
        self.quotas.commit(self.context, group="g")
        self.quotas.release(self.context, group="g")
        (again,) = self.quotas.reserve(self.context, {"gpu": 4}, consumer="d", group="g")

        self.quotas.commit(self.context, group="g")

        self.assertEqual(["released"] * 3 + ["committed"], self.states(*self.uuids, again))

    def test_a_retried_consumer_is_selected_once(self) -> None:
        """A reservation that expired, of a consumer that reserved again, does not prevent its commit."""
        self.make_overdue(self.uuids[0])
        self.quotas.expire(base.ADMIN)
        self.quotas.reserve(self.context, {"gpu": 1}, consumer="ga", group="g")
        self.quotas.commit(self.context, group="g")
        self.assertEqual((3, 0), self.figures())
