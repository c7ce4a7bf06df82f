# SPDX-License-Identifier: Apache-2.0
"""The check that follows every fault test.

* The invariants hold in the bare tables, and audit finds no drift.
* No limit was exceeded at any time: a trigger checks every version of every usage row. With capacity, another trigger
  checks every version of every inventory.
* No answered call is lost or half done; a call without an answer is done completely or not at all.
* A retried call is charged once: it has as many rows as it requested, or none.
* Reservations in flight were requested and not settled. Requested again, they are not charged again; after they are
  settled, ``reserved`` is 0.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg_quota import QuotaEngine
from tests import base, invariants
from tests.faults.journal import ASK, OK, Entry, Journal

NONE = "none"
ENDED = ("rolled_back", "expired", "released")
# call: {state before: state after}. A state that is missing here does not change.
LANDS: dict[str, dict[str, str]] = {
    "reserve": {NONE: "reserved"},
    "commit": {"reserved": "committed"},
    "rollback": {"reserved": "rolled_back"},
    "release": {"reserved": "rolled_back", "committed": "released"},
    "extend": {},
}
# answered call: the states before it in which that answer is wrong
IMPOSSIBLE_AFTER: dict[str, set[str]] = {
    "reserve": {NONE, *ENDED},
    "commit": {NONE, *ENDED},
    "rollback": {NONE, "committed"},
    "release": set(),
    "extend": {NONE, *ENDED},
}
# refusal: the states in which it is right
TRUE_IN: dict[str, set[str]] = {
    "OverQuota": {NONE},
    "OverCapacity": {NONE},
    "ReservationNotFound": {NONE},
    "ReservationCommitted": {"committed"},
    "ReservationRolledBack": {"rolled_back"},
    "ReservationReleased": {"released"},
    "ReservationExpired": {"expired"},
}
OUTAGES = frozenset({"DatabaseUnavailable"})
"""Answers that leave open whether the call took effect."""


@dataclasses.dataclass
class Report:
    """The result of a run.

    ``errors`` counts the errors that callers got, by kind. The run failed unless ``problems`` is empty.
    """

    calls: int = 0
    errors: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    checks: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)


_NOTE = "INSERT INTO limits_passed (project_id, resource, held) SELECT"
_IF_OVER_LIMIT = (
    f"{_NOTE} NEW.project_id, NEW.resource, NEW.used + NEW.reserved FROM (SELECT 1) AS one"
    " WHERE NEW.used + NEW.reserved > CASE NEW.resource {limits} END"
)
_IF_OVER_CAPACITY = (
    f"{_NOTE} NEW.provider_id, NEW.resource, NEW.used FROM (SELECT 1) AS one WHERE NEW.used > NEW.capacity"
)


def _watch(connection: sa.Connection, table: str, note: str) -> None:
    """Create a trigger that runs this INSERT for every new version of a row."""
    trigger = f"CREATE TRIGGER {table}_watch AFTER UPDATE ON {table}"
    if connection.dialect.name == "postgresql":
        function = f"{table}_watch() RETURNS trigger AS $$ BEGIN {note}; RETURN NULL; END $$ LANGUAGE plpgsql"
        connection.exec_driver_sql(f"CREATE FUNCTION {function}")
        connection.exec_driver_sql(f"{trigger} FOR EACH ROW EXECUTE FUNCTION {table}_watch()")
    else:
        block = f"BEGIN {note}; END" if connection.dialect.name == "sqlite" else note
        connection.exec_driver_sql(f"{trigger} FOR EACH ROW {block}")


def watch(url: str, limits: Mapping[str, int]) -> None:
    """Record every version of a usage row that exceeds the limit of its resource, and of an inventory its capacity."""
    columns = "project_id VARCHAR(64), resource VARCHAR(64), held INTEGER"
    cases = " ".join(f"WHEN '{resource}' THEN {most}" for resource, most in limits.items())
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE limits_passed ({columns})")
        _watch(connection, "quota_usages", _IF_OVER_LIMIT.format(limits=cases))
        _watch(connection, "inventories", _IF_OVER_CAPACITY)


def check(url: str, engine: QuotaEngine, journal: Journal) -> Report:
    """Check everything, after all writers have ended; settles what is in flight. ``problems`` lists the violations."""
    requests = journal.by_request()
    words = collections.Counter(entry.word for entry in journal.entries())
    report = Report(words[ASK], collections.Counter({word: words[word] for word in words.keys() - {ASK, OK}}))
    sql = sa.create_engine(url, poolclass=sa.NullPool)
    _check_tables(sql, engine, report)
    with sql.connect() as connection:
        report.checks += 1
        passed = connection.exec_driver_sql("SELECT project_id, resource, held FROM limits_passed").all()
        report.problems += [f"a limit was passed: {row.project_id}: {row.held} {row.resource}" for row in passed]
    rows = _rows_by_request(sql)
    for request, entries in requests.items():
        report.checks += 1
        report.problems += _problems_of(request, entries, rows.get(request, []))
    report.problems += [f"{request}: was never made" for request in rows.keys() - requests.keys()]
    _settle_all(sql, engine, report)
    return report


def _check_tables(sql: sa.Engine, engine: QuotaEngine, report: Report) -> None:
    report.checks += 2
    with sql.connect() as connection:
        report.problems += invariants.find_violations(connection)
    report.problems += [f"audit: {drift}" for drift in engine.audit(base.ADMIN)]


def _rows_by_request(sql: sa.Engine) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = collections.defaultdict(list)
    columns = "group_id, project_id, resource, delta, consumer_id, uuid, state"
    with sql.connect() as connection:
        provider = "(SELECT uuid FROM resource_providers WHERE id = provider_id)"
        query = f"SELECT {columns}, {provider} AS provider FROM reservations ORDER BY id"
        for row in connection.exec_driver_sql(query):
            if row.group_id is not None:
                found[row.group_id].append(row)
    return found


def possible_states(entries: Sequence[Entry]) -> tuple[set[str], str]:
    """Return the possible states of a request after these calls, and the answer that was wrong ("" if none was)."""
    states = {NONE}
    for entry in entries:
        if entry.word == ASK:  # from here on it may take effect at any time
            states |= _took_effect(states, entry.call)
        elif entry.word == OK:
            states = _took_effect(states, entry.call)
            states -= IMPOSSIBLE_AFTER[entry.call]
        elif entry.word in TRUE_IN:
            states &= TRUE_IN[entry.word]
        elif entry.word not in OUTAGES:
            return states, f"{entry.call} was answered {entry.word}: {entry.detail}"
        if not states:
            return states, f"{entry.call} was answered {entry.word}, which cannot be"
    return states, ""


def _took_effect(states: set[str], call: str) -> set[str]:
    return {LANDS[call].get(state, state) for state in states}


def _problems_of(request: str, entries: Sequence[Entry], rows: Sequence[Any]) -> list[str]:
    problems = []
    states, wrong_answer = possible_states(entries)
    if wrong_answer:
        problems.append(f"{request}: {wrong_answer}")
    wanted = entries[0].rows
    if len(rows) not in (0, wanted):
        problems.append(f"{request}: {len(rows)} rows, requested {wanted} (charged twice, or in part)")
    found = {row.state for row in rows} or {NONE}
    if len(found) > 1:
        problems.append(f"{request}: settled in part: {sorted(found)}")
    elif states and not found <= states:
        problems.append(f"{request}: an answered call is lost: {found.pop()}, should be {' or '.join(sorted(states))}")
    if any(row.project_id != entries[0].project_id for row in rows):
        problems.append(f"{request}: charged to another project")
    return problems


def _settle_all(sql: sa.Engine, engine: QuotaEngine, report: Report) -> None:
    """Repeat the reserves in flight, then release them or let them expire: counters must return to zero."""
    rows = {
        request: [row for row in stored if row.state == "reserved"] for request, stored in _rows_by_request(sql).items()
    }
    before = _counters(sql)
    for request, in_flight in rows.items():
        consumers = {row.consumer_id for row in in_flight}
        if not in_flight or None in consumers:
            continue
        report.checks += 1
        context = base.Context(in_flight[0].project_id)
        for consumer in consumers:
            held_rows = {row.resource: row for row in in_flight if row.consumer_id == consumer}
            (provider,) = {row.provider for row in held_rows.values()}
            deltas = {name: row.delta for name, row in held_rows.items()}
            again = engine.reserve(context, deltas, consumer=consumer, group=request, provider=provider)
            if sorted(again) != sorted(row.uuid for row in held_rows.values()):
                report.problems.append(f"{request}: repeated, it was answered with other reservations")
    if _counters(sql) != before:
        report.problems.append("what was asked for again was charged again")
    for request, in_flight in rows.items():
        if in_flight and in_flight[0].consumer_id is not None:
            engine.rollback(base.Context(in_flight[0].project_id), group=request)
    with sql.begin() as connection:  # without a consumer it cannot be requested again: it expires
        connection.exec_driver_sql("UPDATE reservations SET expire = '2001-01-01 00:00:00' WHERE state = 'reserved'")
    engine.expire(base.ADMIN)
    left = {key: figures for key, figures in _counters(sql).items() if figures[1]}
    if left:
        report.problems.append(f"reserved is not 0 when nothing is in flight: {left}")
    _check_tables(sql, engine, report)


def _counters(sql: sa.Engine) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (used, reserved) by project and resource."""
    with sql.connect() as connection:
        found = connection.exec_driver_sql("SELECT project_id, resource, used, reserved FROM quota_usages")
        return {(row.project_id, row.resource): (row.used, row.reserved) for row in found}
