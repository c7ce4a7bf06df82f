# SPDX-License-Identifier: Apache-2.0
"""The calls on limits, overrides and their history, made by another project: no object is revealed (I8)."""

from __future__ import annotations

import datetime
import itertools

import testscenarios

from cyborg_quota import exceptions
from tests import base, fixtures, hooks
from tests.security import test_every_call
from tests.security.test_every_call import BY_RULE, HOURS, NOBODY, STRANGER, STRANGERS, VICTIM

load_tests = testscenarios.load_tests_apply_scenarios


class TestLimits(test_every_call.EveryCallTestCase):
    """Changes of limits and overrides, which a policy rule permits, and the history that users read."""

    scenarios = fixtures.ON_SQLITE

    def assert_only_read(self, answer: test_every_call.Answer) -> None:
        self.assertFalse([text for text in answer.statements if not text.startswith(("SELECT", "BEGIN", "SET"))])

    def test_a_limit_or_a_budget_of_another_project(self) -> None:
        """A default limit is of no project: nothing is read before the refusal."""
        for project_id in (VICTIM, "above"):
            self.engine.hours.set_budget(base.ADMIN, {"gpu": 7}, project_id)
        self.before = hooks.tables(self.sql)
        hours = {call: HOURS[call] for call in ("set_budget", "adjust", "delete_budget", "show_budget")}
        for on, rows in ((self.engine.limits, BY_RULE), (self.engine.hours, hours)):
            for (call, given), (who, context) in itertools.product(rows.items(), STRANGERS.items()):
                known, unknown, default = (
                    self.answer(self.engine, on, call, context, {**given, "project_id": project_id})
                    for project_id in (VICTIM, NOBODY, None)
                )
                self.assertEqual(unknown, known, (call, who))
                self.assertIs(exceptions.NotAuthorized, known.kind)
                self.assert_only_read(known)
                if rows is BY_RULE:
                    self.assertEqual((exceptions.NotAuthorized, ()), (default.kind, default.statements), (call, who))
        self.assert_untouched()

    def test_an_override_of_another_project(self) -> None:
        (made,) = self.engine.limits.set_overrides(base.ADMIN, {"gpu": 60}, VICTIM, datetime.datetime(2999, 1, 1))
        self.before = hooks.tables(self.sql)
        on = self.engine.limits
        # The first synchronized read asks the server whether it is a Galera node.
        self.answer(self.engine, on, "cancel_overrides", base.Context(STRANGER), {"ids": ["999-0"]})
        for who, context in STRANGERS.items():
            known, unknown = (
                self.answer(self.engine, on, "cancel_overrides", context, {"ids": [one]}) for one in (made.id, "999-0")
            )
            self.assertIs(exceptions.OverrideNotFound, known.kind)
            self.assertEqual(unknown.statements, known.statements, who)
            self.assertEqual(unknown.words.replace("999-0", "ID"), known.words.replace(made.id, "ID"), who)
            self.assert_only_read(known)
        self.assert_untouched()

    def test_another_project_s_history_and_default_limits_are_refused(self) -> None:
        for who, context in STRANGERS.items():
            for call, markers in (("history", (None, "1-0", "100000-0")), ("default_limits", (None,))):
                answers = [
                    self.answer(
                        self.engine,
                        self.engine.limits,
                        call,
                        context,
                        {"project_id": project_id, **({"marker": marker} if marker else {})},
                    )
                    for project_id in (VICTIM, NOBODY)
                    for marker in markers
                ]
                self.assertEqual({(exceptions.NotAuthorized, ())}, {(one.kind, one.statements) for one in answers}, who)
                self.assertEqual(1, len({one.words for one in answers}), who)

    def test_an_entry_of_another_project_is_an_unknown_marker(self) -> None:
        on = self.engine.limits
        theirs = [entry.id for entry in on.history(base.ADMIN) if entry.project_id != VICTIM]
        answers = [
            self.answer(self.engine, on, "history", base.Context(VICTIM), {"marker": marker})
            for marker in ("100000-0", theirs[0])
        ]
        self.assertEqual({exceptions.MarkerNotFound}, {one.kind for one in answers})
        self.assertEqual(1, len({len(one.statements) for one in answers}))
