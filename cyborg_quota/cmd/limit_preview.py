# SPDX-License-Identifier: Apache-2.0
"""What `limit set` would change, and whether what `limit unset` names is set."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from cyborg_quota import QuotaEngine, exceptions, validation
from cyborg_quota.types import RecordedChange
from cyborg_quota.validation import Context


def preview(
    engine: QuotaEngine, context: Context, project_id: str | None, limits: Mapping[str, int], pod: str | None = None
) -> tuple[list[RecordedChange], exceptions.LimitRefused | None]:
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


def preview_overrides(
    engine: QuotaEngine,
    context: Context,
    project_id: str,
    limits: Mapping[str, int],
    *,
    until: datetime.datetime,
    start: datetime.datetime | None,
) -> tuple[list[RecordedChange], exceptions.LimitRefused | None]:
    """The overrides that setting these limits for a span of time would make, and its refusal if any."""
    try:
        made = engine.administration.set_overrides(context, limits, project_id, until, start=start, dry_run=True)
    except exceptions.LimitRefused as error:
        return list(error.changes), error
    return [RecordedChange("set override", one.project_id, one.resource, None, one.limit, one) for one in made], None


def require_set(
    engine: QuotaEngine, context: Context, project_id: str | None, resources: Iterable[str], pod: str | None = None
) -> None:
    """Raise QuotaError if one of these limits is not set here. An override is no limit that can be unset."""
    if project_id is None:
        missing = sorted(set(resources).difference(engine.list_defaults(context)))
        if missing:
            raise exceptions.QuotaError(f"There is no default limit for {', '.join(missing)}. Nothing was changed.")
        return
    if pod is None:
        records = engine.administration.list_limits(context, project_id)
    else:
        records = engine.administration.list_pod_limits(context, project_id, pod)
    missing = sorted(set(resources).difference(record.resource for record in records if record.is_own))
    if not missing:
        return
    overrides = [record.override for record in records if record.override is not None and record.resource in missing]
    hint = ""
    if overrides:
        ids = " ".join(one.id for one in overrides)
        hint = f" Its present limit for {overrides[0].resource} is an override: see `limit override cancel {ids}`."
    where = "" if pod is None else f" in pod {pod}"
    raise exceptions.QuotaError(
        f"Project {project_id} has no limit of its own for {', '.join(missing)}{where}. Nothing was changed.{hint}"
    )
