# SPDX-License-Identifier: Apache-2.0
"""Who may set a project's limit. CERN's rule: the administrator of its parent, and not one further up."""

from __future__ import annotations

import dataclasses
import datetime
import os
import pathlib
from typing import Any
from unittest import mock

import fixtures as fx
from oslo_config import cfg

from cyborg_quota import ANY, Headroom, QuotaEngine, exceptions, policy
from tests import base, fixtures, hooks
from tests.functional import test_limits


@dataclasses.dataclass
class User(base.Context):
    """A context with roles, like that of Cyborg."""

    roles: Any = ()


class PolicyTestCase(test_limits.LimitsTestCase):
    scenarios: list[Any] = []

    def setUp(self) -> None:
        super().setUp()
        tree = {"atlas": None, "physics": "atlas", "higgs": "physics", "simulation": "physics"}
        self.import_tree(tree, {"atlas": 100, "physics": 30, "higgs": 10}, gpu=0)
        self.rules = pathlib.Path(self.useFixture(fx.TempDir()).path, "policy.yaml")

    def make_limited(self, **changes: Any) -> QuotaEngine:
        engine = super().make_limited(**changes)
        self.conf = fixtures.configuration()
        engine._authority = engine.limits._authority = policy.Policy(self.conf)
        return engine

    def may(self, context: Any, project_id: str | None, limit: int = 5) -> bool:
        try:
            self.admin.set_limit(context, "gpu", limit, project_id)
        except exceptions.NotAuthorized as error:
            self.assertNotIn(str(project_id), str(error))
            return False
        return True


class TestWhoMaySet(PolicyTestCase):
    def test_the_role_in_the_parent_decides(self) -> None:
        """Not one in the project itself, in a sibling, or further up."""
        self.assertTrue(self.may(User("atlas", roles=["admin"]), "physics", 20))
        for roles in (["manager"], ["member", "admin"]):
            self.assertTrue(self.may(User("physics", roles=roles), "higgs"))
        self.admin.unset_limit(User("physics", roles=["Admin"]), "gpu", "higgs")
        self.admin.set_limits(User("physics", roles=["admin"]), {"gpu": 4, "fpga": None}, "higgs")
        for project_id in ("atlas", "higgs", "simulation"):
            for role in ("admin", "manager"):
                self.assertFalse(self.may(User(project_id, roles=[role]), "higgs"))
        for context in (User("physics", roles=["member"]), User("physics"), base.Context("physics"), object()):
            self.assertFalse(self.may(context, "higgs"))
        # An engine without a configuration requires an admin.
        self.engine._authority = self.admin._authority = policy.Policy()
        self.assertFalse(self.may(User("physics", roles=["admin"]), "higgs"))
        self.assertTrue(self.may(base.ADMIN, "higgs"))

    def test_the_parent_of_a_root_matches_no_context(self) -> None:
        """oslo.policy compares strings: a context without a project must not match the missing parent of a root."""
        for project_id in (None, "None", ""):
            self.assertFalse(self.may(User(project_id, roles=["admin"]), "atlas"))
        self.make_tree({"None": None, "child": "None"})
        self.assertFalse(self.may(User(None, roles=["admin"]), "child", 0))
        self.assertTrue(self.may(User("None", roles=["admin"]), "child", 0))

    def test_only_an_admin_sets_defaults_and_the_tree(self) -> None:
        parent = User("physics", roles=["admin"])
        self.assertFalse(self.may(parent, None))
        for call, args in (
            (self.admin.add_project, ("x", "physics")),
            (self.admin.move_project, ("higgs", None)),
            (self.admin.remove_project, ("higgs",)),
            (self.admin.import_limits, ({},)),
        ):
            self.assertRaises(exceptions.NotAuthorized, call, parent, *args)


