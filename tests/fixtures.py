# SPDX-License-Identifier: Apache-2.0
"""The databases on which tests run, and an engine that checks the invariants after every call."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import pathlib
import shutil
import tempfile
import unittest
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import fixtures
import sqlalchemy as sa
from oslo_config import cfg

from cyborg_quota import Constraint, QuotaEngine
from cyborg_quota import conf as quota_conf
from cyborg_quota.capacity.selection import BestFit, ProviderSelection
from cyborg_quota.db import models, schema
from cyborg_quota.db.database import Database
from cyborg_quota.db.path_state import PathState
from cyborg_quota.db.settings import DatabaseSettings
from cyborg_quota.driver import DbQuotaDriver, DriverSettings
from cyborg_quota.ledger.limit_source import LimitDriver, PathLimits
from cyborg_quota.types import UNLIMITED, ResourceKey, UsageKey
from tests import invariants, kept_connections, needs, statement_cache

statement_cache.share()

BACKENDS = ("sqlite", "mariadb", "postgresql")
_MYSQL_CLIENT_FLAGS = invariants.MULTI_STATEMENTS | 1 << 1
"""For several statements in one round trip; and CLIENT_FOUND_ROWS, which SQLAlchemy needs."""
_inherited: list[Any] = []
SCENARIOS = [(backend, {"backend": backend}) for backend in BACKENDS]
MORE = int(os.environ.get("CYBORG_QUOTA_TEST_EXAMPLES_TIMES", "1"))
"""How many times as many histories, examples, turns and kills as in CI are run."""
ON_SQLITE = SCENARIOS[:1]
"""Of a test class whose rules are decided in Python: other tests execute the statements on each database."""


def admin_url(backend: str) -> str | None:
    """Return the URL of a server's admin database; None if there is no such server."""
    return os.environ.get(f"CYBORG_QUOTA_TEST_{backend.upper()}")


def missing_server(backend: str) -> str | None:
    """Return the reason why tests of ``backend`` cannot run here; None if they can."""
    if backend == "sqlite" or admin_url(backend) is not None:
        return None
    return f"no {backend} server: run tools/test.sh, or set CYBORG_QUOTA_TEST_{backend.upper()}"


def need_server(test: unittest.TestCase, backend: str) -> None:
    """Fail the test if its server is missing and required; skip it if it is missing and not required."""
    reason = missing_server(backend)
    if reason is not None:
        needs.missing(test, reason)


def _run_admin(backend: str, statement: str) -> None:
    with _admin_engine(str(admin_url(backend)), os.getpid()).connect() as connection:
        connection.exec_driver_sql(statement)


@functools.cache
def _admin_engine(url: str, _pid: int) -> sa.Engine:
    return sa.create_engine(url, isolation_level="AUTOCOMMIT", pool_size=1, pool_pre_ping=True)


def at_exit(do: Callable[[], object]) -> None:
    """Call the function when this process ends, and not when a forked child ends."""
    owner = os.getpid()

    def unless_forked() -> None:
        if os.getpid() == owner:
            do()

    atexit.register(unless_forked)


