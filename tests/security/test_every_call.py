# SPDX-License-Identifier: Apache-2.0
"""Every public call, made by another project: existing and unknown objects get the same answer (I8).

The calls are taken from the classes, and the arguments that can name an object (a project, reservations, a consumer, a
group) from their signatures: a new method or argument is tested too, or fails the test until it has a row here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

import testscenarios
from oslo_context import context as oslo_context

import cyborg_quota
from cyborg_quota import Claim, Inventory, QuotaEngine, exceptions
from cyborg_quota.capacity.api import Capacity
from cyborg_quota.hours.api import Hours
from cyborg_quota.limits.api import Limits
from cyborg_quota.metrics.monitoring import Monitoring
from cyborg_quota.pods.api import Pods
from tests import base, hooks, on_sqlite
from tests.functional import test_limits

load_tests = testscenarios.load_tests_apply_scenarios

VICTIM, STRANGER, NOBODY = "victim", "stranger", "nobody"
UNKNOWN = "5b5d71cd-2f3a-44ee-9d33-64a6a5f2a9cc"
STATES = ("flying", "overdue", "committed", "ended")

# The arguments of each call besides those that name an object. None: it takes no context, and shows no project's data.
OWN: dict[str, dict[str, Any] | None] = {
    "resources": None,
    "list_resources": None,
    "register_resource": None,
    "register_resources": None,
    "subjects": None,
    "capacity": None,
    "hours": None,
    "pods": None,
    "limits": None,
    "monitoring": None,
    "close": None,
    "ping": None,
    "limit_scans": None,
    "location": None,
    "reserve": {"deltas": {"gpu": 1}},
    "reserve_many": {"claims": [Claim("flying", {"gpu": 1})]},
    "check": {"deltas": {"gpu": 1}},
    "get_usages": {},
    "get_reservations": {},
    "headroom": {},
    "get_detail": {},
    "how_many": {"bundle": {"gpu": 1}},
    "commit": {},
    "rollback": {},
    "release": {},
    "extend": {},
    "resize": {"amounts": {"gpu": 1}},
}
OF_PROJECT = {call: given for call, given in OWN.items() if given is not None}
ADMINS: dict[str, dict[str, Any]] = {
    "adopt": {"claims": [Claim("flying", {"gpu": 1})], "project_id": VICTIM},
    "list_usages": {},
    "list_reservations": {},
    "list_by_consumer": {},
    "set_source": {"reservations": [UNKNOWN], "source": "stranger"},
    "expire": {},
    "purge": {"older_than_seconds": 10**6},
    "notices": {},
    "audit": {},
    "heal": {},
    "transfer": {"to_project": NOBODY, "consumer": "flying", "project_id": VICTIM},
}
BY_RULE: dict[str, dict[str, Any]] = {
    "add_project": {"project_id": "new", "parent_id": VICTIM},
    "set_limit": {"resource": "gpu", "limit": 5, "project_id": VICTIM},
    "unset_limit": {"resource": "gpu", "project_id": VICTIM},
    "set_limits": {"limits": {"gpu": 5}, "project_id": VICTIM},
    "set_minimums": {"minimums": {"gpu": 1}, "project_id": VICTIM},
    "set_overrides": {"limits": {"gpu": 5}, "project_id": VICTIM, "until": datetime.datetime(2999, 1, 1)},
}
ADMINISTRATION: dict[str, dict[str, Any]] = {
    "list_projects": {},
    "move_project": {"project_id": VICTIM, "parent_id": None},
    "remove_project": {"project_id": "empty"},
    "import_projects": {"parents": {VICTIM: None}},
    "list_limits": {},
    "list_pod_limits": {},
    "tree": {},
    "path": {"project_id": VICTIM},
    "list_over": {},
    "over_page": {},
    "export_limits": {},
    "import_limits": {"document": {}},
    "is_known_project": {"project_id": VICTIM},
    "require_project": {"project_id": VICTIM},
    "generation_of": {"project_id": VICTIM},
    "list_holders": {},
    "list_holdings": {"project_ids": [VICTIM]},
    "limits_in_force": {"project_ids": [VICTIM]},
    "list_overrides": {},
    "purge_history": {"older_than_seconds": 0},
    "get_parent": {"project_id": VICTIM},
    "set_total_limits": {"limits": {"gpu": 1000}},
    "unset_total_limits": {"resources": ["gpu"]},
    "list_total_limits": {},
    "count_total_limits_held": {"resources": ["gpu"]},
    "tree_page": {"project_id": VICTIM},
    "list_defaults": {},
    "bounds_of_minimums": {"project_id": VICTIM, "resources": ["gpu"]},
}
CAPACITY: dict[str, dict[str, Any]] = {
    "add_provider": {"name": "n2"},
    "list_providers": {},
    "show_provider": {"provider": "n1"},
    "remove_provider": {"provider": "n1"},
    "set_inventories": {"provider": "n1", "inventories": {"gpu": Inventory(1)}},
    "remove_inventory": {"provider": "n1", "resource": "gpu"},
    "list_inventories": {},
    "list_allocations": {},
    "find_provider": {"names": ["n1"], "resources": ["gpu"]},
    "report": {},
    "require_pods": {"names": ["pod1"]},
    "set_provider": {"provider": "n1", "can_host": False},
    "set_served": {"provider": "n1", "add": ["n2"]},
    "notices": {},
}
"""Every call is an admin's."""

