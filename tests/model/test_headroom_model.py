# SPDX-License-Identifier: Apache-2.0
"""The headroom against the calls that it predicts, on random trees, under each enforcement model, on every database.

After random changes of limits, overrides and the total limit, of the tree, of usage and of
reservations in flight: a reserve of ``fits`` passes, a reserve of ``fits`` + 1 is refused, and its error names the
project and the limit of the headroom.
"""

from __future__ import annotations

import contextlib
import datetime

import testscenarios
from hypothesis import stateful
from hypothesis import strategies as st

from cyborg_quota import Headroom, exceptions
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.types import MAX_AMOUNT
from tests import base, fixtures
from tests.model import histories
from tests.model.test_limit_model import PARENTS, POLICIES, PROJECTS

LIMITS = st.sampled_from([-1, 0, 1, 2, 3, 5, 8, 13, 21, MAX_AMOUNT, 2**40])
AMOUNTS = st.sampled_from([1, 2, 3, 5, MAX_AMOUNT - 2])
TOTALS = st.sampled_from([0, 1, 3, 8, 13, 21, MAX_AMOUNT, 2**40])
NEVER = datetime.datetime(2999, 1, 1)
EXAMPLES = {"sqlite": 4, "mariadb": 1, "postgresql": 1}
SEED = 6


