# SPDX-License-Identifier: Apache-2.0
"""The enforcer of projects: the limits of a project, of its ancestors, and of all projects together.

It reads the path of the project and its limits before the transaction, and explains a refusal after it. The charge of
the usage rows itself compares them with the limits (db/charges.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from cyborg_quota import exceptions
from cyborg_quota.db import charges, clock, usages
from cyborg_quota.db.database import Database
from cyborg_quota.db.path_state import ProjectPath
from cyborg_quota.ledger import enforcement
from cyborg_quota.ledger.enforcers import Enforcer
from cyborg_quota.ledger.limit_source import LimitDriver
from cyborg_quota.ledger.paths import PathCache
from cyborg_quota.types import RESERVED, TOTAL, UNLIMITED, Constraint, ResourceKey, State, UsageKey
from cyborg_quota.types.limits import RowBound


@dataclasses.dataclass(slots=True)
class Charge:
    """What a call charges to one project: the amounts by counter, and the path and the limits that were read for it.

    ``constraints`` None: the charge is not limited. ``row_bounds``: what else limits its rows. ``sender``: of a
    transfer, the project that holds the amounts, and its ancestors.
    """

    project_id: str
    amounts: Mapping[ResourceKey, int]
    path: ProjectPath
    constraints: Sequence[Constraint] | None = None
    row_bounds: Mapping[UsageKey, RowBound] = dataclasses.field(default_factory=dict)
    sender: Sequence[str] = ()

    @property
    def growing(self) -> dict[ResourceKey, int]:
        """The amounts that a limit may refuse."""
        return {key: amount for key, amount in self.amounts.items() if amount > 0}

    def postings(self, amounts: Mapping[ResourceKey, int], state: State) -> list[usages.Posting]:
        """The postings, with their bounds, that add these amounts to what is held in this state."""
        limits: dict[tuple[str, str, str, bool], int] = {}
        for constraint in self.constraints or ():
            if constraint.limit != UNLIMITED:
                counter = (constraint.project_id, constraint.resource, constraint.pod, constraint.scope == "project")
                limits[counter] = min(constraint.limit, limits.get(counter, constraint.limit))
        postings = []
        for key, amount in amounts.items():
            effect = (amount, 0) if state == RESERVED else (0, amount)
            for posting in usages.along(self.path.charged[key], *effect):
                posting.max_held, posting.max_subtree = (
                    limits.get((posting.node.project_id, *key, is_own)) for is_own in (True, False)
                )
                posting.until = None if self.constraints is None else self.path.until
                if self.row_bounds:
                    posting.bound = self.row_bounds.get(posting.node.key)
                postings.append(posting)
        return postings


@dataclasses.dataclass(eq=False)
class ProjectEnforcer(Enforcer):
    """Reads paths and limits, and explains a refusal."""

    _database: Database
    _paths: PathCache
    _limits: LimitDriver
    _follow: Callable[[Sequence[str], str], None]
    """Gives a project the ancestors that the source reports: (path, source)."""

    def counters_of(self, resource: str, pod: str | None) -> Iterable[ResourceKey]:  # noqa: ARG002
        return (ResourceKey(resource),)

    def read(self, project_id: str, amounts: Mapping[ResourceKey, int], *, is_limited: bool) -> Charge:
        """What to charge. If the source of limits reports other ancestors, the tree is changed first.

        Calls that no limit can refuse (adoptions, and what only shrinks) do not read that source, so that an outage of
        it does not affect them.
        """
        is_limited = is_limited and any(amount > 0 for amount in amounts.values())
        if is_limited and self._limits.tree_source is not None:
            reported = self._limits.path_of(project_id)
            if reported is not None:
                self._follow(reported, self._limits.tree_source)
        charge = Charge(project_id, amounts, self._paths.get(project_id, sorted(amounts)))
        if is_limited:
            charge.constraints = self._constraints(charge)
            charge.row_bounds = charge.path.row_bounds
        return charge

    def _constraints(self, charge: Charge, *, is_read_again: bool = False) -> list[Constraint]:
        """The limits of what grows, as they were read with the path."""
        path, growing = charge.path, charge.growing
        assert path.limits is not None, "get() reads the limits"
        resources = tuple(sorted({key.resource for key in growing}))
        bounds = path.bounds if self._limits.is_pure else None  # (another thread may replace it)
        if bounds is None or bounds[0] != resources:
            bounds = path.bounds = resources, self._limits.bounds([path.limits], resources)[0]
        limits = bounds[1]
        if isinstance(limits.error, exceptions.LimitNotSet) and not is_read_again:  # (it may have been set since)
            charge.path = self._paths.get(charge.project_id, sorted(charge.amounts), is_again=True)
            return self._constraints(charge, is_read_again=True)
        if limits.error is not None:
            raise limits.error
        constraints = [
            constraint for constraint in limits.constraints if (constraint.resource, constraint.pod) in growing
        ]
        unknown_projects = {constraint.project_id for constraint in constraints} - {*path.project_ids, TOTAL}
        if unknown_projects:
            raise exceptions.ConfigurationError(
                f"The limit driver returned a constraint for {', '.join(sorted(unknown_projects))}, which is not an "
                f"ancestor of {path.project_ids[0]}."
            )
        return constraints

    def explain_refusal(self, charge: Charge) -> bool:
        """Raise OverQuota (with all violations: see ``redact``) or UsageOverflow if the counters explain the refusal.

        True: they are within all limits. False: the path that was charged, or its limits, are out of date; the caller
        must retry.
        """
        path = self._paths.get(charge.project_id, sorted(charge.amounts), is_again=True)
        nodes = [(path.charged.get(key), charge.path.charged.get(key)) for key in charge.amounts]
        is_same = (path.until, path.row_bounds) == (charge.path.until, charge.path.row_bounds)
        if not is_same or any(now != charged for now, charged in nodes):
            return False
        constraints, growing = charge.constraints or (), charge.growing
        owners = {*path.project_ids, *charge.sender, TOTAL, *(constraint.project_id for constraint in constraints)}
        counters, at = self._database.read_synced(
            lambda connection: (usages.read(connection, owners, growing), clock.read_second(connection))
        )
        constraints = [*constraints, *(bound.constraint(counters, at) for bound in charge.row_bounds.values())]
        find = functools.partial(
            enforcement.find_violations,
            charge.project_id,
            counters=counters,
            request=growing,
            path=path.project_ids,
            freed=charges.freed(charge.sender, counters, growing),
        )
        if violations := find(constraints):
            raise exceptions.OverQuota.of(violations) from None
        for over in find(enforcement.widths(path.project_ids, growing, counters)):
            # (The counter of the resource overflows if that of a part does; a tenant does not see the part.)
            error = exceptions.UsageOverflow if over.scope == "counter" else exceptions.MeterOverflow
            raise error(charge.project_id, over.resource, over.requested) from None
        return True

    def redact(self, project_id: str, error: exceptions.OverQuota, *, sees_all: bool) -> exceptions.OverQuota:
        """The error as the caller may see it."""
        if sees_all:
            return error
        return exceptions.OverQuota.of(enforcement.redact(error.overs, self._paths.get(project_id, ()).project_ids))
