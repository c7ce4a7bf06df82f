# SPDX-License-Identifier: Apache-2.0
"""Minimums: what a project can always reach, whatever its siblings do; on every database.

Delimiter's define_resource(name, max, min, ...), Cyborg's quota specification ("prevent situation where users in a
project get starved"), and Kueue's issue 1224, as tests. G1, G2 and H1 after random calls, and in races of processes.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import random
from typing import Any
from unittest import mock

from cyborg_quota import exceptions
from cyborg_quota.limits import minimum_rules
from cyborg_quota.limits.document import read
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import Flat
from cyborg_quota.limits.sources.config import ConfigLimitDriver, NoopLimitDriver
from cyborg_quota.types import MAX_AMOUNT, TOTAL, UNLIMITED
from tests import base, fixtures, hooks
from tests.base import ADMIN
from tests.functional import test_limits
from tests.race.test_races import reserve_and_settle, reserve_until_refused
from tests.race.workers import PATIENT, once, race

RACERS = 8
NOW, DAY = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)


class Subtrees(Flat):
    """Each limit is one of the subtree, whatever the limits of others are."""

    bounds_subtree = True


class MinimumsTestCase(test_limits.LimitsTestCase):
    policy = Subtrees
    initial = InitialLimits(child=None, root=None)

    def setUp(self) -> None:
        super().setUp()
        self.set(None, -1)

    def keep(self, project_id: str, minimum: int, resource: str = "gpu") -> None:
        self.admin.set_minimums(ADMIN, {resource: minimum}, project_id)
        self.assert_invariants()

    def refuse(self, project_id: str, amount: int) -> exceptions.OverQuota:
        context = base.Context(project_id)
        return self.assertRaises(exceptions.OverQuota, self.quotas.reserve, context, {"gpu": amount})

    def problems(self, call: Any, *arguments: Any, **options: Any) -> list[str]:
        """Why the enforcement model refuses a change."""
        return self.assertRaises(exceptions.LimitRefused, call, ADMIN, *arguments, **options).problems

    def give_back(self, project_id: str) -> None:
        """Release all that a project holds."""
        self.quotas.release(base.Context(project_id), [row.uuid for row in _live(self.engine, project_id)])

    def promised(self, project_id: str) -> int:
        query = "SELECT promised FROM quota_usages WHERE project_id = :p AND resource = 'gpu'"
        return int(self.fetch(query, p=project_id)[0][0])


class TestScenarios(MinimumsTestCase):
    scenarios = fixtures.ON_SQLITE

    policy = Flat

    def test_a_project_that_asks_late_gets_its_minimum(self) -> None:
        """4 devices, two projects with the limit 4: without a minimum, the first one takes all."""
        self.set(None, 4)
        self.admin.set_total_limits(ADMIN, {"gpu": 4})
        self.hold("first", 4)
        self.refuse("second", 1)
        self.give_back("first")
        self.keep("second", 2)
        error = self.refuse("first", 3)
        self.assertEqual([(TOTAL, 2)], [(over.project_id, over.promised) for over in error.overs])
        self.hold("first", 2)
        self.hold("second", 2)
        self.refuse("second", 1)
        self.refuse("first", 1)
        self.give_back("second")
        self.refuse("first", 1)
        self.keep("second", 0)
        self.hold("first", 2)

    def test_a_flat_limit_bounds_no_descendants(self) -> None:
        """Those of another project do not exceed it; what it keeps for them neither."""
        self.make_tree({"project": None, "user": "project"})
        self.set("project", 3)
        self.hold("user", 4)
        self.keep("user", 5)
        self.assertEqual([], self.admin.list_over(ADMIN))
        self.admin.set_limits(ADMIN, {"gpu": 3}, "user", force=True)
        self.assertEqual(["user"], [row.project_id for row in self.admin.list_over(ADMIN)])


class CohortTestCase(MinimumsTestCase):
    """Kueue's example: a cohort of 20, of which one team keeps some, and does not lend what it does not use."""

    def setUp(self) -> None:
        super().setUp()
        self.make_tree({"cohort": None, "a": "cohort", "b": "cohort"})
        self.set("cohort", 20)


