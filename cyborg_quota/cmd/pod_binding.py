# SPDX-License-Identifier: Apache-2.0
"""Commands on the bindings of projects to pods."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final

from cyborg_quota import exceptions
from cyborg_quota.cmd import arguments, base, formats, paging, pod
from cyborg_quota.cmd.errors import BadUsage
from cyborg_quota.pod_types import Binding
from cyborg_quota.surface.operations import Argument, Column, Operation

_PLACE_COLUMNS: Final = (
    Column("pod", formats.Optional),
    Column("zone", formats.Optional, lambda one: one.availability_zone),
    Column("affinity", pod.tags_text, lambda one: one.resource_affinity),
    Column("starts_at", formats.timestamp),
)
SELECT_COLUMNS: Final = (*_PLACE_COLUMNS, Column("reason"))
COLUMNS: Final = (
    Column("id", value=itemgetter(0)),
    *(
        Column(column.name, column.of, itemgetter(1))
        for column in (
            Column("project_id"),
            *_PLACE_COLUMNS,
            Column("ends_at", formats.timestamp),
            Column("reason"),
        )
    ),
)
"""The columns of (id, Binding)."""

_KEY: Final = (
    Argument("--zone", metavar="ZONE", help="the availability zone (default: any)"),
    pod.affinity("a tag that the pod must have; may be repeated (default: a pod without tags)"),
)


def _select(run: base.Run, project_id: str, zone: str | None, affinity: Any, deltas: Any) -> Binding:
    request = arguments.once_each(deltas, "amounts") or None
    tags = pod.tags(affinity)
    try:
        return run.engine.pods.select(run.context, zone, tags, request, project_id)
    except exceptions.NoPodFits as error:
        raise exceptions.QuotaError(f"{error} See `pod list` and `pod usage show`.") from None


Select = base.generate(
    Operation(
        """Print the pod of a project; bind the project to a pod if needed.

        The present binding stays unless its pod is full, in maintenance or disabled,
        and another pod passes the filters ([pods] filters). Amounts say which
        resources are needed: without them, a pod counts as full if any of its
        resources is.
        """,
        "cyborg-quota pod select --project film --zone az1 gpu=2",
        _select,
        (
            *arguments.project(required=True),
            *_KEY,
            arguments.amounts("the amount of a resource that is needed, as in gpu=2", nargs="*"),
        ),
        SELECT_COLUMNS,
        is_list=False,
    )
)

List = base.generate(
    Operation(
        "List the current bindings of projects to pods, the oldest first.",
        "cyborg-quota pod binding list --project film --history",
        lambda run, **given: run.engine.pods.list_bindings(run.context, **given),
        (
            *arguments.project(),
            Argument("--pod", metavar="POD", help="only those to this pod"),
            Argument("--history", action="store_true", help="also those that ended"),
            paging.LIMIT,
            paging.marker("ID", "start after the binding with this id", type=paging.at_least_zero, default=0),
        ),
        COLUMNS,
    )
)

Move = base.generate(
    Operation(
        "Bind a project to another pod. What the project holds stays where it is.",
        "cyborg-quota pod binding move pod2 --project film --zone az1",
        lambda run, project_id, name, zone, affinity: run.engine.pods.move_binding(
            run.context, project_id, name, zone, pod.tags(affinity)
        ),
        (pod.NAME, *arguments.project(required=True), *_KEY),
        SELECT_COLUMNS,
        is_list=False,
    )
)


def _end(run: base.Run, project_id: str | None, zone: str | None, affinity: Any, in_pod: str | None) -> None:
    if in_pod is not None and project_id is None:
        if zone is not None or affinity:
            raise BadUsage("--pod ends the bindings of all zones and tags: give neither --zone nor --affinity.")
        run.notice = f"bindings ended: {run.engine.pods.end_bindings(run.context, in_pod)}"
    elif project_id is not None and in_pod is None:
        run.engine.pods.end_binding(run.context, project_id, zone, pod.tags(affinity))
    else:
        raise BadUsage("Give either --project or --pod.")


End = base.generate(
    Operation(
        """End the current binding of a project, or all current bindings to a pod.

        The next selection of each project creates another binding. To empty a pod
        before it is removed, run `pod drain` first: while the pod is available,
        projects can be bound to it again.
        """,
        "cyborg-quota pod binding end --project film --zone az1",
        _end,
        (
            *arguments.project(),
            *_KEY,
            Argument(
                "--pod", dest="in_pod", metavar="POD", help="end all bindings to this pod, and print their number"
            ),
        ),
    )
)
