# SPDX-License-Identifier: Apache-2.0
"""Workers that attach and detach for ever, as conductors do, and tell a journal what they ask and are answered."""

from __future__ import annotations

import logging
import mmap
import os
import pathlib
import random
import signal
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import alembic.command
import fixtures
import sqlalchemy as sa

from cyborg_quota import Claim, QuotaEngine, exceptions
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import base
from tests import fixtures as our_fixtures
from tests.faults import ledger_check
from tests.faults.journal import ASK, OK, Journal

MOST_HELD = 3
"""So many things one worker keeps attached at a time."""
LIMITS = {"gpu": 24, "fpga": 16}
"""Low enough that eight workers meet them again and again."""


def outcome_of(error: Exception) -> str:
    """How the journal names an error. Every DatabaseUnavailable means the same to a caller: there was no answer."""
    kind = exceptions.DatabaseUnavailable if isinstance(error, exceptions.DatabaseUnavailable) else type(error)
    return kind.__name__


class Caller:
    """One engine, one journal: makes calls, and notes them."""

    def __init__(self, engine: QuotaEngine, journal: Journal, *, patience_seconds: float = 30.0) -> None:
        self._engine = engine
        self._journal = journal
        self._patience_seconds = patience_seconds
        self.last_error: exceptions.QuotaError | None = None

    def reserve(self, thing: Thing) -> bool:
        """Ask for a thing; after an outage again, if it has consumers. (What has none would be charged twice.)"""
        return self._call("reserve", thing, lambda: thing.reserve(self._engine), may_repeat=thing.has_consumers)

    def settle(self, call: str, thing: Thing) -> bool:
        """commit, rollback, release or extend it, by whichever name."""
        return self._call(call, thing, lambda: thing.settle(self._engine, call), may_repeat=True)

    def _call(self, call: str, thing: Thing, act: Callable[[], None], *, may_repeat: bool) -> bool:
        deadline = time.monotonic() + self._patience_seconds
        while True:
            self._note(ASK, call, thing)
            began = time.monotonic()
            try:
                act()
            except exceptions.QuotaError as error:
                self._note(outcome_of(error), call, thing, str(error)[:200], time.monotonic() - began)
                self.last_error = error
                if not isinstance(error, exceptions.DatabaseUnavailable) or not may_repeat:
                    return False
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
            except Exception as error:
                self._note(outcome_of(error), call, thing, str(error)[:200])
                raise
            else:
                self._note(OK, call, thing, "", time.monotonic() - began)
                return True

    def _note(self, word: str, call: str, thing: Thing, detail: str = "", seconds: float = 0.0) -> None:
        project_id = thing.context.project_id or ""
        self._journal.write(word, call, thing.name, project_id, thing.rows, detail=detail, seconds=seconds)


class Thing:
    """What one reserve asks for: one claim with or without a consumer, or several of one group."""

    def __init__(self, project_id: str, claims: Sequence[Claim], name: str | None = None) -> None:
        self.name = name or f"t-{uuid.uuid4()}"
        self.context = base.Context(project_id)
        self.claims = claims
        self.uuids: list[str] = []

    @classmethod
    def named(cls, name: str, projects: Sequence[str]) -> Thing:
        """The name decides everything: whoever finds it in a journal can ask for the same again."""
        chance = random.Random(name)

        def deltas() -> dict[str, int]:
            return {"gpu": chance.randint(1, 2)} if chance.random() < 0.7 else {"gpu": 1, "fpga": 1}

        kind = chance.random()
        project_id = projects[chance.randrange(len(projects))]
        if kind < 0.2:
            return cls(project_id, [Claim(None, deltas())], name)
        count = 1 if kind < 0.75 else chance.randint(2, 4)
        return cls(project_id, [Claim(f"{name}-{index}", deltas()) for index in range(count)], name)

    @property
    def has_consumers(self) -> bool:
        return all(claim.consumer is not None for claim in self.claims)

    @property
    def rows(self) -> int:
        return sum(len(claim.deltas) for claim in self.claims)

    def reserve(self, engine: QuotaEngine) -> None:
        if len(self.claims) == 1:
            claim = self.claims[0]
            self.uuids = engine.reserve(self.context, claim.deltas, consumer=claim.consumer, group=self.name)
        else:
            self.uuids = engine.reserve_many(self.context, self.claims, group=self.name)

    def settle(self, engine: QuotaEngine, call: str) -> None:
        how: dict[str, Any] = {"group": self.name}
        if self.uuids and len(self.name) % 2:
            how = {"reservations": self.uuids}
        elif self.has_consumers and len(self.claims) == 1:
            how = {"consumer": self.claims[0].consumer}
        getattr(engine, call)(self.context, **how)