class TestTree(CohortTestCase):
    """The rules. TestRandomCalls and TestRandomImports execute the statements on each database."""

    scenarios = fixtures.ON_SQLITE

    def test_more_than_can_be_counted(self) -> None:
        """Also where nothing is limited: a dry run and the call refuse it with the same error."""
        names = ("c1", "c2", "c3", "c4", "c5")
        self.import_tree(
            {"top": None, **dict.fromkeys(names, "top")}, dict.fromkeys(("top", *names), UNLIMITED), gpu=-1
        )
        for name in names[:4]:
            self.keep(name, MAX_AMOUNT)
        for dry_run in (True, False):
            found = self.problems(self.admin.set_minimums, {"gpu": MAX_AMOUNT}, "c5", dry_run=dry_run)
            self.assertIn("top can keep 3 more gpu", found[0])

    def test_siblings_cannot_take_what_is_kept(self) -> None:
        """Users do not see what descendants are promised, nor which one it is."""
        self.keep("a", 8)
        self.assertEqual(8, self.promised("cohort"))
        context = base.Context("cohort")
        [over] = self.engine.check(context, {"gpu": 13})
        self.assertEqual((None, 0, 12), (over.subtree, over.promised, over.fits))
        self.assertEqual({0}, {record.promised for record in self.engine.get_detail(context)})
        self.hold("b", 12)
        error = str(self.refuse("b", 1))
        self.assertEqual((True, False), ("promised 8" in error, "project a," in error), error)
        self.hold("a", 8)
        self.assertEqual(["cohort"], self.blockers("a"))
        self.give_back("a")
        self.assertEqual((8, 12), (self.promised("cohort"), self.subtrees()["cohort"]))
        self.assertEqual(([], ["cohort"]), (self.blockers("a", 8), self.blockers("b")))

    def test_bad_input_and_a_dry_run_write_nothing(self) -> None:
        for minimums in ({}, [("gpu", 1)], {"gpu": -1}, {"gpu": 2**31}, {"gpu": "4"}, {"": 1}):
            self.assertRaises(exceptions.InvalidRequest, self.admin.set_minimums, ADMIN, minimums, "a")  # type: ignore[arg-type]
        self.assertRaises(exceptions.UnknownResource, self.admin.set_minimums, ADMIN, {"tpu": 1}, "a")
        self.assertRaises(exceptions.NotAuthorized, self.admin.set_minimums, base.Context("a"), {"gpu": 1}, "a")
        for without_minimums in (NoopLimitDriver(), ConfigLimitDriver({"gpu": 4})):
            limits = fixtures.open_engine(self, self.url, without_minimums).limits
            self.assertRaises(exceptions.LimitsReadOnly, limits.set_minimums, ADMIN, {"gpu": 1}, "a")
        [change] = self.admin.set_minimums(ADMIN, {"gpu": 8}, "a", dry_run=True)
        self.assertEqual(("set minimum", 0, 8), (change.action, change.before, change.after))
        self.problems(self.admin.set_minimums, {"gpu": 21}, "a", dry_run=True)
        self.assertEqual([], self.fetch("SELECT * FROM quota_usages"))

    def test_a_minimum_is_refused_that_cannot_be_kept(self) -> None:
        self.hold("b", 12)
        self.keep("a", 5)
        self.assertEqual(
            ["cohort can keep 3 more gpu: limit 20, used 12, promised 5, needed 4"],
            self.problems(self.admin.set_minimums, {"gpu": 9}, "a"),
        )
        self.keep("a", 8)
        self.set("b", 12)
        found = self.problems(self.admin.set_minimums, {"gpu": 13}, "b")
        self.assertIn("the minimum of b in gpu would be 13; its limit is 12", found)
        self.keep("b", 12)  # what it holds already
        self.give_back("b")
        self.assertEqual((20, 0), (self.promised("cohort"), self.subtrees()["cohort"]))

    def test_limits_that_could_not_keep_it_are_refused(self) -> None:
        self.hold("b", 5)
        self.keep("a", 8)
        for project_id, limit, problem in (
            ("a", 7, "its minimum is 8"),
            ("cohort", 12, "5 are used there, and 8 more are promised to minimums"),
        ):
            found = self.problems(self.admin.set_limits, {"gpu": limit}, project_id)
            self.assertIn(f"the limit of {project_id} in gpu would be {limit}; {problem}", found)
        self.set("cohort", 13)
        self.admin.set_limits(ADMIN, {"gpu": 12}, "cohort", force=True)
        self.set("cohort", 12)
        self.assertEqual(["cohort"], [row.project_id for row in self.admin.list_over(ADMIN)])
        self.assertEqual(([], ["cohort"]), (self.blockers("a", 8), self.blockers("b")))
        # A limit that was forced below the minimum does not prevent a lower minimum.
        self.admin.set_limits(ADMIN, {"gpu": 6}, "a", force=True)
        self.keep("a", 7)

    def test_a_higher_limit_needs_no_force(self) -> None:
        """A limit that was forced below the minimum, or below what is promised, may rise in steps."""
        self.keep("a", 8)
        self.hold("b", 3)
        for project_id, forced in (("a", 4), ("cohort", 9)):
            self.admin.set_limits(ADMIN, {"gpu": forced}, project_id, force=True)
            self.override(project_id, forced, 0, 1)
            self.override(project_id, forced + 1, 1, 2)
            refused = self.assertRaises(exceptions.LimitRefused, self.override, project_id, forced - 1, 1, 2)
            self.assertIn(f"the limit of {project_id} in gpu would be {forced - 1}; ", refused.problems[0])
            # Lower than one that applies later, although higher than the limit without it.
            self.override(project_id, forced + 2, 4, 5)
            self.assertRaises(exceptions.LimitRefused, self.override, project_id, forced + 1, 2, 6)
            self.override(project_id, forced + 1, 2, 4)
            self.override(project_id, -1, 2, 6)
            self.assertRaises(exceptions.LimitRefused, self.override, project_id, forced + 1, 3, 5)

    def test_a_limit_above_the_inherited_one_needs_no_force(self) -> None:
        self.keep("a", 8)
        self.admin.set_limits(ADMIN, {"gpu": 4}, force=True)
        self.set("a", 6)
        found = self.problems(self.admin.unset_limit, "gpu", "a")
        self.assertEqual(["the limit of a in gpu would be 4; its minimum is 8"], found)
        self.set(None, 5)

    def override(self, project_id: str, limit: int, first: int, last: int) -> None:
        """Set the limit from one day, counted from today, until another one."""
        start, until = (NOW + days * DAY for days in (first, last))
        self.admin.set_overrides(ADMIN, {"gpu": limit}, project_id, until, start=start)

    def test_a_total_below_what_is_promised_is_refused(self) -> None:
        """A new one, and one that is lowered."""
        self.keep("cohort", 8)
        self.problems(self.admin.set_total_limits, {"gpu": 7})
        self.assertEqual([], self.admin.list_total_limits(ADMIN))
        self.admin.set_total_limits(ADMIN, {"gpu": 8})
        self.assert_invariants()
        problem = "the limit of all projects in gpu would be 7; 0 are used there, and 8 more are promised to minimums"
        for dry_run in (True, False):
            setting = functools.partial(self.admin.set_total_limits, dry_run=dry_run)
            self.assertEqual([problem], self.problems(setting, {"gpu": 7}))
        self.admin.set_total_limits(ADMIN, {"gpu": 7}, force=True)
        self.assertEqual([], self.blockers("cohort", 8))

    def test_a_move_takes_it_along(self) -> None:
        self.make_tree({"other": None})
        self.set("other", 10)
        self.keep("a", 8)
        self.hold("a", 2)
        self.hold("other", 3)
        problem = "other can keep 7 more gpu: limit 10, used 3, promised 0, needed 8"
        for found in (
            self.problems(self.admin.move_project, "a", "other"),
            self.problems(self.admin.import_projects, {"a": "other"}, dry_run=True),
            self.problems(self.admin.import_projects, {"a": "other"}),
        ):
            self.assertEqual([problem], found)
        self.set("other", 11)
        self.admin.move_project(ADMIN, "a", "other")
        self.assert_invariants()
        self.assertEqual((0, 6), (self.promised("cohort"), self.promised("other")))
        self.assertEqual((["other"], []), (self.blockers("other"), self.blockers("a", 6)))

    def test_a_move_to_a_root_is_bounded_by_the_total(self) -> None:
        """The old parent keeps its minimum. That of the project counts beside it, and so does what the project uses."""
        self.admin.set_total_limits(ADMIN, {"gpu": 10})
        self.keep("cohort", 8)
        self.keep("a", 8)
        beginning = "all projects together can keep 2 more gpu: limit 10, used"
        self.assertIn(f"{beginning} 0, promised 8", self.problems(self.admin.move_project, "a", None)[0])
        self.keep("a", 0)
        self.hold("a", 8)
        self.assertIn(f"{beginning} 8, promised 0", self.problems(self.admin.move_project, "a", None)[0])

    def test_a_move_does_not_take_the_limit_below_it(self) -> None:
        """As a child, the project would have the initial limit 0."""
        self.make_tree({"alone": None})
        self.engine.limits.require_stored().initial_limits = InitialLimits(child=0)
        self.set(None, 9)
        self.keep("alone", 5)
        found = self.problems(self.admin.move_project, "alone", "cohort")
        self.assertIn("the limit of alone in gpu would be 0; its minimum is 5", found)

    def test_without_a_limit_above_it_keeps_nothing(self) -> None:
        self.make_tree({"alone": None})
        self.set("alone", 9)
        self.keep("alone", 5)
        bounds = [self.admin.bounds_of_minimums(ADMIN, project_id, ["gpu"]) for project_id in ("alone", "a")]
        self.assertEqual([{"gpu": None}, {"gpu": ("cohort", 20)}], bounds)