class TestOverrides(PolicyTestCase):
    """Who may set the limit of a project may set and cancel its overrides. Others do not learn that they exist (I8)."""

    def setUp(self) -> None:
        super().setUp()
        self.parent = User("physics", roles=["admin"])
        self.until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)

    def make(self, project_id: str, context: Any = base.ADMIN) -> str:
        """Make an override; returns its id."""
        (made,) = self.admin.set_overrides(context, {"gpu": 5}, project_id, self.until)
        return made.id

    def test_the_administrator_of_the_parent_may(self) -> None:
        """All or none."""
        for context in (self.parent, base.ADMIN):
            made = self.make("higgs", context)
            (cancelled,) = self.admin.cancel_overrides(self.parent, [made], reason="over")
            self.assertEqual(made, cancelled.id)
        self.assertEqual([], self.admin.list_overrides(base.ADMIN)[0])
        self.assertEqual("physics", self.admin.history(base.ADMIN)[0].user_project_id)
        own, other = self.make("higgs"), self.make("physics")
        for ids in ([own, other], [other, own]):
            error = self.assertRaises(exceptions.OverrideNotFound, self.admin.cancel_overrides, self.parent, ids)
            self.assertEqual(other, error.override_id)
        self.assertEqual([own, other], [one.id for one in self.admin.list_overrides(base.ADMIN)[0]])

    def test_it_is_checked_again_if_the_project_has_moved(self) -> None:
        """Between the check and the write of a limit, and of a cancelled override, it is moved below another parent."""
        self.set("physics", 20)
        made = self.make("higgs")
        move = lambda: self.make_limited().limits.move_project(base.ADMIN, "higgs", "atlas")  # noqa: E731
        with hooks.Meanwhile(policy.Policy, "permits", move, after=True) as asked:
            self.assertFalse(self.may(self.parent, "higgs"))
        self.assertEqual(2, asked.count)
        self.admin.move_project(base.ADMIN, "higgs", "physics")
        with hooks.Meanwhile(policy.Policy, "permits", move, after=True) as asked:
            self.assertRaises(exceptions.OverrideNotFound, self.admin.cancel_overrides, self.parent, [made])
        self.assertEqual((2, [made]), (asked.count, [one.id for one in self.admin.list_overrides(base.ADMIN)[0]]))


class TestPolicyFile(PolicyTestCase):
    def write(self, text: str) -> None:
        self.rules.write_text(text)
        self.engine._authority = self.admin._authority = policy.Policy(self.conf)
        policy.make_enforcer(self.conf)  # registers the options
        self.conf.set_override("policy_file", str(self.rules), "oslo_policy")

    def test_it_is_read_once(self) -> None:
        self.write('"cyborg_quota:limit:set": "role:quota_manager"\n')
        manager = User("elsewhere", roles=["quota_manager"])
        rules = policy.Policy(self.conf)
        self.assertTrue(rules.permits(policy.RULE, manager, "higgs"))
        self.rules.write_text('"cyborg_quota:limit:set": "role:somebody_else"\n')
        os.utime(self.rules, (2**31, 2**31))
        with mock.patch.object(cfg.ConfigOpts, "find_file", side_effect=AssertionError):
            self.assertTrue(rules.permits(policy.RULE, manager, "higgs"))
        self.assertFalse(policy.Policy(self.conf).permits(policy.RULE, manager, "higgs"))

    def test_a_file_that_is_wrong(self) -> None:
        """And one whose rule binds admins too."""
        self.write("{")
        error = self.assertRaises(exceptions.ConfigurationError, self.may, base.ADMIN, "higgs")
        self.assertIn("[oslo_policy] policy_file", str(error))
        self.write('"cyborg_quota:limit:set": "role:quota_manager"\n')
        self.assertFalse(self.may(base.ADMIN, "higgs"))

    def test_who_sees_what_fits_at_providers(self) -> None:
        """The rule may allow a project's own user to see it."""
        self.add_provider("n1", gpu=2)
        user = User("higgs", roles=["reader"])
        self.assertEqual(self.engine.headroom(user)["gpu"], self.engine.headroom(user, provider=ANY)["gpu"])
        self.write('"cyborg_quota:capacity:fits": "is_admin:True or project_id:%(project_id)s"\n')
        self.assertEqual(Headroom(2, ANY, "provider", None, 2), self.engine.headroom(user, provider=ANY)["gpu"])