PODS: dict[str, dict[str, Any]] = {
    "add": {"name": "pod1"},
    "list_pods": {},
    "show": {"name": "pod1"},
    "change": {"name": "pod1", "weight": 1},
    "remove": {"name": "pod1"},
    "list_bindings": {},
    "move_binding": {"project_id": VICTIM, "pod": "pod1"},
    "end_binding": {"project_id": VICTIM},
    "end_bindings": {"pod": "pod1"},
    "list_usages": {},
    "set_usage": {"name": "pod1", "usage": {}},
    "collect": {},
    "notices": {},
}
"""Every call but ``select`` is an admin's; see tests/functional/test_pods.py."""

HOURS: dict[str, dict[str, Any]] = {
    "list_budgets": {},
    "notices": {},
    "set_budget": {"hours": {"gpu": 5}, "project_id": VICTIM},
    "adjust": {"hours": {"gpu": 5}, "project_id": VICTIM},
    "delete_budget": {"project_id": VICTIM},
    "show_budget": {"project_id": VICTIM},
    "report": {"start": datetime.date(2026, 1, 1), "until": datetime.date(2026, 1, 1)},
}
"""Calls on other projects; see tests/api/test_budgets.py."""

MONITORING: dict[str, dict[str, Any]] = {
    "read": {"project_ids": [VICTIM]},
}
"""Every call is an admin's."""

OF_OWN_PROJECT = {"history", "default_limits"}
"""Calls of the administration that a project's own users may make; see test_limit_calls.py."""
BY_RULE_AND_ID = {"cancel_overrides"}
"""Calls to which the policy rule applies, and which name what they change by an id; see test_limit_calls.py."""
PACKAGE = {"attachment", "make_engine"}
"""Functions of the package. The first is called below; the second reads a configuration, and takes no context."""

NAMES: dict[str, tuple[Any, Any]] = {
    "project_id": (VICTIM, NOBODY),
    "parent_id": (VICTIM, NOBODY),
    "consumer": ("flying", "unheld"),
    "group": ("together", "unjoined"),
    "reservations": (None, [UNKNOWN]),
    "reservation": (None, UNKNOWN),
}
"""An existing object and an unknown one, for each argument that names one. (Each test makes its reservations.)"""

