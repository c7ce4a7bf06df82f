# SPDX-License-Identifier: Apache-2.0
"""Pages of long lists: the database selects the rows of a page, so that a page reads few rows; on every database."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from sqlalchemy.engine import cursor

from cyborg_quota import Claim, exceptions
from tests import base, clouds, fixtures, on_sqlite
from tests.functional import test_limits

PROJECTS = 60
SIZE = 7
RESOURCES = ("fpga", "gpu")


@contextlib.contextmanager
def counted_rows() -> Iterator[Counter[str]]:
    """Count the rows that SQLAlchemy fetches from any database while the block runs, in ``counter["rows"]``."""
    counter: Counter[str] = Counter()

    def counting(name: str) -> Any:
        fetch = getattr(cursor.CursorFetchStrategy, name)

        def fetch_and_count(*arguments: Any, **options: Any) -> Any:
            rows = fetch(*arguments, **options)
            counter["rows"] += len(rows) if isinstance(rows, list) else rows is not None
            return rows

        return mock.patch.object(cursor.CursorFetchStrategy, name, fetch_and_count)

    with counting("fetchone"), counting("fetchmany"), counting("fetchall"):
        yield counter


class PagesTestCase(test_limits.LimitsTestCase):
    def lists(self) -> dict[str, tuple[Callable[..., list[Any]], Callable[[Any], Any]]]:
        """Each list, and the marker of one of its rows."""
        raise NotImplementedError

    def assert_a_page_reads_few_rows(self) -> None:
        for name, (read, marker) in self.lists().items():
            whole = read()
            with counted_rows() as counter:
                page = read(limit=SIZE, after=marker(whole[SIZE]))
            self.assertEqual(whole[SIZE + 1 : 2 * SIZE + 1], page, name)
            # (The headrooms of a page read the edge, the counters and the limits of each of its projects.)
            self.assertLess(counter["rows"], 12 * SIZE, name)

    def assert_pages_add_up(self) -> None:
        for name, (read, marker) in self.lists().items():
            whole, rows = read(), read(limit=5 * SIZE)
            while page := read(limit=5 * SIZE, after=marker(rows[-1])):
                rows += page
            self.assertEqual(whole, rows, name)
            self.assertEqual([], read(limit=0), name)

    def assert_one_resource(self, *names: str) -> None:
        for name in names:
            read, marker = self.lists()[name]
            expected = [row for row in read() if row.resource == "gpu"]
            self.assertEqual(expected, read(resource="gpu"), name)
            self.assertEqual(expected[4:6], read(resource="gpu", after=marker(expected[3]), limit=2), name)


class TestPages(PagesTestCase):
    """PROJECTS projects, each with usage rows, limits and overrides of gpu and fpga."""

    def setUp(self) -> None:
        super().setUp()
        names = [f"p{number:03}" for number in range(PROJECTS)]
        override = {"limit": 4, "until": "2090-01-01T00:00Z"}
        overrides = [{"resource": resource, **override} for resource in RESOURCES]
        entries = [{"id": name, "limits": {"fpga": 5, "gpu": 5}, "overrides": overrides} for name in names]
        self.admin.import_limits(base.ADMIN, {"defaults": {"fpga": 9, "gpu": 9}, "projects": entries})
        clouds.add_usages(self.sql, [(name, resource, "") for name in names for resource in RESOURCES])

    def lists(self) -> dict[str, tuple[Callable[..., list[Any]], Callable[[Any], Any]]]:
        """Each list, and the marker of one of its rows."""
        admin, context = self.admin, base.ADMIN

        def usages(**page: Any) -> list[Any]:
            return self.engine.list_usages(context, with_headroom=True, **page)

        return {
            "usages": (usages, lambda row: (row.project_id, row.resource)),
            "limits": (lambda **page: admin.list_limits(context, **page), lambda row: (row.project_id, row.resource)),
            "projects": (lambda **page: admin.list_projects(context, **page), lambda row: row[0]),
            "overrides": (lambda **page: admin.list_overrides(context, **page)[0], lambda row: row.id),
            "history": (
                lambda limit=None, after=None: admin.history(context, limit=limit, marker=after),
                lambda row: row.id,
            ),
        }

    def test_pages(self) -> None:
        self.assert_a_page_reads_few_rows()
        self.assert_pages_add_up()
        self.assert_one_resource("usages", "limits", "overrides")
        for read in (self.engine.list_usages, self.admin.list_limits):
            rows: list[Any] = read(base.ADMIN, "p003")  # type: ignore[operator]
            self.assertEqual(["fpga", "gpu"], [row.resource for row in rows])
            after = read(base.ADMIN, "p003", limit=1, after=("p003", "fpga"))  # type: ignore[operator]
            self.assertEqual(rows[1:], after)

    @on_sqlite
    def test_a_marker_of_a_project_skips_all_its_rows(self) -> None:
        self.assertEqual("p004", self.engine.list_usages(base.ADMIN, after=("p003", None), limit=1)[0].project_id)
        self.assertEqual("p000", self.admin.list_limits(base.ADMIN, after=(None, None), limit=1)[0].project_id)
        self.assertEqual("p004", self.admin.list_limits(base.ADMIN, after=("p003", None), limit=1)[0].project_id)

    @on_sqlite
    def test_bad_pages(self) -> None:
        calls = (self.engine.list_usages, self.admin.list_limits, self.admin.list_projects, self.admin.list_overrides)
        for call in calls:
            for bad in ({"limit": -1}, {"limit": True}, {"limit": "1"}, {"after": 1}, {"after": ("p", 1)}):
                self.assertRaises(exceptions.InvalidRequest, call, base.ADMIN, **bad)
        for call in calls[:2]:
            for after in (("p003", "GPU"), ("zz", None), ("zz", "gpu"), ("p003",), ("p003", "gpu", "x")):
                self.assertRaises(exceptions.InvalidRequest, call, base.ADMIN, after=after)
        self.assertRaises(exceptions.InvalidRequest, self.admin.list_projects, base.ADMIN, after="zz")


class TestPagesOfCapacity(PagesTestCase):
    """PROVIDERS providers with inventories of gpu and fpga and a claim of each; and as many pods and bindings."""

    scenarios = fixtures.ON_SQLITE
    PROVIDERS = 30

    def setUp(self) -> None:
        super().setUp()
        # The ids and the names have opposite orders.
        nodes = [(f"n{99 - number}", resource, 4, 4) for number in range(self.PROVIDERS) for resource in RESOURCES]
        clouds.add_inventories(self.sql, nodes)
        for number in range(self.PROVIDERS):
            project_id, pod = f"p{number % 3}", f"pod{99 - number}"
            claim = Claim(f"c{number}", {"gpu": 1, "fpga": 1}, provider=f"n{99 - number}")
            self.engine.adopt(base.ADMIN, [claim], project_id)
            self.engine.pods.add(base.ADMIN, pod)
            self.engine.pods.move_binding(base.ADMIN, f"p{number}", pod)

    def lists(self) -> dict[str, tuple[Callable[..., list[Any]], Callable[[Any], Any]]]:
        def call(method: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
            return lambda **page: method(base.ADMIN, **page)

        pods = self.engine.pods
        return {
            "providers": (call(self.capacity.list_providers), lambda row: row.name),
            "inventories": (call(self.capacity.list_inventories), lambda row: (row.provider, row.resource)),
            "allocations": (call(self.capacity.list_allocations), lambda row: row.reservation),
            "pods": (call(pods.list_pods), lambda row: row.name),
            "bindings": (
                lambda after=0, **page: pods.list_bindings(base.ADMIN, after=after, **page),
                lambda row: row[0],
            ),
        }

    def test_pages(self) -> None:
        self.assert_a_page_reads_few_rows()
        self.assert_pages_add_up()
        self.assert_one_resource("inventories", "allocations")
        by_provider = [(row.provider, row.project_id) for row in self.capacity.list_allocations(base.ADMIN)]
        self.assertEqual(2 * self.PROVIDERS, len(by_provider))
        self.assertEqual(sorted(by_provider), by_provider)

    def test_of_one_provider(self) -> None:
        fpga, gpu = self.capacity.list_inventories(base.ADMIN, "n80")
        self.assertEqual([gpu], self.capacity.list_inventories(base.ADMIN, "n80", after=("n80", "fpga")))
        self.assertEqual([fpga], self.capacity.list_inventories(base.ADMIN, "n80", limit=1, after=("n79", None)))
        first, last = self.capacity.list_allocations(base.ADMIN, "n80")
        self.assertEqual([last], self.capacity.list_allocations(base.ADMIN, "n80", after=first.reservation))

    def test_a_marker_that_has_ended(self) -> None:
        whole = self.capacity.list_allocations(base.ADMIN)
        self.engine.release(base.ADMIN, [whole[9].reservation])
        self.assertEqual(whole[10:], self.capacity.list_allocations(base.ADMIN, after=whole[9].reservation))

    def test_bad_pages(self) -> None:
        pods, capacity = self.engine.pods, self.capacity
        bad: list[tuple[Callable[..., Any], Any]] = [
            (capacity.list_providers, "N80"),
            (capacity.list_inventories, ("n80", "GPU")),
            (capacity.list_inventories, ("zz", None)),
            (capacity.list_inventories, "n80"),
            (capacity.list_allocations, "gpu-99"),
            (pods.list_pods, "POD80"),
        ]
        for call, after in bad:
            self.assertRaises(exceptions.InvalidRequest, call, base.ADMIN, after=after)
            for limit in (-1, True, "1"):
                self.assertRaises(exceptions.InvalidRequest, call, base.ADMIN, limit=limit)
