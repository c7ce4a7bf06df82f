# SPDX-License-Identifier: Apache-2.0
"""The calls on limits, overrides and their history, made by another project: no object is revealed (I8)."""

from __future__ import annotations

import datetime

import testscenarios

from cyborg_quota import exceptions
from tests import base, fixtures, hooks
from tests.security import test_every_call
from tests.security.test_every_call import BY_RULE, HOURS, NOBODY, STRANGER, STRANGERS, VICTIM

load_tests = testscenarios.load_tests_apply_scenarios


class TestLimits(test_every_call.EveryCallTestCase):
    """Changes of limits and overrides, which a policy rule permits."""

    scenarios = fixtures.ON_SQLITE

    def test_a_limit_or_a_budget_of_another_project(self) -> None:
        for project_id in (VICTIM, "above"):
            self.engine.hours.set_budget(base.ADMIN, {"gpu": 7}, project_id)
        self.before = hooks.tables(self.sql)
        hours = {call: HOURS[call] for call in ("set_budget", "adjust", "delete_budget", "show_budget")}
        for on, rows in ((self.engine.limits, BY_RULE), (self.engine.hours, hours)):
            for call, given in rows.items():
                for who, context in STRANGERS.items():
                    known, unknown = (
                        self.answer(self.engine, on, call, context, {**given, "project_id": project_id})
                        for project_id in (VICTIM, NOBODY)
                    )
                    self.assertEqual(unknown, known, (call, who))
                    self.assertIs(exceptions.NotAuthorized, known.kind)
                    self.assertFalse(
                        [text for text in known.statements if not text.startswith(("SELECT", "BEGIN", "SET"))]
                    )
        self.assert_untouched()

    def test_a_default_limit(self) -> None:
        """It is of no project: nothing is read before the refusal."""
        for call, given in BY_RULE.items():
            for who, context in STRANGERS.items():
                default = self.answer(self.engine, self.engine.limits, call, context, {**given, "project_id": None})
                self.assertEqual((exceptions.NotAuthorized, ()), (default.kind, default.statements), (call, who))

    def test_the_limits_that_another_project_would_have(self) -> None:
        for context in STRANGERS.values():
            for project_id in (VICTIM, NOBODY):
                found = self.answer(
                    self.engine, self.engine.limits, "default_limits", context, {"project_id": project_id}
                )
                self.assertEqual((exceptions.NotAuthorized, ()), (found.kind, found.statements))

    def test_an_override_of_another_project(self) -> None:
        until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
        (made,) = self.engine.limits.set_overrides(base.ADMIN, {"gpu": 60}, VICTIM, until)
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
            self.assertFalse([text for text in known.statements if not text.startswith(("SELECT", "BEGIN", "SET"))])
        self.assert_untouched()


class TestHistory(test_every_call.EveryCallTestCase):
    """The history of limits, read by users that are not admins."""

    scenarios = fixtures.ON_SQLITE

    def test_another_project_s_history_is_refused(self) -> None:
        on = self.engine.limits
        for who, context in STRANGERS.items():
            answers = [
                self.answer(self.engine, on, "history", context, {"project_id": project_id, "marker": marker})
                for project_id in (VICTIM, NOBODY)
                for marker in (None, "1-0", "100000-0")
            ]
            self.assertEqual({(exceptions.NotAuthorized, ())}, {(one.kind, one.statements) for one in answers}, who)
            self.assertEqual(1, len({one.words for one in answers}), who)

    def test_an_entry_of_another_project_is_an_unknown_marker(self) -> None:
        on = self.engine.limits
        theirs = [entry.id for entry in on.history(base.ADMIN) if entry.project_id != VICTIM]
        self.assertTrue(theirs)
        answers = [
            self.answer(self.engine, on, "history", base.Context(VICTIM), {"marker": marker})
            for marker in ("100000-0", theirs[0])
        ]
        self.assertEqual({exceptions.MarkerNotFound}, {one.kind for one in answers})
        self.assertEqual(1, len({len(one.statements) for one in answers}))
