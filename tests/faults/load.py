# SPDX-License-Identifier: Apache-2.0
"""Workers that attach and detach until they are stopped, as conductors do, and record calls in a journal."""

from __future__ import annotations

import contextlib
import functools
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

import fixtures
import sqlalchemy as sa

from cyborg_quota import ANY, Claim, Inventory, QuotaEngine, exceptions
from tests import base, forked
from tests import fixtures as our_fixtures
from tests.faults import ledger_check
from tests.faults.journal import ASK, OK, Journal

MOST_HELD = 3
"""The number of requests that one worker keeps attached."""
LIMITS = {"gpu": 24, "fpga": 16}
"""Low enough that eight workers reach the limits often."""
CAPACITY = {"gpu": 8, "fpga": 5}
PAUSE_SECONDS = 0.012
"""Between two requests of a worker. Without pauses, the workers keep all processors busy for as long as they run."""
PROVIDERS = ("n1", "n2")
"""The providers of a ledger with capacity, and what each of them has: workers reach it often."""


class Caller:
    """Makes the calls of one engine, and records them in a journal."""

    def __init__(self, engine: QuotaEngine, journal: Journal, *, patience_seconds: float = 30.0) -> None:
        self._engine = engine
        self._journal = journal
        self._patience_seconds = patience_seconds
        self.last_error: exceptions.QuotaError | None = None

    def reserve(self, request: Request) -> bool:
        """Reserve; after an outage repeat it if it has consumers.

        (Without consumers it would be charged twice.)
        """
        return self._call("reserve", request, lambda: request.reserve(self._engine), may_repeat=request.has_consumers)

    def settle(self, call: str, request: Request) -> bool:
        """Commit, roll back, release or extend, by each kind of name."""
        return self._call(call, request, lambda: request.settle(self._engine, call), may_repeat=True)

    def _call(self, call: str, request: Request, act: Callable[[], None], *, may_repeat: bool) -> bool:
        deadline = time.monotonic() + self._patience_seconds
        while True:
            self._note(ASK, call, request)
            began = time.monotonic()
            try:
                act()
            except Exception as error:
                is_outage = isinstance(error, exceptions.DatabaseUnavailable)  # (each means: there was no answer)
                kind = exceptions.DatabaseUnavailable if is_outage else type(error)
                self._note(kind.__name__, call, request, str(error)[:200], time.monotonic() - began)
                if not isinstance(error, exceptions.QuotaError):
                    raise
                self.last_error = error
                if not (is_outage and may_repeat) or time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
            else:
                self._note(OK, call, request, "", time.monotonic() - began)
                return True

    def _note(self, word: str, call: str, request: Request, detail: str = "", seconds: float = 0.0) -> None:
        project_id = request.context.project_id or ""
        self._journal.write(word, call, request.name, project_id, request.rows, detail=detail, seconds=seconds)


