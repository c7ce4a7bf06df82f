# SPDX-License-Identifier: Apache-2.0
"""The differences between charges and attached accelerators, without a ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from oslotest import base as plain

from cyborg_quota.cyborg import diff
from cyborg_quota.cyborg.diff import Observation, Record, Report, format_amounts
from cyborg_quota.types import COMMITTED, Reservation


def charge(uuid: str, project_id: str, resource: str, delta: int, source: str | None = None) -> Reservation:
    return Reservation(uuid, project_id, resource, delta, COMMITTED, None, None, None, None, None, source)


def observe(
    charges: Mapping[str, Sequence[Reservation]], in_flight: Collection[str], bound: Collection[Record]
) -> Iterator[Observation]:
    """Join these in memory, as reconciler.py does for any number of them."""
    attached = {one.arq: one for one in bound}
    for arq in sorted({*charges, *in_flight, *attached}):
        bind = (charge("in flight", "p1", "gpu", 1, "another source"),) if arq in in_flight else ()
        yield Observation(arq, tuple(charges.get(arq, ())), bind, attached.get(arq))


def compare(
    charges: Mapping[str, Sequence[Reservation]],
    in_flight: Collection[str],
    bound: Collection[Record],
    resources: Collection[str],
    source: str | None = None,
) -> Report:
    return diff.compare(observe(charges, in_flight, bound), resources, source, maximum=99)


class TestCompare(plain.BaseTestCase):
    """The comparison, without a ledger."""

    def problems(self, charges: dict[str, list[Reservation]], *attached: Record) -> list[str]:
        report = compare(charges, (), attached, ("gpu", "gpu.A100"))
        return [difference.problem for difference in report.differences]

    def test_kinds(self) -> None:
        bound = Record("a", "p1", "i", {"gpu": 1, "gpu.A100": 1})
        not_counted = Record("a", "p1", "i", {})
        both = [charge("1", "p1", "gpu", 1), charge("2", "p1", "gpu.A100", 1)]
        # An ARQ from before Cyborg stored projects cannot be charged.
        of_nobody = Record("a", None, "i", {"gpu": 1})
        for charges, attached, problems in (
            (both, [bound], []),
            ([], [bound], ["not charged"]),
            (both, [], ["not attached"]),
            (both[:1], [bound], ["wrong amount"]),
            ([*both, charge("3", "p1", "fpga", 1)], [bound], ["wrong amount"]),
            ([charge("1", "p1", "gpu", 2), both[1]], [bound], ["wrong amount"]),
            ([charge("1", "p2", "gpu", 1)], [bound], ["wrong project"]),
            ([*both, charge("3", "p2", "gpu", 1)], [bound], ["wrong project"]),
            ([], [not_counted], []),
            (both[:1], [not_counted], ["wrong amount"]),
            ([], [of_nobody], []),
        ):
            self.assertEqual(problems, self.problems({"a": charges} if charges else {}, *attached))

    def test_not_committed(self) -> None:
        """Bound, and its reservation is still in flight; a reservation of another source or project is not compared."""
        bound = Record("a", "p1", "i", {"gpu": 1})
        own = charge("1", "p1", "gpu", 1, "east")
        [left] = diff.compare([Observation("a", (), (own,))], ("gpu",), "east", maximum=9).differences
        self.assertEqual(("not attached", (own,), True), (left.problem, left.charges, left.is_missing))
        others = charge("2", "p1", "gpu", 1, "west"), charge("3", "p2", "gpu", 1, "east")
        [found] = diff.compare([Observation("a", (), (own, *others), bound)], ("gpu",), "east", maximum=9).differences
        self.assertEqual(("not committed", (own,), True), (found.problem, found.charges, found.is_own))
        for seen in (Observation("a", (), others, bound), Observation("a", (), (own,), Record("a", "p1"))):
            self.assertEqual([], diff.compare([seen], ("gpu",), "east", maximum=9).differences)

    def test_changing(self) -> None:
        """Between two states, a charged ARQ may be attached or not."""
        own = (charge("1", "p1", "gpu", 1),)
        for record, problems in ((Record("a", "p1"), ["not attached"]), (Record("a", "p1", is_changing=True), [])):
            report = diff.compare([Observation("a", own, (), record)], ("gpu",), None, maximum=9)
            self.assertEqual(problems, [one.problem for one in report.differences])
            self.assertEqual((0, False), (report.missing, report.is_empty))

    def test_by_a_removed_rule(self) -> None:
        """No rule has its resource any more. If Cyborg does not know the ARQ, any charge may be right."""
        old = charge("1", "p1", "vgpu", 1)
        new = charge("2", "p1", "gpu", 1)
        bound = Record("a", "p1", "i", {"gpu": 1})
        self.assertEqual(["wrong amount"], self.problems({"a": [old]}, bound))
        self.assertEqual(["wrong amount"], self.problems({"a": [old, new]}, bound))
        self.assertEqual([], self.problems({"b": [old]}))
        [ghost] = compare({"b": [old, new]}, (), (), ("gpu",)).differences
        self.assertEqual(("not attached", (new,)), (ghost.problem, ghost.charges))

    def test_counts_of_one_source(self) -> None:
        """Of a shared ledger: the guards against a wrong database count the charges of the compared source only.

        What is charged correctly without a source, by another program, is no difference, and is counted.
        """
        sources = {"own": "east", "lost": "east", "other": "west", "theirs": "west", "old": None, "nobody's": None}
        charges = {arq: [charge(arq, "p1", "gpu", 1, source)] for arq, source in sources.items()}
        bound = [Record(arq, "p1", "i", {"gpu": 1}) for arq in ("own", "other", "old", "free")]
        report = compare(charges, (), bound, ("gpu",), "east")
        self.assertEqual((2, 1, 1, 1), (report.charged, report.attached, report.missing, report.unclaimed))
        self.assertEqual(0, compare(charges, (), bound, ("gpu",), None).unclaimed)

    def test_a_bounded_number_is_kept(self) -> None:
        """Others do not crowd out what can be repaired; the guards of a repair know the number of all."""
        charges = {
            arq: [charge(arq, "p1", "gpu", 1, None if arq > "l2" else "east")] for arq in ("l0", "l1", "l2", "n0", "n1")
        }
        bound = [Record(f"c{number}", "p1", "i", {"gpu": 1}) for number in range(4)]
        report = diff.compare(observe(charges, (), bound), ("gpu",), "east", maximum=5)
        kept = [difference.arq for difference in report.differences]
        self.assertEqual((["c0", "c1", "c2", "c3", "l0"], ["n0", "n1"]), (kept[:5], kept[5:]))
        self.assertEqual(
            (3, 2, 0, 9, 9),
            (report.missing, report.omitted_own, report.omitted_others, report.total, report.compared),
        )
        report = diff.compare(observe(charges, (), bound), ("gpu",), "east", maximum=1)
        self.assertEqual((6, 1), (report.omitted_own, report.omitted_others))

    def test_shown(self) -> None:
        self.assertEqual("nothing", format_amounts({}))
        amounts = {("p2", "gpu"): 1, ("p1", "gpu.A100"): 1, ("p1", "gpu"): 1}
        self.assertEqual("p1 gpu=1 gpu.A100=1, p2 gpu=1", format_amounts(amounts))
