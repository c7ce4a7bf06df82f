# SPDX-License-Identifier: Apache-2.0
"""The export of the ledger's history: a replay of the trace ends with the same counters, on each database."""

from __future__ import annotations

import contextlib
import io
import itertools
import pathlib
import random
from collections import Counter

import fixtures as fx

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.db import history, overrides
from cyborg_quota.db.database import Database
from cyborg_quota.replay import export
from cyborg_quota.replay.replay import Replay
from cyborg_quota.replay.tables import Position
from cyborg_quota.replay.traces import Trace
from tests import base, fixtures

_serial = itertools.count()
DAY = 86400
LONG_AGO = "2001-01-01 00:00:00.000000"


class ExportTestCase(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.database = fixtures.open_database(self, self.url)
        self.directory = pathlib.Path(self.useFixture(fx.TempDir()).path)

    def export(self, since_seconds: int | None = None) -> Trace:
        path = self.directory / f"trace{next(_serial)}.csv"
        with path.open("w+", encoding="utf-8", newline="") as file:
            export.write(self.database, file, since_seconds)
        return Trace(str(path))

    def totals(self, engine: QuotaEngine) -> dict[tuple[str, str], tuple[int, int]]:
        """(used, reserved) of everything that is held."""
        return {
            (record.project_id, record.resource): (record.usage.used, record.usage.reserved)
            for record in engine.list_usages(base.ADMIN)
            if record.usage.used or record.usage.reserved
        }

    def replayed(self, trace: Trace) -> dict[tuple[str, str], tuple[int, int]]:
        """The totals after a replay of the trace without limits, on an empty SQLite ledger."""
        url = self.useFixture(fixtures.EmptyLedger("sqlite", "replayed")).url
        engine = fixtures.make_engine(url)
        database = Database(fixtures.settings(url))
        self.addCleanup(engine.close)
        self.addCleanup(database.close)
        session = Replay(engine, base.ADMIN, trace, Position(database, trace.digest, {}))
        session.run()
        held = {key: used + reserved for key, (used, reserved) in self.totals(engine).items()}
        self.assertEqual(held, {key: amount for key, amount in session.tally.held.items() if amount})
        return self.totals(engine)

    def assert_same_totals(self, since_seconds: int | None = None) -> Trace:
        trace = self.export(since_seconds)
        self.assertEqual(self.totals(self.engine), self.replayed(trace))
        return trace

    def held(self) -> dict[tuple[str, str], int]:
        return {key: used + reserved for key, (used, reserved) in self.totals(self.engine).items()}

    def held_at(self, trace: Trace, seconds: float) -> dict[tuple[str, str], int]:
        held: Counter[tuple[str, str]] = Counter()
        for event in trace:
            if event.time <= seconds and event.kind != "commit":
                held[event.project_id, event.resource] += event.amount if event.kind == "reserve" else -event.amount
        return {key: amount for key, amount in held.items() if amount}

    def set_times(self, uuid: str, **times: str) -> None:
        for column, time in times.items():
            self.execute(f"UPDATE reservations SET {column} = :t WHERE uuid = :u", t=time, u=uuid)

    def make_older(self, which: str) -> None:
        for column, where in (("created_at", ""), ("updated_at", ""), ("deleted_at", " AND deleted_at IS NOT NULL")):
            self.execute(f"UPDATE reservations SET {column} = '{LONG_AGO}' WHERE {which}{where}")


class TestTotals(ExportTestCase):
    def test_an_empty_ledger_is_a_trace_without_events(self) -> None:
        self.assertEqual([], list(self.export()))
        self.assertEqual([], list(self.export(DAY)))

    def test_a_random_history(self) -> None:
        """At each time and at the end, what was held then; also in a span, and after a fold and a purge."""
        for seed in range(3 if self.backend == "sqlite" else 1):
            chooser = random.Random(seed)
            self.owners: dict[str, tuple[str, str | None]] = {}
            moments = []
            for _ in range(40):
                self.act(chooser)
                moments.append((self.database.read(overrides.now), self.held()))
            trace = self.assert_same_totals()
            begin = self.database.read(lambda connection: history.begin(connection, None))
            for moment, held in moments:
                self.assertEqual(held, self.held_at(trace, (moment - begin).total_seconds()))
            self.make_older("id % 2 = 0")
            self.execute(f"UPDATE reservation_changes SET created_at = '{LONG_AGO}' WHERE reservation_id % 2 = 0")
            self.assert_same_totals(DAY)
            self.quotas.purge(base.ADMIN, DAY)
            self.assert_same_totals()
            self.assert_same_totals(DAY)

    def act(self, chooser: random.Random) -> None:
        """Make one call with a random reservation. ``owners``: the project and the consumer of each one."""
        call = chooser.choice(["reserve", "reserve", "commit", "rollback", "release", "resize", "resize", "transfer"])
        if call == "reserve" or not self.owners:
            project, consumer = chooser.choice(["p1", "p2"]), chooser.choice([None, f"c{next(_serial)}"])
            deltas = {chooser.choice(["gpu", "fpga"]): chooser.randint(1, 5)}
            (uuid,) = self.engine.reserve(base.Context(project), deltas, consumer=consumer)
            self.owners[uuid] = project, consumer
            return
        uuid = chooser.choice(list(self.owners))
        project, consumer = self.owners[uuid]
        with contextlib.suppress(exceptions.ReservationError):
            if call == "resize":
                (row,) = self.engine.list_reservations(base.ADMIN, reservations=[uuid])
                self.engine.resize(base.ADMIN, {row.resource: chooser.randint(1, 5)}, reservation=uuid)
            elif call != "transfer":
                getattr(self.engine, call)(base.ADMIN, [uuid])
            elif consumer is not None:
                receiver = "p2" if project == "p1" else "p1"
                self.owners[uuid] = receiver, consumer
                self.engine.transfer(base.ADMIN, receiver, project, consumer=consumer)


class TestEvents(ExportTestCase):
    """A resize or a transfer ends what the trace holds for the reservation, and begins what was held then."""

    scenarios = fixtures.ON_SQLITE

    def test_the_events(self) -> None:
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 2}, consumer="c")
        self.quotas.resize(self.context, {"gpu": 5}, consumer="c")
        self.quotas.commit(self.context, consumer="c")
        self.quotas.transfer(base.ADMIN, "p2", "p1", consumer="c")
        trace = self.assert_same_totals()
        expected = [
            ("reserve", uuid, "p1", 2),
            ("rollback", uuid, "p1", 2),
            ("reserve", f"{uuid}-1", "p1", 5),
            ("commit", f"{uuid}-1", "p1", 5),
            ("release", f"{uuid}-1", "p1", 5),
            ("reserve", f"{uuid}-2", "p2", 5),
            ("commit", f"{uuid}-2", "p2", 5),
        ]
        self.assertEqual(expected, [(event.kind, event.consumer, event.project_id, event.amount) for event in trace])
        # The time of a commit is not known after a release: it is reported at the beginning.
        self.quotas.release(base.Context("p2"), consumer="c")
        kinds = [event.kind for event in self.assert_same_totals()]
        self.assertEqual(["reserve", "commit", *["release", "reserve", "commit"] * 2, "release"], kinds)

    def test_times_of_several_clocks(self) -> None:
        """Whatever the times are, the replay ends with the same totals. (Every fourth order of them.)"""
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 2}, consumer="c")
        self.quotas.resize(self.context, {"gpu": 5}, consumer="c")
        self.quotas.commit(self.context, consumer="c")
        for amount in (3, 4):
            self.quotas.resize(self.context, {"gpu": amount}, consumer="c")
        for order in itertools.islice(itertools.permutations("12345"), 0, None, 4):
            times = [f"2030-01-01 00:00:0{digit}.000000" for digit in order]
            self.set_times(uuid, created_at=times[0], updated_at=times[1])
            for generation in (1, 2, 3):
                time = times[generation + 1]
                self.execute(f"UPDATE reservation_changes SET created_at = '{time}' WHERE generation = {generation}")
            self.assertEqual({("p1", "gpu"): 4}, self.held_at(self.export(), 9))
        self.assert_same_totals()
        self.quotas.release(self.context, consumer="c")
        self.set_times(uuid, deleted_at="2030-01-01 00:00:00.000000")
        self.assertEqual({}, self.held_at(self.export(), 9))
        self.assert_same_totals()

    def test_what_was_held_before_the_span_is_reserved_at_its_start(self) -> None:
        (old,) = self.quotas.reserve(self.context, {"gpu": 4}, consumer="old")
        self.quotas.commit(self.context, consumer="old")
        (gone,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="gone")
        self.quotas.rollback(self.context, consumer="gone")
        (recent,) = self.quotas.reserve(self.context, {"gpu": 2}, consumer="recent")
        self.set_times(old, created_at=LONG_AGO, updated_at=LONG_AGO)
        self.set_times(gone, created_at=LONG_AGO, updated_at=LONG_AGO, deleted_at=LONG_AGO)
        events = list(self.assert_same_totals(3600))
        kinds = [("reserve", old), ("commit", old), ("reserve", recent)]
        self.assertEqual(kinds, [(event.kind, event.consumer) for event in events])
        self.assertEqual([0.0, 0.0], [event.time for event in events[:2]])
        self.assertTrue(3000 < events[2].time <= 3600, events[2])
        self.assertEqual(0.0, next(iter(self.export())).time)

    def test_a_retry_writes_the_trace_anew(self) -> None:
        self.quotas.reserve(self.context, {"gpu": 4}, consumer="c")
        file = io.StringIO("rests of the first attempt, which are longer than the whole trace\n" * 9)
        export.write(self.database, file, None)
        self.assertEqual(2, file.getvalue().count("\n"))