class Request:
    """The argument of one reserve: one claim with or without a consumer, or several claims of one group."""

    def __init__(self, project_id: str, claims: Sequence[Claim], name: str | None = None) -> None:
        self.name = name or f"t-{uuid.uuid4()}"
        self.context = base.Context(project_id)
        self.claims = claims
        self.uuids: list[str] = []

    @classmethod
    def named(cls, name: str, projects: Sequence[str], *, with_capacity: bool = False) -> Request:
        """Return the request with this name. ``with_capacity``: most of them name a provider or ANY.

        The name determines the request, so that any reader of a journal can repeat it.
        """
        rng = random.Random(name)
        providers = (None, ANY, ANY, *PROVIDERS) if with_capacity else (None,)

        def deltas() -> dict[str, int]:
            return {"gpu": rng.randint(1, 2)} if rng.random() < 0.7 else {"gpu": 1, "fpga": 1}

        kind = rng.random()
        project_id = projects[rng.randrange(len(projects))]
        count = 1 if kind < 0.75 else rng.randint(2, 4)
        consumers = [None] if kind < 0.2 else [f"{name}-{index}" for index in range(count)]
        return cls(project_id, [Claim(one, deltas(), provider=rng.choice(providers)) for one in consumers], name)

    @property
    def has_consumers(self) -> bool:
        return all(claim.consumer is not None for claim in self.claims)

    @property
    def rows(self) -> int:
        return sum(len(claim.deltas) for claim in self.claims)

    def reserve(self, engine: QuotaEngine) -> None:
        if len(self.claims) == 1:
            claim = self.claims[0]
            how: dict[str, Any] = {"consumer": claim.consumer, "group": self.name, "provider": claim.provider}
            self.uuids = engine.reserve(self.context, claim.deltas, **how)
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
    caller: Caller,
    worker: str,
    rng: random.Random,
    projects: Sequence[str],
    is_over: Callable[[], bool],
    *,
    pause_seconds: float = 0.0,
    with_capacity: bool = False,
) -> None:
    """Reserve; commit most, roll back some, leave some in flight; release the oldest; until ``is_over()``.

    ``pause_seconds``: the mean time between the calls for a request and those for the next one. ``with_capacity``: see
    Request.named.
    """
    held: list[tuple[Request, bool]] = []
    while not is_over():
        time.sleep(rng.uniform(0, 2 * pause_seconds))
        request = Request.named(f"{worker}-{rng.getrandbits(60)}", projects, with_capacity=with_capacity)
        if caller.reserve(request):
            way = rng.random()
            if way < 0.2:
                caller.settle("rollback", request)
            else:
                if way < 0.8:
                    caller.settle("commit", request)
                held.append((request, way < 0.8))
            is_refused = False
        else:
            is_refused = True  # the limit may be reached until another worker releases
        while held and (len(held) > MOST_HELD or is_refused or is_over()):
            is_refused = False
            oldest, is_committed = held.pop(0)
            caller.settle("release" if is_committed else rng.choice(["rollback", "release"]), oldest)


def release_inherited(
    caller: Caller, journal: Journal, worker: str, projects: Sequence[str], *, with_capacity: bool = False
) -> None:
    """Release what a worker of this name held when it was killed, as a restarted conductor does.

    A request without an answer is repeated first, because it may take effect at any time. A request without a consumer
    would be charged twice if repeated, so it is left to expire.
    """
    for name, entries in journal.by_request().items():
        if not name.startswith(f"{worker}-"):
            continue
        answered = {entry.call for entry in entries if entry.word == OK}
        request = Request.named(name, projects, with_capacity=with_capacity)
        if answered & {"rollback", "release"} or entries[-1].word in ("OverQuota", "OverCapacity"):
            continue
        if "reserve" in answered or (request.has_consumers and caller.reserve(request)):
            caller.settle("release", request)


class Crew:
    """Worker processes, until stop(). A worker that raises an exception fails the run; a killed worker does not.

    ``job(number, is_over)`` runs in each.
    """

    def __init__(self, job: Callable[[int, Callable[[], bool]], None], count: int) -> None:
        self._job = job
        # A flag in shared memory: a killed worker could hold a lock for ever.
        self._flag = mmap.mmap(-1, 1)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.pids = [self._start(number) for number in range(count)]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def _start(self, number: int) -> int:
        return forked.start(functools.partial(self._work, number))

    def _work(self, number: int) -> None:
        logging.disable(logging.CRITICAL)  # otherwise every line is kept in memory for the report of the test
        try:
            self._job(number, lambda: self._flag[0] != 0)
        except BaseException:
            traceback.print_exc(file=self._errors)
            self._errors.flush()
            raise

    def _wait(self, pid: int, seconds: float, *allowed: int) -> None:
        """Raise AssertionError if the worker failed, or does not end."""
        if (status := forked.wait(pid, seconds)) not in (0, *allowed):
            self._errors.seek(0)
            raise AssertionError(f"a worker ended with {status} (None: it does not end): {self._errors.read()[-4000:]}")

    def kill(self, number: int) -> None:
        """Kill a worker (SIGKILL), and start another one instead."""
        os.kill(self.pids[number], signal.SIGKILL)
        self._wait(self.pids[number], 60.0, -signal.SIGKILL)
        self.pids[number] = self._start(number)

    def stop(self, timeout_seconds: float = 60.0) -> None:
        """Let all workers finish their current call."""
        self._flag[0] = 1
        with contextlib.ExitStack() as stack:  # (It waits for all, also if one has failed.)
            for pid in self.pids:
                stack.callback(self._wait, pid, timeout_seconds)