class TestCounters(CohortTestCase):
    def test_what_descendants_alone_exceed_is_listed(self) -> None:
        """Of a project that has neither usage nor a limit of its own: its limit is the default."""
        self.make_tree({"pool": None, "c": "pool", "d": "pool"})
        self.admin.set_total_limits(ADMIN, {"gpu": 9})
        self.keep("c", 3)
        self.hold("d", 2)
        self.admin.set_limits(ADMIN, {"gpu": 4}, force=True)
        [row] = self.admin.list_over(ADMIN)
        self.assertEqual(
            ("pool", 0, 2, 3, 4, -1), (row.project_id, row.used, row.subtree, row.promised, row.limit, row.available)
        )
        self.give_back("d")
        self.assertEqual([], self.admin.list_over(ADMIN))
        self.admin.set_limits(ADMIN, {"gpu": 2}, force=True)
        self.assertEqual(["pool"], [row.project_id for row in self.admin.list_over(ADMIN)])
        self.keep("c", 0)
        self.hold("d", 2)
        self.set(None, 1)
        found, following = list[str](), ("", "")
        while following is not None:
            rows, following = self.admin.over_page(ADMIN, following, 1)
            found += [row.project_id for row in rows]
        self.assertEqual(["d", "pool"], found)

    def test_a_total_that_is_not_counted_yet(self) -> None:
        """Between the steps of setting it, or after a crash there."""
        self.keep("cohort", 4)
        self.hold("cohort", 2)
        self.admin.set_total_limits(ADMIN, {"gpu": 20})
        self.execute("DELETE FROM project_limits WHERE project_id = :total", total=TOTAL)
        self.execute("UPDATE quota_usages SET subtree = 0, promised = 0 WHERE project_id = :total", total=TOTAL)
        engine = self.make_limited()
        engine.commit(base.Context("cohort"), engine.reserve(base.Context("cohort"), {"gpu": 3}))
        engine.limits.set_minimums(ADMIN, {"gpu": 6}, "cohort")
        self.admin.set_total_limits(ADMIN, {"gpu": 20})
        self.assert_invariants()

    def test_a_tampered_counter_is_found_and_repaired(self) -> None:
        self.keep("a", 8)
        self.hold("a", 2)
        self.execute("UPDATE quota_usages SET promised = 1 WHERE project_id = 'cohort'")
        [drift] = self.engine.audit(ADMIN)
        self.assertEqual((1, 6), (drift.recorded and drift.recorded.promised, drift.expected.promised))
        self.engine.heal(ADMIN)
        self.assert_invariants()
        self.execute("UPDATE quota_usages SET promised = 1 WHERE project_id = 'cohort'")
        self.hold("a", 6)  # (promised would be negative: the row is recounted)

    def test_a_refused_transfer_names_what_it_would_exceed(self) -> None:
        """Not the cohort, of which the transfer changes less than the amount."""
        self.set("b", 7)
        self.quotas.reserve(base.Context("a"), {"gpu": 8}, consumer="c")
        self.hold("a", 2)
        self.hold("cohort", 2)
        for minimum, limit, expected in ((2, 12, ["b"]), (4, 14, ["b"]), (4, 13, ["b", "cohort"])):
            self.keep("a", minimum)
            self.set("cohort", limit)
            error = self.assertRaises(exceptions.OverQuota, self.quotas.transfer, ADMIN, "b", "a", consumer="c")
            self.assertEqual(expected, [over.project_id for over in error.overs])
        self.set("b", 8)
        error = self.assertRaises(exceptions.OverQuota, self.quotas.transfer, ADMIN, "b", "a", consumer="c")
        self.assertEqual([("cohort", 12, 0)], [(over.project_id, over.subtree, over.promised) for over in error.overs])
        self.set("cohort", 14)
        self.quotas.transfer(ADMIN, "b", "a", consumer="c")
        self.assertEqual((2, 12), (self.promised("cohort"), self.subtrees()["cohort"]))

    def test_a_project_that_is_removed_keeps_nothing(self) -> None:
        self.keep("a", 8)
        self.admin.remove_project(ADMIN, "a")
        self.assert_invariants()
        self.assertEqual(0, self.promised("cohort"))
        actions = [entry.action for entry in self.admin.history(ADMIN, "a")]
        self.assertEqual(["remove project", "set minimum", "set minimum", "add project"], actions)