class Headrooms(histories.LedgerMachine):
    """``policy`` is set by the test. Changes that the engine refuses change nothing."""

    policy = "strict_hierarchy"

    def __init__(self) -> None:
        super().__init__()
        limits = DatabaseLimitDriver(POLICIES[self.policy](), InitialLimits(child=None))
        self.begin_with(limits, resources=["gpu"])
        self.open: list[str] = []

    @stateful.initialize(parents=st.lists(st.tuples(PROJECTS, PARENTS), max_size=8), limit=LIMITS)
    def begin(self, parents: list[tuple[str, str | None]], limit: int) -> None:
        for project, parent in parents:
            self.place(project, parent)
        self.set_limit(None, limit)

    @stateful.rule(project=st.one_of(st.none(), PROJECTS), limit=st.one_of(st.none(), LIMITS))
    def set_limit(self, project: str | None, limit: int | None) -> None:
        with contextlib.suppress(exceptions.LimitRefused):
            self.engine.limits.set_limits(base.ADMIN, {"gpu": limit}, project)

    @stateful.rule(project=PROJECTS, limit=LIMITS, starts_later=st.booleans())
    def set_override(self, project: str, limit: int, starts_later: bool) -> None:
        start = NEVER - datetime.timedelta(days=1) if starts_later else None
        with contextlib.suppress(exceptions.LimitRefused):
            self.engine.limits.set_overrides(base.ADMIN, {"gpu": limit}, project, NEVER, start=start)

    @stateful.rule(data=st.data())
    def cancel_override(self, data: st.DataObject) -> None:
        made, _ = self.engine.limits.list_overrides(base.ADMIN)
        if made:
            with contextlib.suppress(exceptions.LimitRefused):
                self.engine.limits.cancel_overrides(base.ADMIN, [data.draw(st.sampled_from(made)).id])

    @stateful.rule(limit=st.one_of(st.none(), TOTALS, TOTALS))
    def set_total(self, limit: int | None) -> None:
        totals = self.engine.limits
        if limit is not None:
            totals.set_total_limits(base.ADMIN, {"gpu": limit})
        elif totals.list_total_limits(base.ADMIN):
            totals.unset_total_limits(base.ADMIN, ["gpu"])

    @stateful.rule(project=PROJECTS, parent=PARENTS)
    def place(self, project: str, parent: str | None) -> None:
        refused = (exceptions.ProjectRefused, exceptions.LimitRefused)
        with contextlib.suppress(*refused):
            self.engine.limits.add_project(base.ADMIN, project, parent)
            return
        with contextlib.suppress(*refused):
            self.engine.limits.move_project(base.ADMIN, project, parent)

    @stateful.rule(project=PROJECTS, amount=AMOUNTS, is_committed=st.booleans())
    def hold(self, project: str, amount: int, is_committed: bool) -> None:
        with contextlib.suppress(exceptions.QuotaError):
            uuids = self.quotas.reserve(base.ADMIN, {"gpu": amount}, project_id=project)
            if is_committed:
                self.quotas.commit(base.ADMIN, uuids)
            else:
                self.open += uuids

    @stateful.precondition(lambda self: self.open)
    @stateful.rule(data=st.data(), is_committed=st.booleans())
    def settle(self, data: st.DataObject, is_committed: bool) -> None:
        uuid = data.draw(st.sampled_from(self.open))
        self.open.remove(uuid)
        (self.quotas.commit if is_committed else self.quotas.rollback)(base.ADMIN, [uuid])

    @stateful.rule(project=PROJECTS)
    def the_headroom_is_what_a_reserve_is_granted(self, project: str) -> None:
        headroom = self.engine.headroom(base.ADMIN, project)["gpu"]
        assert headroom == self.engine.headroom(base.Context(project))["gpu"]
        if headroom.fits is None:
            self.grant(project, MAX_AMOUNT)  # the largest amount of a valid request
            return
        assert headroom.fits >= 0, headroom
        if headroom.fits:
            self.grant(project, headroom.fits)
        self.refuse(project, headroom)

    @stateful.rule()
    def the_list_has_the_same(self) -> None:
        for record in self.engine.list_usages(base.ADMIN, with_headroom=True):
            assert record.headroom == self.engine.headroom(base.ADMIN, record.project_id)["gpu"], record

    def grant(self, project: str, amount: int) -> None:
        self.quotas.rollback(base.ADMIN, self.quotas.reserve(base.ADMIN, {"gpu": amount}, project_id=project))

    def refuse(self, project: str, headroom: Headroom) -> None:
        assert headroom.fits is not None
        if headroom.fits < MAX_AMOUNT:  # the users of the project are told the same
            [told] = self.engine.check(base.Context(project), {"gpu": headroom.fits + 1})
            owner = None if told.scope == "total" else told.project_id
            assert (owner, told.scope, told.limit) == _bound(headroom), (told, headroom)
        try:
            self.quotas.reserve(base.ADMIN, {"gpu": headroom.fits + 1}, project_id=project)
        except exceptions.OverQuota as error:
            path = [row.project_id for row in self.engine.limits.path(base.ADMIN, project)]  # root first
            nearest = max(error.overs, key=lambda over: -1 if over.scope == "total" else path.index(over.project_id))
            owner = None if nearest.scope == "total" else nearest.project_id
            assert (owner, nearest.scope, nearest.limit) == _bound(headroom), (error, headroom)
        except exceptions.InvalidDelta:
            assert headroom.fits == MAX_AMOUNT, headroom  # the largest valid amount
        except exceptions.UsageOverflow as error:
            assert (project, "counter", MAX_AMOUNT) == _bound(headroom), (error, headroom)
        except exceptions.LimitNotSet:
            assert headroom.fits == 0, headroom
            assert headroom.limit is None, headroom
            assert headroom.bound_by is not None, headroom
        else:
            raise AssertionError(f"a reserve of {headroom.fits + 1} was granted: {headroom}")


def _bound(headroom: Headroom) -> tuple[str | None, str | None, int | None]:
    return headroom.bound_by, headroom.scope, headroom.limit


class TestHeadroomModel(base.BackendTestCase):
    scenarios = testscenarios.multiply_scenarios(
        fixtures.SCENARIOS, [(policy, {"policy": policy}) for policy in POLICIES]
    )
    policy = ""

    def test_headrooms(self) -> None:
        examples = EXAMPLES[self.backend] * fixtures.MORE
        histories.run(Headrooms, examples, seed=SEED, backend=self.backend, policy=self.policy)
