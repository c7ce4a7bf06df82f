# SPDX-License-Identifier: Apache-2.0
"""Commands on pods, the bindings of projects to them, and their measurements."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Final

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.cli import arguments, base, formats, paging
from cyborg_quota.cli.errors import REFUSED, BadUsage
from cyborg_quota.surface import parsing
from cyborg_quota.surface.operations import Argument, Column, OneOf, Operation, cells, columns, names_of
from cyborg_quota.types.capacity import COLLECT_SECONDS, POD_STATES, Binding, Pod, PodUsage, ReadEndpoint, ResourceUse


def tags_text(affinity: Mapping[str, str]) -> str:
    """The tags as the command line takes them."""
    return ",".join(f"{key}={value}" for key, value in sorted(affinity.items()))


def tag(text: str) -> list[tuple[str, str]]:
    """Parse ``purpose=CAD``, or several tags as ``tags_text`` writes them: ``purpose=CAD,site=north``."""
    pairs = []
    for one in text.split(","):
        key, equals, value = one.partition("=")
        if not (key and equals and value):
            raise argparse.ArgumentTypeError(f"{text!a}: write KEY=VALUE, as in purpose=CAD")
        pairs.append((key, value))
    return pairs


def tags(options: Iterable[list[tuple[str, str]]] | None) -> dict[str, str]:
    """Return the tags as a dict. Raises BadUsage if a key is given twice."""
    found: dict[str, str] = {}
    for key, value in itertools.chain.from_iterable(options or ()):
        if key in found:
            raise BadUsage(f"The tag {key!a} is given twice.")
        found[key] = value
    return found


COLUMNS: Final = (
    Column("name"),
    Column("availability_zone", formats.Optional),
    Column("affinity", tags_text, lambda pod: pod.resource_affinity),
    *columns("state", "weight", "threshold"),
    Column("endpoint", formats.Optional),
)

NAME: Final = Argument("name", metavar="POD", help="the name of the pod")


def affinity(text: str) -> Argument:
    """--affinity, which can be repeated. ``text``: its help."""
    return Argument("--affinity", action="append", type=tag, metavar="KEY=VALUE", help=text)


Add = base.generate(
    Operation(
        "Add a pod: an OpenStack deployment of an availability zone.",
        "cyborg-quota pod add pod1 --zone az1 --affinity purpose=CAD --threshold 90",
        lambda run, affinity, **given: run.engine.pods.add(run.context, affinity=tags(affinity), **given),
        (
            NAME,
            Argument("--zone", metavar="ZONE", help="its availability zone"),
            affinity("a tag, for requests that ask for it; a pod with tags serves no request without tags"),
            Argument("--weight", type=int, default=0, metavar="N", help="higher is preferred (default: 0)"),
            Argument(
                "--threshold",
                type=int,
                default=100,
                metavar="PERCENT",
                help="the percentage of its capacity at which it counts as full (default: 100)",
            ),
            Argument(
                "--endpoint",
                metavar="CLOUD",
                help="CLOUD or CLOUD/REGION of clouds.yaml, to measure it by its Placement",
            ),
        ),
        COLUMNS,
        is_list=False,
    )
)

List = base.generate(
    Operation(
        "List all pods, in the order in which they were added.",
        "cyborg-quota pod list",
        lambda run, **given: run.engine.pods.list_pods(run.context, **given),
        (paging.LIMIT, paging.marker("POD", "start after the pod with this name")),
        COLUMNS,
    )
)

Show = base.generate(
    Operation(
        "Show one pod.",
        "cyborg-quota pod show pod1",
        lambda run, name: run.engine.pods.show(run.context, name),
        (NAME,),
        COLUMNS,
        is_list=False,
    )
)


def _set(run: base.Run, name: str, affinity: Any, *, no_affinity: bool, no_endpoint: bool, **given: Any) -> Pod:
    changes = {field: value for field, value in given.items() if value is not None}
    if no_endpoint:
        changes["endpoint"] = None
    if affinity or no_affinity:
        changes["affinity"] = tags(affinity)
    return run.engine.pods.change(run.context, name, **changes)


Set = base.generate(
    Operation(
        """Change a pod. What is not given stays as it is.

        The tags that are given replace all tags of the pod.
        """,
        "cyborg-quota pod set pod1 --weight 10 --threshold 85",
        _set,
        (
            NAME,
            Argument("--state", choices=POD_STATES, help="maintenance, disabled: it gets no new bindings"),
            OneOf(
                affinity("a tag; may be repeated"),
                Argument("--no-affinity", action="store_true", help="remove all tags"),
            ),
            Argument("--weight", type=int, metavar="N", help="higher is preferred"),
            Argument("--threshold", type=int, metavar="PERCENT", help="the use at which it counts as full"),
            OneOf(
                Argument("--endpoint", metavar="CLOUD", help="CLOUD or CLOUD/REGION of clouds.yaml"),
                Argument("--no-endpoint", action="store_true", help="measure it by the inventories of its providers"),
            ),
        ),
        COLUMNS,
        is_list=False,
    )
)

Drain = base.generate(
    Operation(
        """Put a pod into maintenance: it gets no new bindings.

        Its present bindings move to other pods when they are selected the next time.
        What projects hold in the pod stays there.
        """,
        "cyborg-quota pod drain pod1",
        lambda run, name: run.engine.pods.change(run.context, name, state="maintenance"),
        (NAME,),
        COLUMNS,
        is_list=False,
    )
)

Enable = base.generate(
    Operation(
        "Make a pod available again.",
        "cyborg-quota pod enable pod1",
        lambda run, name: run.engine.pods.change(run.context, name, state="available"),
        (NAME,),
        COLUMNS,
        is_list=False,
    )
)

Remove = base.generate(
    Operation(
        """Remove a pod to which no project is bound and no provider belongs.

        The history of its bindings stays.
        """,
        "cyborg-quota pod remove pod1",
        lambda run, name: run.engine.pods.remove(run.context, name),
        (NAME,),
    )
)

# --- bindings ---

_PLACE_COLUMNS: Final = (
    Column("pod", formats.Optional),
    Column("zone", formats.Optional, lambda one: one.availability_zone),
    Column("affinity", tags_text, lambda one: one.resource_affinity),
    Column("starts_at", formats.timestamp),
)
BINDING_COLUMNS: Final = (*_PLACE_COLUMNS, Column("reason"))
HISTORY_COLUMNS: Final = (
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
    affinity("a tag that the pod must have; may be repeated (default: a pod without tags)"),
)


def _select(run: base.Run, project_id: str, zone: str | None, affinity: Any, deltas: Any) -> Binding:
    request = arguments.once_each(deltas, "amounts") or None
    try:
        return run.engine.pods.select(run.context, zone, tags(affinity), request, project_id)
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
        BINDING_COLUMNS,
        is_list=False,
    )
)

ListBindings = base.generate(
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
        HISTORY_COLUMNS,
    )
)

MoveBinding = base.generate(
    Operation(
        "Bind a project to another pod. What the project holds stays where it is.",
        "cyborg-quota pod binding move pod2 --project film --zone az1",
        lambda run, project_id, name, zone, affinity: run.engine.pods.move_binding(
            run.context, project_id, name, zone, tags(affinity)
        ),
        (NAME, *arguments.project(required=True), *_KEY),
        BINDING_COLUMNS,
        is_list=False,
    )
)


def _end(run: base.Run, project_id: str | None, zone: str | None, affinity: Any, in_pod: str | None) -> None:
    if in_pod is not None and project_id is None:
        if zone is not None or affinity:
            raise BadUsage("--pod ends the bindings of all zones and tags: give neither --zone nor --affinity.")
        run.notice = f"bindings ended: {run.engine.pods.end_bindings(run.context, in_pod)}"
    elif project_id is not None and in_pod is None:
        run.engine.pods.end_binding(run.context, project_id, zone, tags(affinity))
    else:
        raise BadUsage("Give either --project or --pod.")


EndBinding = base.generate(
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

# --- measurements ---

USAGE_COLUMNS: Final = cells("pod", "resource", "capacity", "used", "measured_at", "age_seconds")


def _rows(usage: PodUsage) -> list[tuple[Any, ...]]:
    age = None if usage.age is None else int(usage.age.total_seconds())
    measured = (formats.timestamp(usage.measured_at), formats.Optional(age))
    if not usage.usage:
        empty = formats.Optional(None)
        return [(usage.pod, empty, empty, empty, *measured)]
    return [
        (usage.pod, formats.Optional(resource), formats.Optional(use.capacity), formats.Optional(use.used), *measured)
        for resource, use in sorted(usage.usage.items())
    ]


def reader(conf: cfg.ConfigOpts, timeout_seconds: float) -> ReadEndpoint:
    """The function that measures a pod by its endpoint. openstacksdk, which takes a second to load, is loaded late."""

    def read(endpoint: str, check: Callable[[int], object]) -> Mapping[str, ResourceUse]:
        try:
            from cyborg_quota.capacity.imports import plan
        except ImportError as error:
            raise exceptions.ConfigurationError(
                f"A pod with an endpoint needs {error.name}: install cyborg_quota[keystone]."
            ) from None
        return plan.read_use(conf, endpoint, check, timeout_seconds=timeout_seconds)

    return read


def _collect(run: base.Run, pods: list[str], timeout: int | None) -> list[tuple[Any, ...]]:
    seconds = timeout or COLLECT_SECONDS
    with base.progress_bar(len(pods) or len(run.engine.pods.list_pods(run.context)), "pods") as progress:
        collected = run.engine.pods.collect(
            run.context,
            pods or None,
            read_endpoint=reader(run.conf, seconds),
            timeout_seconds=seconds,
            progress=progress,
        )
    if any(one.error is not None for one in collected):
        run.status = REFUSED
    return [(*row, formats.Optional(one.error)) for one in collected for row in _rows(one.usage)]


Collect = base.generate(
    Operation(
        """Measure pods now: how much of each resource they have, and how much is used.

        A pod with an endpoint is measured by its Placement, through clouds.yaml; the
        resource rules of [cyborg] determine what is counted. Any other pod is measured
        by the inventories of its providers. A pod that does not answer in time keeps
        its last figures: age_seconds is their age, error is the reason, and the exit
        status is 1. Pods that are disabled are measured only if they are named.

        cyborg-quota-expirer measures all pods daily.
        """,
        "cyborg-quota pod usage collect",
        _collect,
        (
            Argument("pods", nargs="*", metavar="POD", help="only these pods"),
            Argument(
                "--timeout",
                type=parsing.positive,
                metavar="SECONDS",
                help=f"the time limit for each pod (default: {COLLECT_SECONDS})",
            ),
        ),
        cells(*names_of(USAGE_COLUMNS), "error"),
    )
)

ShowUsage = base.generate(
    Operation(
        """Show the last measurement of each pod, or of one, and how old it is.

        A pod without a measurement does not count as full.
        """,
        "cyborg-quota pod usage show pod1",
        lambda run, name: [row for usage in run.engine.pods.list_usages(run.context, name) for row in _rows(usage)],
        (Argument("name", nargs="?", metavar="POD", help="only this pod"),),
        USAGE_COLUMNS,
    )
)
