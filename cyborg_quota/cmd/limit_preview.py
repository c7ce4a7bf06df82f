# SPDX-License-Identifier: Apache-2.0
"""What `limit set` would change, and whether what `limit unset` names is set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cyborg_quota import QuotaEngine, exceptions, validation
from cyborg_quota.types import LimitChange
from cyborg_quota.validation import Context


def preview(
    engine: QuotaEngine, context: Context, project_id: str | None, limits: Mapping[str, int]
) -> tuple[list[LimitChange], exceptions.LimitRefused | None]:
    """The changes that setting these limits (of a project, or defaults) would make, and its refusal if any.

    It is the dry run of an import of a document that has these limits only, at the project's place in the tree.
    """
    document: dict[str, Any] = {"defaults": dict(limits)}
    if project_id is not None:
        parents = dict(engine.administration.list_projects(context))
        entry: dict[str, Any] = {"id": validation.check_name("project_id", project_id), "limits": dict(limits)}
        while (parent_id := parents.get(entry["id"])) is not None:
            entry = {"id": parent_id, "children": [entry]}
        document = {"projects": [entry]}
    try:
        changes, refusal = engine.administration.import_limits(context, document, dry_run=True), None
    except exceptions.LimitRefused as error:
        changes, refusal = error.changes, error
    # (An import would also add a project that is not in the tree yet; `limit set` does not.)
    return [change for change in changes if change.action in ("set limit", "unset limit")], refusal


def require_set(engine: QuotaEngine, context: Context, project_id: str | None, resources: Iterable[str]) -> None:
    """Raise QuotaError if one of these limits is not set here."""
    limits = engine.administration.list_limits(context, project_id)
    own = {limit.resource for limit in limits if limit.is_own and limit.project_id == project_id}
    missing = ", ".join(sorted(set(resources) - own))
    if not missing:
        return
    if project_id is None:
        raise exceptions.QuotaError(f"There is no default limit for {missing}. Nothing was changed.")
    raise exceptions.QuotaError(f"Project {project_id} has no limit of its own for {missing}. Nothing was changed.")