def work(
    caller: Caller, worker: str, chance: random.Random, projects: Sequence[str], is_over: Callable[[], bool]
) -> None:
    """Reserve; commit most of it, give up some, leave some open for a while; release the oldest; until it is over."""
    held: list[tuple[Thing, bool]] = []
    while not is_over():
        thing = Thing.named(f"{worker}-{chance.getrandbits(60)}", projects)
        if caller.reserve(thing):
            way = chance.random()
            if way < 0.2:
                caller.settle("rollback", thing)
            else:
                if way < 0.8:
                    caller.settle("commit", thing)
                held.append((thing, way < 0.8))
            is_refused = False
        else:
            is_refused = True  # there may be no room until somebody gives back
        while held and (len(held) > MOST_HELD or is_refused or is_over()):
            is_refused = False
            oldest, is_committed = held.pop(0)
            caller.settle("release" if is_committed else chance.choice(["rollback", "release"]), oldest)


def inherit(caller: Caller, journal: Journal, worker: str, projects: Sequence[str]) -> None:
    """Give back what a worker of this name held when it was killed, as a conductor does that is started again.

    What was asked for and not answered is asked for again first: it may be landing at this very moment. Without a
    consumer that would be a second charge; such a thing is left to expire.
    """
    for name, entries in journal.by_thing().items():
        if not name.startswith(f"{worker}-"):
            continue
        answered = {entry.call for entry in entries if entry.word == OK}
        thing = Thing.named(name, projects)
        if answered & {"rollback", "release"} or entries[-1].word == "OverQuota":
            continue
        if "reserve" in answered or (thing.has_consumers and caller.reserve(thing)):
            caller.settle("release", thing)


class Crew:
    """Worker processes, until stop(). A worker that raises fails the run; one that is killed does not.

    ``job(number, is_over)`` runs in each.
    """

    def __init__(self, job: Callable[[int, Callable[[], bool]], None], count: int) -> None:
        self._job = job
        # A flag in shared memory: a lock could be held by a worker that is killed.
        self._flag = mmap.mmap(-1, 1)
        self._crew: dict[int, tuple[int, int]] = {}
        for number in range(count):
            self._start(number)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop(30.0)

    @property
    def pids(self) -> list[int]:
        return [pid for pid, _ in self._crew.values()]

    def _start(self, number: int) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(reader)
                logging.disable(logging.CRITICAL)  # it would be kept in memory, line by line, for a test's report
                self._job(number, lambda: self._flag[0] != 0)
                status = 0
            except BaseException:
                os.write(writer, traceback.format_exc()[-4000:].encode())
            finally:
                os._exit(status)
        os.close(writer)
        self._crew[number] = (pid, reader)

    def kill(self, number: int) -> None:
        """SIGKILL one, and put another in its place."""
        pid, _ = self._crew[number]
        os.kill(pid, signal.SIGKILL)
        self._collect(number, may_be_killed=True)
        self._start(number)

    def stop(self, timeout_seconds: float = 60.0) -> None:
        """Let all end what they are at. AssertionError with what a worker raised, or when one does not end."""
        self._flag[0] = 1
        deadline = time.monotonic() + timeout_seconds
        problems = []
        for number in list(self._crew):
            try:
                self._collect(number, deadline)
            except AssertionError as error:
                problems.append(str(error))
        if problems:
            raise AssertionError("\n".join(problems))

    def _collect(self, number: int, deadline: float = 0.0, *, may_be_killed: bool = False) -> None:
        pid, reader = self._crew.pop(number)
        hangs = False
        if not may_be_killed:
            while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if time.monotonic() > deadline:
                    hangs = True
                    os.kill(pid, signal.SIGKILL)
                    break
                time.sleep(0.01)
        _, status = os.waitpid(pid, 0)
        words = os.read(reader, 5000).decode(errors="replace")
        os.close(reader)
        if hangs:
            raise AssertionError(f"worker {number} does not end")
        if words or (not may_be_killed and status):
            raise AssertionError(f"worker {number} failed: {words or status}")


