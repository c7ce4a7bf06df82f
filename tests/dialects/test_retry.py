# SPDX-License-Identifier: Apache-2.0
"""A call that is repeated, by its caller or by a retry, takes effect once."""

from __future__ import annotations

from collections.abc import Callable

from cyborg_quota import ANY, exceptions
from tests import base, hooks


class TestLostCommit(base.LedgerTestCase):
    """The answer to a successful COMMIT is lost: the call is retried, and takes effect once."""

    def lose(self, times: int = 1) -> hooks.LostCommits:
        self.quotas.check(self.context, {"gpu": 1})
        return self.useFixture(hooks.LostCommits(self.engine, self.backend, times))

    def test_calls_that_charge(self) -> None:
        """At the limit: the retry finds the limit reached, by its own first attempt."""
        quotas, context, claims = self.quotas, self.context, [base.claim("a", gpu=1), base.claim(None, gpu=2, fpga=1)]
        calls: dict[str, tuple[Callable[[], list[str]], tuple[int, int]]] = {
            "without a consumer": (lambda: quotas.reserve(context, {"gpu": 3}), (0, 3)),
            "with a consumer": (lambda: quotas.reserve(context, {"gpu": 3}, consumer="a"), (0, 3)),
            "several claims": (lambda: quotas.reserve_many(context, claims, group="g"), (0, 3)),
            "adopt": (lambda: quotas.adopt(base.ADMIN, claims, "p1"), (3, 0)),
            "at a provider": (lambda: quotas.reserve(context, {"gpu": 3}, provider="n1"), (0, 3)),
            "at any provider": (lambda: quotas.reserve(context, {"gpu": 3}, provider=ANY, consumer="a"), (0, 3)),
        }
        self.add_provider("n1", gpu=3)
        self.limits.own[None, "gpu"] = 3
        for name, (call, figures) in calls.items():
            lost = self.lose()
            uuids = call()
            self.assertEqual((1, figures), (lost.lost, self.figures()), name)
            self.assertEqual([len(uuids)], [len(self.engine.list_reservations(base.ADMIN, reservations=uuids))])
            self.quotas.release(self.context, uuids)
            self.assertEqual([], [row for row in self.quotas.get_reservations(context) if row.ended_at is None], name)

    def test_reserve_for_one_consumer_that_holds_it_and_one_that_does_not(self) -> None:
        (held,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="a")
        lost = self.lose()
        uuids = self.quotas.reserve_many(self.context, [base.claim("a", gpu=1), base.claim("b", gpu=2)])
        self.assertEqual((1, (0, 3)), (lost.lost, self.figures()))
        self.assertEqual(held, uuids[0])

    def test_several_times(self) -> None:
        lost = self.lose(3)
        uuids = self.quotas.reserve(self.context, {"gpu": 2})
        self.quotas.commit(self.context, uuids)
        self.quotas.release(self.context, uuids)
        self.assertEqual((3, (0, 0)), (lost.lost, self.figures()))

    def test_changes_of_what_is_held(self) -> None:
        """A resize, a transfer, and a commit with a name."""
        quotas, context = self.quotas, self.context
        uuids = quotas.reserve(context, {"gpu": 1}, group="g")
        calls: list[Callable[[], object]] = [
            lambda: quotas.commit(context, uuids, known_as="volume"),
            lambda: quotas.resize(context, {"gpu": 4}, consumer="volume", expected={"gpu": 1}),
            lambda: quotas.transfer(base.ADMIN, "p2", "p1", consumer="volume"),
        ]
        figures = [((1, 0), (0, 0)), ((4, 0), (0, 0)), ((0, 0), (4, 0))]
        for call, expected in zip(calls, figures, strict=True):
            lost = self.lose()
            call()
            self.assertEqual((1, expected), (lost.lost, (self.figures("p1"), self.figures("p2"))))

    def test_commit_of_an_overdue_reservation(self) -> None:
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 2})
        self.make_overdue(uuid)
        lost = self.lose()
        self.assertRaises(exceptions.ReservationExpired, self.quotas.commit, self.context, [uuid])
        self.assertEqual((1, ["expired"]), (lost.lost, self.states(uuid)))

    def test_fold(self) -> None:
        for _ in range(3):
            self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 2}))
        lost = self.lose()
        self.quotas.purge(base.ADMIN, 0)
        self.assertEqual((1, (6, 0)), (lost.lost, self.figures()))