class ImportTestCase(MinimumsTestCase):
    def load(self, document: dict[str, Any]) -> list[str]:
        """Import it. Returns the problems. The dry run before it writes nothing, and says the same.

        What is refused changes nothing.
        """
        tables = ("limit_defaults", "project_limits", "projects", "quota_usages", "changes")
        stored = [[self.fetch(f"SELECT * FROM {name} ORDER BY 1, 2") for name in tables]]
        found = []
        for dry_run in (True, False):
            try:
                changes, problems = self.admin.import_limits(ADMIN, document, dry_run=dry_run), list[str]()
            except exceptions.LimitRefused as error:
                changes, problems = list(error.changes), error.problems
            found.append(([(one.action, one.key, one.before, one.after) for one in changes], problems))
            stored.append([self.fetch(f"SELECT * FROM {name} ORDER BY 1, 2") for name in tables])
        self.assertEqual(*found)
        self.assertEqual(*stored[:2])
        if problems:
            self.assertEqual(*stored[1:])
        self.assert_invariants()
        return problems


class TestImports(ImportTestCase):
    """The cohort (20) has a, and b, which holds 6; the other root (10) holds 3."""

    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.make_tree({"cohort": None, "a": "cohort", "b": "cohort", "other": None})
        for project_id, limit, held in (("cohort", 20, 0), ("b", 20, 6), ("other", 10, 3)):
            self.set(project_id, limit)
            self.hold(project_id, held) if held else None

    def cohort(self, a: dict[str, Any], b: dict[str, Any] | None = None, **cohort: Any) -> dict[str, Any]:
        children = [{"id": "a", **a}, {"id": "b", **(b or {})}]
        return {"projects": [{"id": "cohort", "children": children, **cohort}]}

    def test_what_cannot_be_kept(self) -> None:
        """With the limits, the total and the overrides of the document."""
        span = {"from": (NOW - DAY).isoformat(), "until": (NOW + DAY).isoformat()}
        override = {"resource": "gpu", "limit": 10, **span}
        kept = {"minimums": {"gpu": 14}}
        for document, expected in (
            (
                self.cohort({"minimums": {"gpu": 15}}),
                "cohort can keep 14 more gpu: limit 20, used 6, promised 0, needed 15",
            ),
            (
                self.cohort(kept, {"minimums": {"gpu": 7}}),
                "cohort can keep 0 more gpu: limit 20, used 6, promised 14, needed 1",
            ),
            (
                self.cohort({"minimums": {"gpu": 9}, "limits": {"gpu": 8}}),
                "the minimum of a in gpu would be 9; its limit is 8",
            ),
            (self.cohort(kept, limits={"gpu": 19}), "cohort can keep 13 more gpu: limit 19"),
            (
                {"total": {"gpu": 22}, **self.cohort(kept)},
                "all projects together can keep 13 more gpu: limit 22, used 9, promised 0",
            ),
            (self.cohort({"minimums": {"gpu": 5}}, overrides=[override]), "cohort can keep 4 more gpu: limit 10"),
        ):
            [problem] = self.load(document)
            self.assertIn(expected, problem)
        enough = {"total": {"gpu": 29}, **self.cohort({"minimums": {"gpu": 20}}, limits={"gpu": 26})}
        self.assertEqual([], self.load(enough))
        self.assertEqual(20, self.promised("cohort"))

    def test_what_others_take_meanwhile_is_reported(self) -> None:
        """They reserve after the limits were set, and before the minimum is."""
        document = self.cohort({"minimums": {"gpu": 10}}, limits={"gpu": 21})
        with hooks.Meanwhile(self.admin, "set_minimums", functools.partial(self.hold, "b", 6)):
            error = self.assertRaises(exceptions.LimitRefused, self.admin.import_limits, ADMIN, document)
        self.assertIn("cohort can keep 9 more gpu: limit 21, used 12", error.problems[0])
        self.assertIn("The limits and 0 minimums of the document are set; import it again for the others.", str(error))

    def test_without_a_limit(self) -> None:
        self.admin.unset_limit(ADMIN, "gpu")
        for dry_run in (True, False):
            document = self.cohort({"minimums": {"gpu": 1}}, limits={"gpu": 7})
            self.assertRaises(exceptions.LimitNotSet, self.admin.import_limits, ADMIN, document, dry_run=dry_run)
        self.assertEqual(20, self.admin.path(ADMIN, "cohort")[0].limit)


