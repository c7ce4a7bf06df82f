# SPDX-License-Identifier: Apache-2.0
"""The source of the project tree: after a switch of the limit driver, and an import of the tree of another source."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import ClassVar
from unittest import mock

import fixtures as fx

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.limits import changes as limit_changes
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import StrictHierarchy
from cyborg_quota.limits.sources.config import NoopLimitDriver
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from tests import base, fixtures

Parents = Mapping[str, "str | None"]


class DomainLimits(fixtures.DictLimits):
    """Limits of a source that knows ``paths``, by project. ``domains``: those of projects, as Keystone has them."""

    tree_source: ClassVar[str | None] = "keystone"

    def __init__(self, domains: Mapping[str, str]) -> None:
        super().__init__()
        self.paths: dict[str, Sequence[str]] = {name: (name, domain) for name, domain in domains.items()}

    def path_of(self, project_id: str) -> Sequence[str] | None:
        return self.paths.get(project_id)


class TreeSourceTestCase(base.LedgerTestCase):
    """p1 and p2 in the domain dom; ``by_domain`` and ``by_database`` are engines on one ledger."""

    def setUp(self) -> None:
        super().setUp()
        self.source = DomainLimits({"p1": "dom", "p2": "dom"})
        self.by_domain = self.checked(self.source)
        self.by_database = self.checked(DatabaseLimitDriver(StrictHierarchy(), InitialLimits()))
        self.limits = self.by_database.limits

    def checked(self, limits: object) -> QuotaEngine:
        engine = fixtures.open_engine(self, self.url, limits)
        return fixtures.Checked(engine, self.url)  # type: ignore[return-value]

    def charge_by_domain(self, amount: int = 2) -> None:
        for project_id in ("p1", "p2"):
            self.by_domain.reserve(base.Context(project_id), {"gpu": amount})

    def edges(self) -> dict[str, str]:
        found = self.limits.list_projects(base.ADMIN)
        return {project_id: parent_id for project_id, parent_id in found if parent_id is not None}


class TestSwitch(TreeSourceTestCase):
    def test_to_the_database_and_back(self) -> None:
        """The edges stay, and commands change them. A reserve restores those that its source reports."""
        self.charge_by_domain()
        self.limits.set_limit(base.ADMIN, "gpu", 5)
        self.limits.set_limits(base.ADMIN, {"gpu": 4}, "p1")
        error = self.assertRaises(exceptions.OverQuota, self.by_database.reserve, base.Context("p1"), {"gpu": 2})
        self.assertEqual([("dom", 5)], [(over.project_id, over.limit) for over in error.overs])
        self.limits.move_project(base.ADMIN, "p1", None)
        self.assertEqual(({"p2": "dom"}, {"dom": 2, "p1": 2, "p2": 2}), (self.edges(), self.subtrees()))
        self.limits.set_limits(base.ADMIN, {"gpu": 50}, "p1")
        self.by_database.reserve(base.Context("p1"), {"gpu": 3})
        self.source.subtree_limits["dom", "gpu"] = 8
        self.by_domain.reserve(base.Context("p1"), {"gpu": 1})
        self.assertEqual({"dom": 8, "p1": 6, "p2": 2}, self.subtrees())
        error = self.assertRaises(exceptions.OverQuota, self.by_domain.reserve, base.Context("p2"), {"gpu": 1})
        self.assertEqual([("dom", 8)], [(over.project_id, over.limit) for over in error.overs])

    def test_commands_that_edit_the_tree_say_where_it_is_kept(self) -> None:
        self.charge_by_domain()
        administration = self.by_domain.limits
        for edit in (
            lambda: administration.add_project(base.ADMIN, "p3", "dom"),
            lambda: administration.move_project(base.ADMIN, "p1", None),
            lambda: administration.remove_project(base.ADMIN, "p1"),
            lambda: administration.import_projects(base.ADMIN, {"p1": None}),
            lambda: administration.import_projects(base.ADMIN, {"p1": None}, dry_run=True),
        ):
            error = self.assertRaises(exceptions.TreeReadOnly, edit)
            self.assertEqual("keystone", error.source)
            self.assertIn("The project tree is kept in Keystone, because [limits] driver is keystone", str(error))
        self.assertEqual({"p1": "dom", "p2": "dom"}, self.edges())


class TestReserve(TreeSourceTestCase):
    """A reserve puts the project where the source says, as Keystone knows the domain of a project."""

    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.quotas = self.by_domain
        self.source.subtree_limits["dom", "gpu"] = 3

    def test_a_charge_puts_the_project_there_first(self) -> None:
        """With its usage. Calls that no limit can refuse do not read limits."""
        with mock.patch.object(self.source, "path_of", side_effect=AssertionError):
            self.quotas.adopt(base.ADMIN, [base.claim("c", gpu=1)], "p1")
        found = [[over.project_id for over in self.quotas.check(base.ADMIN, {"gpu": n}, "p1")] for n in (2, 3)]
        self.assertEqual([[], ["dom"]], found)
        self.charge_by_domain(1)
        self.assertEqual({"p1": 2, "p2": 1, "dom": 3}, self.subtrees())
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {"gpu": 1})
        self.assertEqual(["dom"], [over.project_id for over in error.overs])
        # The tree is not written again at every charge.
        before = self.fetch("SELECT project_id, generation FROM projects ORDER BY 1")
        self.quotas.release(self.context, consumer="c")
        self.quotas.reserve(self.context, {"gpu": 1})
        self.assertEqual(before, self.fetch("SELECT project_id, generation FROM projects ORDER BY 1"))

    def test_an_edge_that_contradicts_is_replaced(self) -> None:
        """With a log line; the history has the previous parent."""
        self.plant({"team": None, "p1": "team"})
        log = self.useFixture(fx.FakeLogger())
        self.quotas.reserve(self.context, {"gpu": 2})
        self.assertIn("operation=keystone user_id=keystone project_id=p1 before=team after=dom", log.output)
        self.assertEqual({"p1": 2, "dom": 2}, self.subtrees())
        moved = [entry for entry in self.engine.limits.history(base.ADMIN, "p1") if entry.before]
        self.assertEqual([("team", "dom")], [(entry.before, entry.after) for entry in moved])

    def test_new_projects_of_new_parents_do_not_escape_the_limit_above_them(self) -> None:
        """The first reserves of all run at once, two of each project, and each puts its ancestors into the tree."""
        leaves = [f"leaf{number}" for number in range(16)]
        self.source.paths = {leaf: (leaf, f"team{number % 4}", "atlas", "dom") for number, leaf in enumerate(leaves)}

        def reserve(project_id: str) -> None:
            with contextlib.suppress(exceptions.OverQuota):
                self.by_domain.reserve(base.Context(project_id), {"gpu": 1})

        with futures.ThreadPoolExecutor(8) as pool:
            for call in [pool.submit(reserve, project_id) for project_id in leaves for _ in range(2)]:
                call.result()
        self.assert_invariants()
        held = self.subtrees()
        self.assertEqual(((3, 3), 3), ((held["atlas"], held["dom"]), sum(held.get(leaf, 0) for leaf in leaves)))
        expected = {name: parent for path in self.source.paths.values() for name, parent in itertools.pairwise(path)}
        self.assertEqual(expected, self.edges())


class TestReportedPaths(base.LedgerTestCase):
    """Whatever tree the ledger has, a source that reports another path is right, before and after the first reserve."""

    scenarios = fixtures.ON_SQLITE

    def test_random_trees(self) -> None:
        chance = random.Random(30)
        names = [f"r{number}" for number in range(7)]
        source = DomainLimits({})
        own_tree = fixtures.open_engine(self, self.url, NoopLimitDriver()).limits
        quotas: QuotaEngine = fixtures.Checked(fixtures.open_engine(self, self.url, source), self.url)  # type: ignore[assignment]
        for name in names:
            quotas.adopt(base.ADMIN, [base.claim(name, gpu=chance.randint(1, 9))], name)
        for _ in range(12):
            chance.shuffle(names)
            edges = {name: chance.choice([None, *names[:index]]) for index, name in enumerate(names)}
            own_tree.import_projects(base.ADMIN, edges)
            path = chance.sample(names, chance.randint(1, 5))
            source.paths = {path[0]: path}
            source.subtree_limits = {(name, "gpu"): chance.randint(20, 60) for name in path}
            before = self.subtrees()
            room = quotas.headroom(base.ADMIN, path[0])["gpu"]
            overs = quotas.check(base.ADMIN, {"gpu": room.fits + 1}, path[0])
            self.assertEqual(before, self.subtrees(), "nothing is written")
            error = self.assertRaises(
                exceptions.OverQuota, quotas.reserve, base.ADMIN, {"gpu": room.fits + 1}, project_id=path[0]
            )
            self.assertEqual(overs, [dataclasses.replace(one, fits=room.fits) for one in error.overs])
            if room.fits:
                uuids = quotas.reserve(base.ADMIN, {"gpu": room.fits}, project_id=path[0])
                quotas.rollback(base.ADMIN, uuids)
                parents = dict(own_tree.list_projects(base.ADMIN))
                self.assertEqual([*path[1:], None], [parents[name] for name in path])
            self.assertEqual(room, quotas.headroom(base.ADMIN, path[0])["gpu"])


class TestImport(TreeSourceTestCase):
    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.by_noop = self.checked(NoopLimitDriver())

    def import_tree(self, parents: Parents, **options: object) -> list[tuple[str, str | None, str | None, str | None]]:
        changes = self.by_noop.limits.import_projects(base.ADMIN, parents, **options)  # type: ignore[arg-type]
        self.assert_invariants()
        return [(one.action, one.project_id, one.before, one.after) for one in changes]  # type: ignore[misc]

    def test_adds_moves_and_removes_edges(self) -> None:
        self.charge_by_domain()
        wanted: Parents = {"p1": None, "dom": None, "p2": "p3", "p3": "dom", "other": None}
        expected = [
            ("move project", "p1", "dom", None),
            ("add project", "p3", None, "dom"),
            ("move project", "p2", "dom", "p3"),
        ]
        for dry_run, edges in ((True, {"p1": "dom", "p2": "dom"}), (False, {"p2": "p3", "p3": "dom"})):
            self.assertEqual((expected, edges), (self.import_tree(wanted, dry_run=dry_run), self.edges()))
        self.assertEqual({"dom": 2, "p1": 2, "p2": 2, "p3": 2}, self.subtrees())
        self.assertEqual([], self.import_tree(wanted))
        self.assertEqual([], self.import_tree({"p3": "dom", "dom": None}), "what is not named keeps its parent")
        history = self.by_noop.limits.history(base.ADMIN, "p2")
        self.assertEqual(("import", "dom", "p3"), (history[0].operation, history[0].before, history[0].after))

    def test_an_interrupted_import_is_continued(self) -> None:
        self.charge_by_domain()
        wanted: Parents = {"dom": None, "p1": "team", "p2": "team", "team": "dom"}

        with mock.patch.object(limit_changes, "BATCH_PROJECTS", 1):
            interrupt = mock.Mock(side_effect=KeyboardInterrupt)
            self.assertRaises(KeyboardInterrupt, self.import_tree, wanted, progress=interrupt)
            self.assert_invariants()
            self.assertEqual({"p1": "dom", "p2": "dom", "team": "dom"}, self.edges())
            sizes: list[int] = []
            self.assertEqual(["p1", "p2"], [one[1] for one in self.import_tree(wanted, progress=sizes.append)])
        self.assertEqual(([1, 1], {"p1": "team", "p2": "team", "team": "dom"}), (sizes, self.edges()))

    def test_refused_before_the_first_write(self) -> None:
        levels = {f"level{number}": f"level{number - 1}" for number in range(1, 9)}
        for wanted, message in (
            ({"p1": None, "a": "b", "b": "a"}, "would lie below itself"),
            ({"p1": None, **levels}, "Project 'level8' would lie at level 9 of 8."),
        ):
            self.charge_by_domain()
            for dry_run in (True, False):
                error = self.assertRaises(exceptions.ProjectRefused, self.import_tree, wanted, dry_run=dry_run)
                self.assertIn(message, str(error))
            self.assertEqual({"p1": "dom", "p2": "dom"}, self.edges())
        for invalid in ({"": None}, {"p": ""}, {"p": " q"}, {"p": 1}):
            self.assertRaises(exceptions.InvalidName, self.by_noop.limits.import_projects, base.ADMIN, invalid)
        self.assertRaises(exceptions.InvalidRequest, self.by_noop.limits.import_projects, base.ADMIN, ["p"])
        del levels["level8"]
        self.import_tree(levels)
        self.assertEqual(9, len(self.edges()))

    def test_refused_where_the_limits_do_not_fit(self) -> None:
        for project_id, limit in (("dom", 5), ("p1", 3), ("p2", 3)):
            self.limits.set_limit(base.ADMIN, "gpu", limit, project_id)
        wanted = {"p1": "dom", "p2": "dom"}
        for dry_run in (True, False):
            error = self.assertRaises(
                exceptions.LimitRefused, self.limits.import_projects, base.ADMIN, wanted, dry_run=dry_run
            )
            self.assertIn("sum up to 6", str(error))
        self.assertEqual({}, self.edges())
        self.limits.set_limit(base.ADMIN, "gpu", 2, "p2")
        self.limits.import_projects(base.ADMIN, wanted)
        self.assertEqual(wanted, self.edges())

    def test_random_trees(self) -> None:
        """Each import gives exactly the tree that it names, and every batch leaves the counters right."""
        chance = random.Random(7)
        names = [f"r{number}" for number in range(12)]
        # Parent and child change places: no batch closes a cycle, although each edge has a batch of its own.
        with mock.patch.object(limit_changes, "BATCH_PROJECTS", 1):
            for edges in ({"r1": "r0", "r2": "r1"}, {"r2": None, "r1": "r2", "r0": "r1"}):
                self.import_tree(edges)
                self.by_noop.reserve(base.Context("r0"), {"gpu": 1})
        self.assertEqual(({"r1": "r2", "r0": "r1"}, {"r2": 2, "r1": 2, "r0": 2}), (self.edges(), self.subtrees()))
        for _ in range(5):
            chance.shuffle(names)
            wanted: dict[str, str | None] = {}
            for index, name in enumerate(names):
                wanted[name] = chance.choice([None, *names[max(0, index - 3) : index]]) if index % 7 else None
            with mock.patch.object(limit_changes, "BATCH_PROJECTS", chance.randint(1, 5)):
                self.import_tree(wanted, progress=lambda _: self.assert_invariants())
            self.assertEqual({name: parent for name, parent in wanted.items() if parent is not None}, self.edges())
            self.by_noop.reserve(base.Context(chance.choice(names)), {"gpu": 1})
