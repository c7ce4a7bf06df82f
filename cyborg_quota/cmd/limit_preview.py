# SPDX-License-Identifier: Apache-2.0
"""What `limit set` would change, and whether what `limit unset` names is set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cyborg_quota import QuotaEngine, exceptions, validation
from cyborg_quota.types import LimitChange
from cyborg_quota.validation import Context


def preview(
    engine: QuotaEngine, context: Context, project_id: str | None, limits: Mapping[str, int], pod: str | None = None
) -> tuple[list[LimitChange], exceptions.LimitRefused | None]:
    """The changes that setting these limits (of a project, in a pod, or defaults) would make, and its refusal if any.

    It is the dry run of an import of a document that has these limits only, at the project's place in the tree.
    """
    document: dict[str, Any] = {"defaults": dict(limits)}
    if project_id is not None:
        parents = dict(engine.administration.list_projects(context))
        own: dict[str, Any] = {"limits": dict(limits)} if pod is None else {"pods": {pod: dict(limits)}}
        entry: dict[str, Any] = {"id": validation.check_name("project_id", project_id), **own}
        while (parent_id := parents.get(entry["id"])) is not None:
            entry = {"id": parent_id, "children": [entry]}
        document = {"projects": [entry]}
    try:
        changes, refusal = engine.administration.import_limits(context, document, dry_run=True), None
    except exceptions.LimitRefused as error:
        changes, refusal = error.changes, error
    # (An import would also add a project that is not in the tree yet; `limit set` does not.)
    return [change for change in changes if change.action in ("set limit", "unset limit")], refusal


def require_set(
    engine: QuotaEngine, context: Context, project_id: str | None, resources: Iterable[str], pod: str | None = None
) -> None:
    """Raise QuotaError if one of these limits is not set here."""
    if pod is None:
        limits = engine.administration.list_limits(context, project_id)
    else:
        limits = engine.pod_limits.list(context, project_id, pod)
    own = {limit.resource for limit in limits if limit.is_own and limit.project_id == project_id}
    missing = ", ".join(sorted(set(resources) - own))
    if not missing:
        return
    if project_id is None:
        raise exceptions.QuotaError(f"There is no default limit for {missing}. Nothing was changed.")
    where = "" if pod is None else f" in pod {pod}"
    raise exceptions.QuotaError(
        f"Project {project_id} has no limit of its own for {missing}{where}. Nothing was changed."
    )