class Ledger(fixtures.Fixture):
    """A new ledger with triggers that check its limits, a journal, and a method that starts workers.

    ``url`` leads directly to the database; workers may be given other URLs of it. ``with_capacity``: it has
    providers, which workers claim.
    """

    def __init__(
        self,
        url: str,
        limits: dict[str, int] | None = None,
        *,
        with_capacity: bool = False,
    ) -> None:
        super().__init__()
        self.url = url
        self._with_capacity = with_capacity
        self.limits = LIMITS if limits is None else limits

    def _setUp(self) -> None:
        our_fixtures.create_schema(self.url)
        ledger_check.watch(self.url, self.limits)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.journal = Journal(pathlib.Path(directory.name) / "journal")
        self.addCleanup(self.journal.close)
        self.engine = self.make_engine()
        # Compile here what a process compiles at its first charge: workers may live for a few milliseconds only.
        context = base.Context("warm")
        for settle in (self.engine.commit, self.engine.rollback):
            settle(context, self.engine.reserve(context, {"gpu": 1, "fpga": 1}, consumer="warm"))
            self.engine.release(context, consumer="warm")
        if self._with_capacity:
            for name in PROVIDERS:
                self.engine.capacity.add_provider(base.ADMIN, name)
                inventories = {key: Inventory(total) for key, total in CAPACITY.items()}
                self.engine.capacity.set_inventories(base.ADMIN, name, inventories)
            for provider in (*PROVIDERS, ANY):
                self.engine.rollback(context, self.engine.reserve(context, {"gpu": 1}, provider=provider))

    def make_engine(self, url: str | None = None, **changes: Any) -> QuotaEngine:
        """Return an engine with the limits of the test, which is closed with the ledger."""
        limits = our_fixtures.DictLimits()
        limits.own.update({(None, resource): most for resource, most in self.limits.items()})
        engine = our_fixtures.make_engine(url or self.url, limits, **changes)
        self.addCleanup(engine.close)
        return engine

    def crew(
        self,
        count: int,
        seed: int,
        projects: Sequence[str] = ("hot",),
        urls: Sequence[str] | None = None,
        pause_seconds: float | None = None,
        **changes: Any,
    ) -> Crew:
        """Start a number of workers; they use ``urls`` in turn.

        ``pause_seconds``: see ``work``; by default PAUSE_SECONDS.
        """
        pause = PAUSE_SECONDS if pause_seconds is None else pause_seconds

        def job(number: int, is_over: Callable[[], bool]) -> None:
            url = urls[number % len(urls)] if urls else self.url
            caller = Caller(self.make_engine(url, **changes), self.journal)
            how = {"with_capacity": self._with_capacity}
            release_inherited(caller, self.journal, f"w{number}", projects, **how)
            rng = random.Random(f"{seed} {number} {os.getpid()}")
            work(caller, f"w{number}", rng, projects, is_over, pause_seconds=pause, **how)

        self.engine.close()  # SQLite does not support a fork while a file is open
        return Crew(job, count)

    def execute(self, statement: str) -> None:
        """Run SQL on the database, without the ledger."""
        with sa.create_engine(self.url, poolclass=sa.NullPool).begin() as connection:
            connection.exec_driver_sql(statement)

    def check(self) -> ledger_check.Report:
        """Return the report and its problems, after all writers have ended."""
        return ledger_check.check(self.url, self.engine, self.journal)

    def assert_right(self) -> ledger_check.Report:
        report = self.check()
        assert not report.problems, f"{len(report.problems)} problems:\n" + "\n".join(report.problems[:20])
        return report