class TestRandomImports(ImportTestCase):
    """After random calls, an import of a random document does what its dry run has said.

    It is refused exactly if one of its steps is, which are made without that plan.
    """

    def test_each_document(self) -> None:
        chance, outcomes = random.Random(11), []
        names = ["r1", "r2", "a", "b", "c", "d"]
        self.make_tree({"r1": None, "r2": None, "a": "r1", "b": "r1", "c": "a", "d": "a"})
        for _ in range(40 if self.backend == "sqlite" else 15):
            name = chance.choice(names)
            with contextlib.suppress(exceptions.OverQuota):
                self.hold(name, chance.randint(1, 4))
            held = sorted({row.project_id for name in names for row in _live(self.engine, name)})
            if held:
                self.give_back(chance.choice(held))
            document = self.any_document(chance, names)
            problems = self.load(document)
            if problems:
                refused = self.assertRaises(exceptions.LimitRefused, self.make_steps, document)
                self.assertEqual(refused.problems, problems[: len(refused.problems)])
                self.assert_invariants()
            outcomes.append(problems)
        self.assertGreater(min(outcomes.count([]), len(outcomes) - outcomes.count([])), 4, outcomes)

    def make_steps(self, document: dict[str, Any]) -> None:
        """Set the limits, the tree and the totals of the document; then minimums, the lower ones first."""
        minimums = read(document).minimums
        with mock.patch.object(minimum_rules, "plan_import", return_value=([], [])):
            self.admin.import_limits(ADMIN, without_minimums(document))
        rows = {row.project_id: row for row in self.admin.tree(ADMIN)}
        rises = {name: some for name, some in minimums.items() if some["gpu"] > rows[name].minimum}
        for project_id, some in {**{name: minimums[name] for name in minimums.keys() - rises}, **rises}.items():
            self.admin.set_minimums(ADMIN, some, project_id)

    def any_document(self, chance: random.Random, names: list[str]) -> dict[str, Any]:
        """A forest of all projects, with some limits and minimums, and at times a total."""
        entries: dict[str, dict[str, Any]] = {}
        roots = []
        for name in chance.sample(names, len(names)):
            above = chance.choice([None, *entries])
            entries[name] = {"id": name, "children": []}
            (roots if above is None else entries[above]["children"]).append(entries[name])
            if chance.random() < 0.3:
                entries[name]["limits"] = {"gpu": chance.choice([None, -1, *range(2, 16)])}
            if chance.random() < 0.4:
                entries[name]["minimums"] = {"gpu": chance.randint(0, 6)}
        total = {"total": {"gpu": chance.choice([None, *range(5, 25)])}} if chance.random() < 0.4 else {}
        return {"projects": roots, **total}


