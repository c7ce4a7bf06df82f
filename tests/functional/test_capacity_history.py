# SPDX-License-Identifier: Apache-2.0
"""The history of providers and inventories: who changed what, and that its replay gives the present state."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import logging
import random
from collections.abc import Callable
from typing import Any

import fixtures as fx
import sqlalchemy as sa
import testscenarios
from oslo_config import cfg
from oslo_context import context as oslo_context

from cyborg_quota import Inventory, exceptions
from cyborg_quota import conf as quota_conf
from cyborg_quota.capacity_import import CapacityImporter, WantedProvider
from cyborg_quota.cmd import expirer
from cyborg_quota.db import capacity_history as tables
from tests import base, hooks
from tests.functional import test_capacity

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN
ALICE = oslo_context.RequestContext(
    user_id="alice", project_id="operators", request_id="req-1", is_admin=True, overwrite=False
)
DAY = 86400


class HistoryTestCase(test_capacity.CapacityTestCase):
    def changes(self, provider: str | None = None) -> list[tuple[Any, ...]]:
        """(action, provider, resource, before, after) of each entry, oldest first, without checkpoints."""
        entries = self.capacity.history(ADMIN, provider)
        return [
            (entry.action, entry.provider, entry.resource, entry.before, entry.after)
            for entry in reversed(entries)
            if entry.action != "checkpoint"
        ]

    def assert_verified(self) -> None:
        self.assertEqual([], self.capacity.verify_history(ADMIN))

    def age(self, seconds: int) -> None:
        """Make all entries older."""
        with self.sql.begin() as connection:
            rows = connection.execute(sa.text("SELECT generation, ordinal, created_at FROM capacity_changes")).all()
            for row in rows:
                at = row.created_at
                at = datetime.datetime.fromisoformat(at) if isinstance(at, str) else at
                at -= datetime.timedelta(seconds=seconds)
                connection.execute(
                    sa.text("UPDATE capacity_changes SET created_at = :t WHERE generation = :g AND ordinal = :o"),
                    {"t": at.isoformat(" ", "microseconds"), "g": row.generation, "o": row.ordinal},
                )


class TestEntries(HistoryTestCase):
    def test_what_is_recorded(self) -> None:
        self.execute("DELETE FROM capacity_changes")
        self.capacity.checkpoint(ADMIN)
        self.engine.pods.add(ADMIN, "east")
        self.capacity.add_provider(ALICE, "n2", parent="n1", can_host=False, reason="new rack")
        self.capacity.set_pod(ALICE, "n2", "east")
        self.capacity.set_pod(ALICE, "n2", "east")  # no change
        wanted = {"gpu": Inventory(4, reserved=1, allocation_ratio=decimal.Decimal("1.50")), "fpga": Inventory(2)}
        self.capacity.set_inventories(ALICE, "n2", wanted)
        self.capacity.set_inventories(ALICE, "n2", {**wanted, "fpga": Inventory(3)}, reason="one more")
        self.capacity.set_used_elsewhere(ALICE, "n2", {"gpu": 1})  # a measurement
        self.claim(1)  # a reservation records it
        self.capacity.remove_inventory(ALICE, "n2", "fpga")
        self.capacity.remove_inventory(ALICE, "n2", "fpga")  # no change
        self.capacity.remove_provider(ALICE, "n2", reason="sold")
        provider = {"name": "n2", "parent": "n1", "can_host": False, "pod": None}
        in_pod = {**provider, "pod": "east"}
        units = {"min_unit": 1, "step_size": 1}
        gpu = {"total": 4, "reserved": 1, "max_unit": 4, **units, "allocation_ratio": "1.5"}
        fpga = {"total": 2, "reserved": 0, "max_unit": 2, **units, "allocation_ratio": "1"}
        more = {**fpga, "total": 3, "max_unit": 3}
        self.assertEqual(
            [
                ("add provider", "n2", None, None, provider),
                ("set provider", "n2", None, provider, in_pod),
                ("set inventory", "n2", "fpga", None, fpga),
                ("set inventory", "n2", "gpu", None, gpu),
                ("set inventory", "n2", "fpga", fpga, more),
                ("remove inventory", "n2", "fpga", more, None),
                ("remove inventory", "n2", "gpu", gpu, None),
                ("remove provider", "n2", None, in_pod, None),
            ],
            self.changes(),
        )
        self.assert_verified()
        newest = self.capacity.history(ADMIN)[0]
        self.assertEqual(("alice", "operators", "req-1", "sold"), (
            newest.actor, newest.actor_project_id, newest.request_id, newest.reason
        ))  # fmt: skip
        assert newest.at is not None
        now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
        self.assertLess(abs(now - newest.at), datetime.timedelta(minutes=5))

    def test_a_refused_change_is_not_recorded(self) -> None:
        self.claim(1)
        before = self.changes()
        calls: list[Callable[[], object]] = [
            lambda: self.capacity.add_provider(ADMIN, "n1"),
            lambda: self.capacity.add_provider(ADMIN, "n2", parent="n9"),
            lambda: self.capacity.remove_provider(ADMIN, "n1"),
            lambda: self.capacity.remove_inventory(ADMIN, "n1", "gpu"),
            lambda: self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(1)}, generation=99),
            lambda: self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(1)}, reason="two\nlines"),
        ]
        for call in calls:
            self.assertRaises(exceptions.QuotaError, call)
        self.assertEqual(before, self.changes())
        self.assert_verified()

    def test_an_import_gives_its_reason(self) -> None:
        wanted = [WantedProvider("n1", inventories={"gpu": Inventory(9)}), WantedProvider("n2")]
        importer = CapacityImporter(self.capacity, ALICE, ["gpu", "fpga"], reason="from the file")
        importer.run(lambda: wanted, dry_run=True)
        self.assertEqual([], [one for one in self.capacity.history(ADMIN) if one.reason])
        importer.run(lambda: wanted)
        importer.run(lambda: wanted)  # no change
        entries = [one for one in self.capacity.history(ADMIN) if one.reason]
        self.assertEqual(
            [("add provider", "n2", "from the file", "alice"), ("set inventory", "n1", "from the file", "alice")],
            [(one.action, one.provider, one.reason, one.actor) for one in entries],
        )

    def test_a_lost_answer_is_recorded_once(self) -> None:
        calls: list[Callable[[], object]] = [
            lambda: self.capacity.add_provider(ADMIN, "n2", parent=self.capacity.show_provider(ADMIN, "n1").uuid),
            lambda: self.capacity.set_inventories(ADMIN, "n2", {"gpu": Inventory(3)}),
            lambda: self.capacity.remove_inventory(ADMIN, "n2", "gpu"),
        ]
        before = len(self.changes())
        for number, call in enumerate(calls, start=1):
            lost = hooks.LostCommits(self.engine, self.backend, table="capacity_changes")
            with lost:
                call()
            self.assertEqual(1, lost.lost)
            self.assertEqual(before + number, len(self.changes()))
            self.assert_verified()

    def test_one_log_line_for_many_changes(self) -> None:
        names = [f"gpu{number}" for number in range(101)]
        self.engine.register_resources(names)
        log = self.useFixture(fx.FakeLogger(level=logging.INFO))
        self.capacity.set_inventories(ALICE, "n1", {"gpu": Inventory(9)}, reason="one more")
        line = "set inventory, provider n1, resource gpu: total 8 -> 9, max_unit 8 -> 9"
        self.assertIn(f"capacity changed: {line} [user_id=alice request_id=req-1 reason=one more]", log.output)
        self.capacity.set_inventories(ALICE, "n1", {name: Inventory(1) for name in names})
        self.assertIn("capacity changed: 101 changes", log.output)
        self.assertNotIn("gpu100", log.output)


class TestListing(HistoryTestCase):
    def test_filters_and_pages(self) -> None:
        for total in range(1, 4):
            self.set("n1", gpu=Inventory(total), fpga=Inventory(total))
        everything = self.capacity.history(ADMIN)
        pages, marker = [], None
        while page := self.capacity.history(ADMIN, limit=2, marker=marker):
            pages += page
            marker = page[-1].id
        self.assertEqual(everything, pages)
        uuid = self.capacity.show_provider(ADMIN, "n1").uuid
        self.capacity.remove_provider(ADMIN, "n1")
        self.add("n2", gpu=1)
        for name in ("n1", uuid):
            self.assertEqual(len(everything) + 3, len(self.capacity.history(ADMIN, name)))
        self.assertEqual({"gpu"}, {one.resource for one in self.capacity.history(ADMIN, resource="gpu")})
        self.age(3600)
        minute = datetime.timedelta(minutes=1)
        self.assertEqual([], self.capacity.history(ADMIN, since=minute))
        self.assertEqual(everything, self.capacity.history(ADMIN, "n1", since=90 * minute)[3:] and everything)
        for changes in ({"since": "x"}, {"marker": "x"}, {"limit": -1}, {"provider": ""}, {"resource": ""}):
            self.assertRaises(exceptions.InvalidRequest, self.capacity.history, ADMIN, **changes)  # type: ignore[arg-type]
        self.assertRaises(exceptions.InvalidRequest, self.capacity.purge_history, ADMIN, -1)


class TestReplay(HistoryTestCase):
    def test_random_changes(self) -> None:
        """After any changes, refused ones included, the replay gives the present providers and inventories."""
        self.engine.pods.add(ADMIN, "east")
        chance = random.Random(15)
        for _ in range(100):
            self.change(chance)
        self.assertGreater(len({change[0] for change in self.changes()}), 4)
        self.assert_verified()
        self.assertEqual(0, self.capacity.purge_history(ADMIN, 3600))
        self.age(7200)
        self.add("last", gpu=1)
        self.assertGreater(self.capacity.purge_history(ADMIN, 3600), 20)
        self.assert_verified()
        for _ in range(20):
            self.change(chance)
        self.assert_verified()

    def change(self, chance: random.Random) -> None:
        name, other = chance.choice("abc"), chance.choice("abc")
        wanted = {resource: Inventory(chance.randint(0, 3)) for resource in chance.sample(["fpga", "gpu"], 2)}
        calls: list[Callable[[], Any]] = [
            lambda: self.capacity.add_provider(ADMIN, name, parent=chance.choice([None, other])),
            lambda: self.capacity.set_inventories(ADMIN, name, wanted),
            lambda: self.capacity.set_inventories(ADMIN, name, {"gpu": Inventory(2)}),
            lambda: self.capacity.set_pod(ADMIN, name, chance.choice([None, "east"])),
            lambda: self.capacity.set_can_host(ADMIN, name, can_host=chance.choice([False, True])),
            lambda: self.capacity.remove_inventory(ADMIN, name, "gpu"),
            lambda: self.capacity.remove_provider(ADMIN, name),
            lambda: self.capacity.set_used_elsewhere(ADMIN, name, {"gpu": 1}),
        ]
        with contextlib.suppress(exceptions.QuotaError):
            chance.choice(calls)()

    def test_a_change_that_is_not_recorded_is_found(self) -> None:
        """SQL: the values differ now, or differ from what the next entry says."""
        gpu = dict(self.capacity.history(ADMIN, resource="gpu")[0].after or {})
        self.execute("UPDATE inventories SET total = 9 WHERE resource = 'gpu'")
        self.execute("UPDATE resource_providers SET can_host = 0")
        self.execute("DELETE FROM inventories WHERE resource = 'fpga'")
        found = self.capacity.verify_history(ADMIN)
        self.assertEqual([(None, "n1", None), (None, "n1", "fpga"), (None, "n1", "gpu")], [
            (one.before_entry, one.provider, one.resource) for one in found
        ])  # fmt: skip
        self.assertEqual((gpu, {**gpu, "total": 9}), (found[2].recorded, found[2].actual))
        self.assertIsNone(found[1].actual)
        self.set("n1", gpu=Inventory(7))
        entry = self.capacity.history(ADMIN)[0]
        missed = [one for one in self.capacity.verify_history(ADMIN) if one.before_entry == entry.id]
        self.assertEqual([(gpu, {**gpu, "total": 9})], [(one.recorded, one.actual) for one in missed])
        self.assertEqual(3, self.capacity.checkpoint(ALICE, reason="repaired"))
        self.assert_verified()

    def test_a_purge_keeps_the_replay(self) -> None:
        for number in range(1, 4):
            self.set("n1", gpu=Inventory(number))
        self.age(DAY)
        self.set("n1", gpu=Inventory(4))
        self.assertEqual(0, self.capacity.purge_history(ADMIN, 2 * DAY))
        oldest = self.capacity.history(ADMIN)[1].at
        self.assertEqual(6, self.capacity.purge_history(ALICE, 3600))
        entries = self.capacity.history(ADMIN)
        self.assertEqual(["set inventory", *["checkpoint"] * 4], [entry.action for entry in entries])
        self.assertEqual({(oldest, "purge", "alice")}, {(one.at, one.operation, one.actor) for one in entries[1:]})
        self.assert_verified()
        self.assertEqual(0, self.capacity.purge_history(ADMIN, 3600))
        self.age(DAY)
        self.assertEqual(5, self.capacity.purge_history(ADMIN, 3600))
        self.assert_verified()

    def test_the_expirer_purges_it(self) -> None:
        conf = cfg.ConfigOpts()
        quota_conf.register_opts(conf)
        conf([], default_config_files=[], default_config_dirs=[])
        self.engine.pods.add(ADMIN, "p1")
        for project_id in ("ended", "current"):
            self.engine.pods.select(ADMIN, project_id=project_id)
        self.engine.pods.end_binding(ADMIN, "ended")
        self.execute("UPDATE pod_bindings SET ends_at = '2001-01-01 00:00:00' WHERE ends_at IS NOT NULL")
        conf.set_override("history_age", DAY, "limits")
        self.set("n1", gpu=Inventory(1))
        self.age(2 * DAY)
        self.assertEqual(4 + 1, expirer.Maintenance(conf, self.engine).purge(), "and the binding that ended")
        bindings = self.engine.pods.list_bindings(ADMIN, history=True)
        self.assertEqual(["current"], [one.project_id for _, one in bindings])
        self.assertEqual({"checkpoint"}, {one.action for one in self.capacity.history(ADMIN)})
        self.assert_verified()

    def test_verifying_waits_for_a_moment_without_changes(self) -> None:
        """A change between its statements makes it start again, so that it reports no false difference."""
        read_state, turns = tables.read_state, []

        def change_first(connection: sa.Connection) -> tables.State:
            if len(turns) < 2 and self.backend != "sqlite":  # (where the transaction reads one snapshot)
                turns.append(1)
                self.set("n1", gpu=Inventory(10 + len(turns)))
            return read_state(connection)

        self.patch(tables, "read_state", change_first)
        self.assert_verified()
        self.assertEqual(0 if self.backend == "sqlite" else 2, len(turns))