STRANGERS: dict[str, Any] = {
    "a member": base.Context(STRANGER),
    "an administrator by role alone": oslo_context.RequestContext(
        project_id=STRANGER, roles=["admin"], is_admin=False, overwrite=False
    ),
    "one whose is_admin is a text": base.Context(STRANGER, is_admin="False"),  # type: ignore[arg-type]
    "one without is_admin": type("Bare", (), {"project_id": STRANGER})(),
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(kind: type, call: str) -> list[str]:
    """Return the names of its arguments; none of a property, or of an attribute of each object."""
    attribute = getattr(kind, call, None)
    return list(inspect.signature(attribute).parameters)[1:] if inspect.isfunction(attribute) else []


@dataclasses.dataclass(frozen=True)
class Answer:
    """Everything that a caller can observe, and what was sent to the database, with names replaced."""

    kind: type
    words: str
    data: str
    statements: tuple[str, ...]


class EveryCallTestCase(test_limits.LimitsTestCase):
    """The victim holds something in each state, as a child of ``above``; "nobody" holds nothing, and is unknown."""

    def setUp(self) -> None:
        super().setUp()
        self.set(None, 100)
        self.make_tree({"above": None, VICTIM: "above", "empty": None})
        self.set("above", 100)
        self.set(VICTIM, 50)
        victim = base.Context(VICTIM)
        self.uuids = {
            name: self.quotas.reserve(victim, {"gpu": 1}, consumer=name, group="together")[0] for name in STATES
        }
        self.quotas.commit(victim, consumer="committed")
        self.quotas.rollback(victim, consumer="ended")
        self.make_overdue(self.uuids["overdue"])
        # The cache of this process's own reservations must not change an answer.
        self.engines = {"warm": self.engine, "cold": self.make_limited()}
        for engine in self.engines.values():
            engine.reserve(base.Context(STRANGER), {"gpu": 1}, consumer="mine")
            engine.resize(base.Context(STRANGER), {"gpu": 1}, consumer="mine")
            with contextlib.suppress(exceptions.QuotaError):
                engine.commit(base.Context(STRANGER), [UNKNOWN])
        self.before = hooks.tables(self.sql)

    def assert_untouched(self, *why: object) -> None:
        self.assertEqual(self.before, hooks.tables(self.sql), why)

    def answer(self, engine: QuotaEngine, on: Any, call: str, context: Any, named: dict[str, Any]) -> Answer:
        with hooks.recorded_statements(engine) as recorded:
            try:
                kind, words, data = type(None), repr(getattr(on, call)(context, **named)), ""
            except exceptions.QuotaError as error:
                kind, words, data = type(error), str(error), repr(sorted(error.__dict__.items()))
        hidden = [*self.uuids.values(), UNKNOWN, VICTIM, NOBODY]
        hidden += [name for pair in ("consumer", "group") for name in NAMES[pair]]
        pattern = "|".join(["(?<=at )0x[0-9a-f]+", *sorted(map(re.escape, hidden), key=len, reverse=True)])
        # (The numbers are in the text of a statement that is a transaction of its own.)
        sent = (re.sub(r"\b\d+\b", "?", text) if text.endswith("-- COMMIT") else text for text in recorded)
        return Answer(kind, re.sub(pattern, "X", words), re.sub(pattern, "X", data), tuple(sent))

    def pairs(self, names: list[str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Return each way to name an existing object, with the same way to name an unknown one."""
        for name in names:
            known, unknown = NAMES[name]
            uuids = list(self.uuids.values())
            by_kind = {"reservations": [[uuid] for uuid in uuids], "reservation": uuids}
            knowns = by_kind.get(name, [known])
            yield from (({name: one}, {name: unknown}) for one in knowns)
            if name == "project_id" or "project_id" not in names:
                continue
            # With its project: neither the project's existence nor that of the object may be revealed.
            for project_id, other in ((VICTIM, NOBODY), (VICTIM, VICTIM), (STRANGER, STRANGER)):
                for one in knowns:
                    yield {name: one, "project_id": project_id}, {name: unknown, "project_id": other}


class TestTheTable(EveryCallTestCase):
    scenarios: list[Any] = []

    def test_every_method_has_a_row(self) -> None:
        parts = {name for name in vars(self.engine) if not name.startswith("_")}
        self.assertEqual(public(QuotaEngine) | parts - {"subjects"}, OWN.keys() | ADMINS.keys())
        # (The last two show no project's data.)
        others = (
            OF_OWN_PROJECT | BY_RULE_AND_ID | {"limit_if_missing", "require_own_tree", "read_only", "require_stored"}
        )
        for kind, rows in (
            (Limits, BY_RULE.keys() | ADMINISTRATION.keys() | others),
            (Capacity, CAPACITY.keys()),
            (Hours, HOURS.keys()),
            (Pods, PODS.keys() | {"select"}),
            (Monitoring, MONITORING.keys()),
        ):
            self.assertEqual(rows, public(kind))
        functions = {name for name in cyborg_quota.__all__ if inspect.isfunction(getattr(cyborg_quota, name))}
        self.assertEqual(PACKAGE, functions)

    def test_every_call_of_the_parts_needs_an_admin(self) -> None:
        """Of engine.capacity, engine.pods, ...: by the policy, not by a project."""
        for part, action, calls in (
            ("capacity", None, CAPACITY),
            ("pods", "", PODS),
            ("hours", "", HOURS),
            ("monitoring", "", MONITORING),
        ):
            for (call, given), (who, context) in itertools.product(calls.items(), STRANGERS.items()):
                method = getattr(getattr(self.engine, part), call)
                error = self.assertRaises(exceptions.NotAuthorized, method, context, **given)
                self.assertIn(call if action is None else action, error.action, who)

    def test_methods_without_a_context_show_no_project(self) -> None:
        """The rows without arguments are those of methods that do not know the caller."""
        for call, given in OWN.items():
            self.assertEqual(given is not None, "context" in parameters(QuotaEngine, call), call)

    def test_every_argument_is_tested_or_names_nothing(self) -> None:
        """A new argument may name an object of another project."""
        harmless = {
            "context", "deltas", "claims", "expire", "resources", "state", "limit", "progress", "older_than_seconds",
            "project_ids", "count", "resource", "limits", "document", "dry_run", "after", "source", "parents",
            "with_headroom", "reason", "since", "marker", "ids", "start", "until",
            "provider", "amounts", "expected", "known_as", "replaced", "redacted", "replace", "to_project",
            "minimums", "force", "bundle", "consumers",  # (of list_by_consumer, which is an administrator's)
            "seconds", "subject", "user_id", "oldest_first", "generation",  # (user_id is an administrator's)
            "pod", "projects",  # (only a name that the policy rule allows; a number of list_pod_limits)
        }  # fmt: skip
        for kind in (QuotaEngine, Limits):
            for call in public(kind) - {"resources", "register_resource", "register_resources"}:
                self.assertLessEqual(set(parameters(kind, call)), harmless | NAMES.keys(), call)


class TestOtherProject(EveryCallTestCase):
    """A context that is not an admin's."""

    @on_sqlite
    def test_existing_and_unknown_objects_get_the_same_answer(self) -> None:
        for call, given in OF_PROJECT.items():
            names = parameters(QuotaEngine, call)
            for (memory, engine), (who, context), (known, unknown) in itertools.product(
                self.engines.items(), STRANGERS.items(), self.pairs([name for name in names if name in NAMES])
            ):
                if call in ("reserve", "reserve_many") and known.get("project_id") != VICTIM:
                    continue  # (it would be charged)
                why = (call, memory, who, known)
                found = self.answer(engine, engine, call, context, {**given, **known})
                self.assertEqual(self.answer(engine, engine, call, context, {**given, **unknown}), found, why)
                if known.get("project_id", STRANGER) != STRANGER:
                    nothing = known.keys() == {"project_id"} and {"reservations", "reservation"} & set(names)
                    kind = exceptions.InvalidSelection if nothing else exceptions.NotAuthorized
                    self.assertEqual((kind, ()), (found.kind, found.statements), why)
        self.assert_untouched()

    def test_a_reserve_with_names_of_another_project(self) -> None:
        """The own project is charged, with the same statements as any first reserve."""
        for call in ("reserve", "reserve_many"):
            answers = []
            for project_id, group, consumer in (
                (f"{call} 0", "unjoined", "unheld"),  # (prepares statements)
                (f"{call} 1", "unjoined", "unheld"),
                (f"{call} 2", "together", "flying"),
            ):
                named = {"group": group, "consumer": consumer} if call == "reserve" else {"group": group}
                given = {**OF_PROJECT[call], **named}
                answer = self.answer(self.engine, self.engine, call, base.Context(project_id), given)
                answers.append((answer.kind, answer.statements))
            self.assertEqual(*answers[1:])
        for table in ("reservations", "quota_usages"):
            mine = [row for row in hooks.tables(self.sql)[table] if VICTIM in row]
            self.assertEqual([row for row in self.before[table] if VICTIM in row], mine)

    @on_sqlite
    def test_no_invalid_argument_reveals_it(self) -> None:
        """Whatever is checked first: the order of the checks must not depend on what exists."""
        for call, given in OF_PROJECT.items():
            taken = parameters(QuotaEngine, call)
            for known, unknown in self.pairs([name for name in taken if name in NAMES]):
                for spoilt in set(taken) - {"context"} - known.keys():
                    if spoilt in ("consumer", "group") and "reservations" not in taken and "project_id" not in known:
                        continue  # (a reserve that would be charged)
                    found, other = (
                        self.answer(
                            self.engine, self.engine, call, base.Context(STRANGER), {**given, **named, spoilt: object()}
                        )
                        for named in (known, unknown)
                    )
                    why = (call, known, spoilt)
                    self.assertIsNot(type(None), found.kind, why)
                    self.assertEqual(dataclasses.replace(other, data=""), dataclasses.replace(found, data=""), why)
        self.assert_untouched()

    @on_sqlite
    def test_an_admin_call_is_refused_before_the_first_statement(self) -> None:
        contexts = {**STRANGERS, "the project itself": base.Context(VICTIM)}
        for on, rows in ((self.engine, ADMINS), (self.engine.limits, ADMINISTRATION)):
            for call, given in rows.items():
                pairs = self.pairs([name for name in parameters(type(on), call) if name in NAMES])
                names = [{}, *itertools.chain.from_iterable(pairs)]
                for (who, context), named in itertools.product(contexts.items(), names):
                    found = self.answer(self.engine, on, call, context, {**given, **named})
                    self.assertEqual((exceptions.NotAuthorized, ()), (found.kind, found.statements), (call, who))
                    self.assertEqual(f"Not authorized: {call} needs an admin's context.", found.words)
        self.assert_untouched()

    @on_sqlite
    def test_an_attachment_for_another_project(self) -> None:
        for who, context in STRANGERS.items():
            known, unknown = (
                cyborg_quota.attachment(self.engine, context, {"gpu": 1}, consumer="flying", project_id=project_id)
                for project_id in (VICTIM, NOBODY)
            )
            error, other = (self.assertRaises(exceptions.NotAuthorized, one.__enter__) for one in (known, unknown))
            self.assertEqual(str(error), str(other), who)
        self.assert_untouched()


class TestAdmin(EveryCallTestCase):
    """An admin's context can make every call, for any project."""

    def test_every_call(self) -> None:
        for call, given in OF_PROJECT.items():
            named = {**given, "project_id": VICTIM}
            uuids = self.engine.reserve(base.ADMIN, {"gpu": 1}, project_id=VICTIM)
            selected = {"reservations": uuids, "reservation": uuids[0]}
            named |= {name: selected[name] for name in selected if name in parameters(QuotaEngine, call)}
            self.assert_answered(self.engine, call, named)
        for on, rows in ((self.engine, ADMINS), (self.engine.limits, {**BY_RULE, **ADMINISTRATION})):
            for call, given in rows.items():
                self.assert_answered(on, call, given)
        self.assert_invariants()

    def assert_answered(self, on: Any, call: str, named: dict[str, Any]) -> None:
        found = self.answer(self.engine, on, call, base.ADMIN, named)
        self.assertIs(type(None), found.kind, (call, found.words))

    @on_sqlite
    def test_a_string_that_equals_every_other(self) -> None:
        """The project is determined by the characters of its name, and not by the methods of a str subclass."""

        methods = {"__eq__": lambda *_: True, "__ne__": lambda *_: False, "__hash__": str.__hash__}
        agreeable = type("Agreeable", (str,), methods)(VICTIM)
        self.assertRaises(exceptions.NotAuthorized, self.engine.get_usages, base.Context(STRANGER), agreeable)