def without_minimums(entry: dict[str, Any]) -> dict[str, Any]:
    """The document, or an entry of it, without minimums."""
    below = {name: list(map(without_minimums, entry[name])) for name in ("projects", "children") if name in entry}
    return {**{name: value for name, value in entry.items() if name != "minimums"}, **below}


class TestRandomCalls(MinimumsTestCase):
    """G1 and H1 after each of many random calls."""

    STEPS = 120

    def test_each_call(self) -> None:
        chance = random.Random(7)
        names = ["r1", "r2", "a", "b", "c", "d"]
        self.make_tree({"r1": None, "r2": None, "a": "r1", "b": "r1", "c": "a", "d": "a"})
        self.admin.set_total_limits(ADMIN, {"gpu": 25})
        granted = refused = 0
        for _ in range(self.STEPS):
            name, amount = chance.choice(names), chance.randint(1, 6)
            try:
                chance.choice([self._reserve] * 4 + [self._end] * 3 + [self._keep, self._limit, self._move])(
                    name, amount, chance
                )
                granted += 1
            except (exceptions.OverQuota, exceptions.LimitRefused, exceptions.ProjectRefused):
                refused += 1
            self.assert_invariants()
            [total] = self.admin.list_total_limits(ADMIN)
            self.assertLessEqual(total.held + total.promised, total.limit)
            self._check_headroom(chance.choice(names))
        self.assertGreater(min(granted, refused), 5)

    def _reserve(self, name: str, amount: int, chance: random.Random) -> None:
        uuids = self.engine.reserve(base.Context(name), {"gpu": amount})
        if chance.random() < 0.7:
            self.engine.commit(base.Context(name), uuids)

    def _end(self, name: str, amount: int, chance: random.Random) -> None:
        rows = _live(self.engine, name)
        if rows:
            self.engine.release(base.Context(name), [chance.choice(rows).uuid])

    def _keep(self, name: str, amount: int, chance: random.Random) -> None:
        self.admin.set_minimums(ADMIN, {"gpu": amount - 1}, name)

    def _limit(self, name: str, amount: int, chance: random.Random) -> None:
        self.admin.set_limits(ADMIN, {"gpu": amount * 4}, name, force=chance.random() < 0.5)

    def _move(self, name: str, amount: int, chance: random.Random) -> None:
        self.admin.move_project(ADMIN, name, chance.choice([None, "r1", "r2", "a", "b"]))

    def _check_headroom(self, name: str) -> None:
        fits = self.engine.headroom(base.Context(name), name)["gpu"].fits or 0
        if fits:
            self.engine.rollback(base.Context(name), self.engine.reserve(base.Context(name), {"gpu": fits}))
            self.assert_invariants()
        self.refuse(name, fits + 1)