@functools.cache
def _directory(_pid: int) -> pathlib.Path:
    """Return a directory of this process, in memory if possible."""
    return own_directory("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def own_directory(base: str | None) -> pathlib.Path:
    path = pathlib.Path(tempfile.mkdtemp(prefix="cyborg-quota-test-", dir=base))
    at_exit(lambda: shutil.rmtree(path, ignore_errors=True))
    return path


def fresh_url(backend: str, name: str) -> str:
    """Return an empty database with this name (on SQLite: file name); an existing one is dropped first."""
    name = f"cq_{os.getpid()}_{name}"
    if backend == "sqlite":
        path = _directory(os.getpid()) / f"{name}.sqlite"
        for suffix in ("", "-wal", "-shm"):
            pathlib.Path(f"{path}{suffix}").unlink(missing_ok=True)
        return f"sqlite:///{path}"
    _run_admin(backend, f"DROP DATABASE IF EXISTS {name}")
    _run_admin(backend, f"CREATE DATABASE {name}")
    return sa.make_url(str(admin_url(backend))).set(database=name).render_as_string(hide_password=False)


def create_schema(url: str) -> None:
    """Make the schema in an empty database."""
    database = Database(settings(url))
    schema.sync(database)
    database.close()


@functools.cache
def synced_url(backend: str, pid: int, name: str = "shared") -> str:
    """Return a database with our schema that all tests of this process share."""
    url = fresh_url(backend, name)
    schema.sync(Database(settings(url)))
    if backend == "postgresql":
        kept_connections.keep(url)
    gc.freeze()  # the imported modules: no collection visits them again
    return url


def configuration(**options: object) -> cfg.ConfigOpts:
    """Our options, as a program without a file has them; ``options``: group__name=value."""
    conf = cfg.ConfigOpts()
    quota_conf.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    for name, value in options.items():
        group, _, option = name.partition("__")
        conf.set_override(option, value, group)
    return conf


def settings(url: str, **changes: Any) -> DatabaseSettings:
    """Return settings for tests: SQLite runs without fsync, because no test cuts the power."""
    return DatabaseSettings(url=url, **{"sqlite_synchronous": False, **changes})


def drop_views(sql: sa.Engine) -> None:
    """Drop all views. oslo.db's clean-up drops the tables, which PostgreSQL refuses while a view reads them."""
    with sql.begin() as connection:
        for name in sa.inspect(connection).get_view_names():
            connection.exec_driver_sql(f"DROP VIEW {name}")


def schema_of(sql: sa.Engine) -> dict[str, object]:
    """Return every table's columns, keys, CHECKs and indexes."""
    found: dict[str, object] = {}
    with sql.connect() as connection:
        inspector = sa.inspect(connection)
        for look_up in (
            inspector.get_multi_columns,
            inspector.get_multi_pk_constraint,
            inspector.get_multi_unique_constraints,
            inspector.get_multi_check_constraints,
            inspector.get_multi_foreign_keys,
            inspector.get_multi_indexes,
        ):
            for (_, table), details in look_up().items():
                texts = sorted(map(str, details)) if isinstance(details, list) else str(details)
                found[f"{table}, {look_up.__name__}"] = texts
    return found


class EmptyLedger(fixtures.Fixture):
    """A database with our schema and no rows; all tests of this process that use this name share it."""

    def __init__(self, backend: str, name: str = "shared") -> None:
        super().__init__()
        self._backend = backend
        self._name = name

    def _setUp(self) -> None:
        self.url = synced_url(self._backend, os.getpid(), self._name)
        try:
            _delete_all_rows(plain_engine(self.url))
        except sa.exc.DBAPIError as error:
            if not error.connection_invalidated:
                raise
            _delete_all_rows(plain_engine(self.url))  # the previous test has ended the sessions of its database


def _delete_all_rows(engine: sa.Engine) -> None:
    """Empty all tables in one round trip: a statement for each takes longer than many a test."""
    text = ";".join(f"DELETE FROM {table.name}" for table in reversed(models.metadata.sorted_tables))
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            driver: Any = connection.connection.dbapi_connection
            # An ANALYZE stored statistics of the previous test's rows.
            for table in ("sqlite_stat1", "sqlite_stat4"):
                text += f"; DROP TABLE IF EXISTS {table}"
            driver.executescript(f"BEGIN IMMEDIATE; {text}; COMMIT")
        else:
            connection.exec_driver_sql(text)


class DictLimits(LimitDriver):
    """Limits set by a test: ``{(project_id or None for all, resource): limit}``; and constraints of subtrees."""

    @classmethod
    def from_conf(cls, conf: Any) -> DictLimits:
        return cls()

    def __init__(self) -> None:
        self.own: dict[tuple[str | None, str], int] = {}
        self.subtree_limits: dict[tuple[str, str], int] = {}

    def bounds(self, states: Sequence[PathState], resources: Collection[str]) -> list[PathLimits]:
        parts = (name.partition(" in pod ") for _, name in [*self.own, *self.subtree_limits])
        keys = [*map(ResourceKey, resources), *sorted({ResourceKey(name, pod) for name, _, pod in parts if pod})]
        return [PathLimits(self._constraints(state.project_ids, keys)) for state in states]

    def _constraints(self, path: Sequence[str], keys: Iterable[ResourceKey]) -> list[Constraint]:
        found = []
        for key in keys:
            name = f"{key.resource} in pod {key.pod}" if key.pod else key.resource
            limit = self.own.get((path[0], name), self.own.get((None, name)))
            if limit is not None:
                found.append(Constraint(path[0], key.resource, limit, pod=key.pod))
            for project_id in path:
                if (project_id, name) in self.subtree_limits:
                    limit = self.subtree_limits[project_id, name]
                    found.append(Constraint(project_id, key.resource, limit, "subtree", key.pod))
        return found

    def limits(self, states: Sequence[PathState], resources: Collection[str]) -> Mapping[UsageKey, int]:
        keys = [UsageKey(state.project_ids[0], resource) for state in states for resource in resources]
        return {key: self.own.get(key[:2], self.own.get((None, key.resource), UNLIMITED)) for key in keys}


def make_engine(
    url: str,
    limits: LimitDriver | None = None,
    *,
    grace: float = 0.0,
    batch_rows: int = 500,
    least_capacity: int = 0,
    selection: ProviderSelection | None = None,
    hours_ahead: int | None = None,
    resources: Collection[str] = ("fpga", "gpu", "gpu.A100"),
    expire_seconds: int = 86400,
    **changes: Any,
) -> QuotaEngine:
    """Return an engine on ``url`` that counts these resources."""
    driver = DbQuotaDriver(
        DriverSettings(
            database=settings(url, **changes),
            expire_grace_seconds=grace,
            batch_rows=batch_rows,
            least_notified_limit=0,
            least_notified_capacity=least_capacity,
            subjects={"capacity": selection or BestFit(), "hours": hours_ahead},
        ),
        limits if limits is not None else DictLimits(),
    )
    return QuotaEngine(driver, resources=resources, reservation_expire_seconds=expire_seconds)


def open_engine(test: unittest.TestCase, *args: Any, **changes: Any) -> QuotaEngine:
    """An engine as of ``make_engine``, which is closed at the end of the test."""
    engine = make_engine(*args, **changes)
    test.addCleanup(engine.close)
    return engine


def open_database(test: unittest.TestCase, url: str, **changes: Any) -> Database:
    """A database that is closed at the end of the test."""
    database = Database(settings(url, **changes))
    test.addCleanup(database.close)
    return database


def plain_engine(url: str) -> sa.Engine:
    """Return an engine with SQLAlchemy's defaults, to read and change the tables independently of the ledger.

    All tests of this process that use the same database share its connection, which stays open: opening one takes
    PostgreSQL longer than a whole test needs otherwise. A forked child opens its own.
    """
    return _plain_engine(url, os.getpid())


@functools.cache
def _plain_engine(url: str, _pid: int) -> sa.Engine:
    options = {"connect_args": {"client_flag": _MYSQL_CLIENT_FLAGS}} if url.startswith("mysql") else {}
    engine = sa.create_engine(url, pool_size=1, max_overflow=-1, poolclass=sa.QueuePool, **options)

    def connect(_dbapi_connection: Any, record: Any) -> None:
        record.info["pid"] = os.getpid()

    def checkout(dbapi_connection: Any, record: Any, proxy: Any) -> None:
        if os.getpid() != record.info["pid"]:
            _inherited.append(dbapi_connection)  # closed, it would end the session of the parent
            record.dbapi_connection = proxy.dbapi_connection = None
            raise sa.exc.DisconnectionError("this connection belongs to the parent process")

    sa.event.listen(engine, "connect", connect)
    sa.event.listen(engine, "checkout", checkout)
    return engine


class Checked:
    """A wrapper of an engine that checks the invariants after every call, also after one that raised an error."""

    def __init__(self, engine: QuotaEngine, url: str) -> None:
        self._engine = engine
        self._sql = plain_engine(url)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._engine, name)
        if not callable(attribute) or name.startswith("_"):
            return attribute

        @functools.wraps(attribute)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                return attribute(*args, **kwargs)
            finally:
                with self._sql.connect() as connection:
                    invariants.assert_hold(connection)

        return checked
