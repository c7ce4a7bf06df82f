# SPDX-License-Identifier: Apache-2.0
"""An enforcement model: the limits of the children may sum up to twice the limit of their parent."""

from cyborg_quota.limits.models import EnforcementModel, Violation
from cyborg_quota.types import UNLIMITED

TOO_MUCH = "the children of {parent} would get {total} of {key}; twice its limit is {most}"


class Overbooking(EnforcementModel):
    """The usage of the children together is bounded by the limit of the parent."""

    def problems(self, tree, projects, keys):
        parents = {tree.parents.get(project_id) for project_id in projects} | set(projects)
        found = []
        for parent in sorted(parents - {None}):
            for key in sorted(keys):
                most = tree.limit(parent, *key)
                total = sum(tree.limit(child, *key) or 0 for child in tree.children_of.get(parent, ()))
                if most not in (None, UNLIMITED) and total > 2 * most:
                    found.append(Violation(TOO_MUCH, parent, figures={"total": total, "key": key, "most": 2 * most}))
        return found