class TestRaces(MinimumsTestCase):
    """Eight processes ask at once: for a sibling of the project with the minimum, and for that project."""

    def setUp(self) -> None:
        super().setUp()
        self.make_tree({"cohort": None, "a": "cohort", "b": "cohort"})
        self.set("cohort", 8)
        self.keep("a", 4)

    def engines(self) -> list[Any]:
        return [self.make_limited(**PATIENT) for _ in range(RACERS)]

    def test_what_is_kept_is_reached(self) -> None:
        jobs = [
            functools.partial(reserve_until_refused, engine, base.Context("a" if number % 2 else "b"))
            for number, engine in enumerate(self.engines())
        ]
        granted = race(*jobs)
        self.assertEqual(8, sum(granted))
        self.assertGreaterEqual(sum(granted[1::2]), 4)
        self.assert_invariants()

    def test_a_sum_that_is_read_first_does_not_keep_it(self) -> None:
        """The naive control: read what is used and promised, compare, and charge without a limit."""
        wait = once(RACERS)
        granted = race(*(functools.partial(_ask_naively, engine, wait) for engine in self.engines()))
        self.assertGreater(sum(granted), 4)
        self.admin.unset_limit(ADMIN, "gpu", "cohort")  # (adopted beyond the limit)

    def test_minimums_change_meanwhile(self) -> None:
        engines = self.engines()
        jobs = [
            functools.partial(_attach, engine, name, seed)
            for seed, (engine, name) in enumerate(zip(engines[:5], "abaab", strict=True))
        ]
        jobs += [functools.partial(_change, engines[5 + number], name, number) for number, name in enumerate("ab")]
        jobs += [functools.partial(_move, engines[7])]
        race(*jobs)
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(ADMIN))


def _live(engine: Any, project_id: str) -> list[Any]:
    return [row for row in engine.list_reservations(ADMIN, project_id) if row.state in ("reserved", "committed")]


def _ask_naively(engine: Any, wait: Any) -> int:
    rows = {row.project_id: row for row in engine.limits.tree(ADMIN, "cohort")}
    promised = max(0, 4 - rows["a"].subtree)
    is_granted = rows["cohort"].subtree + promised + 1 <= 8
    wait()
    if is_granted:
        engine.adopt(ADMIN, [base.claim(f"naive{os.getpid()}", gpu=1)], "b")
    return int(is_granted)


def _attach(engine: Any, project_id: str, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(15):
        reserve_and_settle(engine, project_id, chance)


def _change(engine: Any, project_id: str, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(8):
        with contextlib.suppress(exceptions.LimitRefused):
            engine.limits.set_minimums(ADMIN, {"gpu": chance.randint(0, 4)}, project_id)


def _move(engine: Any) -> None:
    for parent_id in (None, "cohort") * 3:
        with contextlib.suppress(exceptions.LimitRefused):
            engine.limits.move_project(ADMIN, "b", parent_id)