class Ledger(fixtures.Fixture):
    """A fresh ledger with a watch on its limits, a journal, and a crew for it.

    ``url`` reaches the database itself; workers may be given other ways to it. ``revision``: an older schema's.
    """

    def __init__(self, url: str, limits: dict[str, int] | None = None, *, revision: str | None = None) -> None:
        super().__init__()
        self.url = url
        self._revision = revision
        self.limits = LIMITS if limits is None else limits

    def _setUp(self) -> None:
        database = Database(our_fixtures.settings(self.url))
        if self._revision is None:
            schema.sync(database)
        else:
            database.write(
                lambda connection: alembic.command.upgrade(schema.alembic_config(connection), str(self._revision))
            )
        database.close()
        ledger_check.watch_limits(self.url, self.limits)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.journal = Journal(pathlib.Path(directory.name) / "journal")
        self.addCleanup(self.journal.close)
        self.engine = self.make_engine()
        self.addCleanup(self.engine.close)
        if self._revision is not None:
            return
        # What a process compiles at its first charge, workers need not do in the moments that they have.
        context = base.Context("warm")
        for settle in (self.engine.commit, self.engine.rollback):
            settle(context, self.engine.reserve(context, {"gpu": 1, "fpga": 1}, consumer="warm"))
            self.engine.release(context, consumer="warm")

    def make_engine(self, url: str | None = None, **changes: Any) -> QuotaEngine:
        """An engine with the limits in force."""
        limits = our_fixtures.DictLimits()
        limits.limits.update({(None, resource): most for resource, most in self.limits.items()})
        return our_fixtures.make_engine(url or self.url, limits, **changes)

    def crew(
        self,
        count: int,
        seed: int,
        projects: Sequence[str] = ("hot",),
        urls: Sequence[str] | None = None,
        **changes: Any,
    ) -> Crew:
        """So many workers; ``urls`` are given out in turn."""

        def job(number: int, is_over: Callable[[], bool]) -> None:
            url = urls[number % len(urls)] if urls else self.url
            caller = Caller(self.make_engine(url, **changes), self.journal)
            inherit(caller, self.journal, f"w{number}", projects)
            work(caller, f"w{number}", random.Random(f"{seed} {number} {os.getpid()}"), projects, is_over)

        self.engine.close()  # SQLite does not bear a fork while a file is open
        return Crew(job, count)

    def execute(self, statement: str) -> None:
        """Bare SQL, behind the ledger's back."""
        with sa.create_engine(self.url, poolclass=sa.NullPool).begin() as connection:
            connection.exec_driver_sql(statement)

    def check(self) -> ledger_check.Report:
        """What was, and what is wrong; once nobody writes any more."""
        return ledger_check.check(self.url, self.engine, self.journal)

    def assert_right(self) -> ledger_check.Report:
        return ledger_check.assert_right(self.url, self.engine, self.journal)
