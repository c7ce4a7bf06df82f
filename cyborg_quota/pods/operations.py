# SPDX-License-Identifier: Apache-2.0
"""The operations on pods, and on the bindings of projects to them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, Final

from cyborg_quota import exceptions, policy, validation
from cyborg_quota.surface import arguments, formats, paging
from cyborg_quota.surface.arguments import affinity, tags_text
from cyborg_quota.surface.operations import (
    COUNT,
    INTEGER,
    NAME,
    TEXT,
    TIME,
    Argument,
    Column,
    OneOf,
    Operation,
    Route,
    described,
    nullable,
    part,
)
from cyborg_quota.types import MAX_AMOUNT
from cyborg_quota.types.capacity import POD_STATES, Pod, PodUsage

_POD: Final = (
    Column("name", schema=NAME),
    Column("availability_zone", formats.Optional, schema=nullable(NAME)),
    Column("affinity", tags_text, lambda pod: pod.resource_affinity, arguments.TAGS),
    Column("state", schema={"enum": list(POD_STATES)}),
    Column("weight", schema=described(INTEGER, "Pods with a higher weight are preferred.")),
    Column(
        "threshold", schema=described(COUNT, "The percentage of its capacity from which on the pod counts as full.")
    ),
    Column("endpoint", formats.Optional, schema=nullable(TEXT)),
    Column("region", formats.Optional, schema=nullable(NAME)),
)
_NAME: Final = Argument("name", metavar="POD", help="the name of the pod")
_TAGS_IN_QUERY: Final[dict[str, Any]] = {"schema": TEXT, "load": lambda text: arguments.tags([arguments.tag(text)])}
_PATH: Final = "/v2/quota_pods"
_BINDINGS: Final = "/v2/quota_pod_bindings"
_INTEGER: Final = functools.partial(arguments.integer, minimum=-MAX_AMOUNT, maximum=MAX_AMOUNT)
_PERCENT: Final = functools.partial(arguments.integer, minimum=1, maximum=100)
_REGION: Final = "the name of its region in the service catalog"
_ENDPOINT: Final = "CLOUD or CLOUD/REGION of clouds.yaml, to measure it by its Placement"


def _change(caller: Any, name: str, affinity: Any, *, no_affinity: bool, no_endpoint: bool, **given: Any) -> Any:
    changes = {field: value for field, value in given.items() if value is not None}
    if no_endpoint:
        changes["endpoint"] = None
    if affinity or no_affinity:
        changes["affinity"] = affinity or {}
    return caller.engine.pods.change(caller.elevated, name, **changes)


# --- measurements ---


def _usage(usage: Mapping[str, Mapping[str, int]] | None) -> formats.Cell:
    """What is in use of the capacity, as in ``fpga=1/4,gpu=3/8``."""
    if usage is None:
        return formats.Optional(None)
    return formats.Optional(tags_text({name: f"{use['in_use']}/{use['capacity']}" for name, use in usage.items()}))


_LISTED: Final = (
    *part(0, _POD),
    Column(
        "usage",
        _usage,
        lambda pair: (
            pair[1]
            and {name: {"capacity": use.capacity, "in_use": use.used} for name, use in sorted(pair[1].usage.items())}
        ),
        described(nullable({"type": "object"}), "The last measurement; null: it was never measured."),
    ),
    Column("measured_at", formats.timestamp, lambda pair: pair[1] and pair[1].measured_at, nullable(TIME)),
)
"""The columns of (Pod, PodUsage); None: it was never measured."""


def _list(caller: Any, **page: Any) -> list[tuple[Pod, PodUsage | None]]:
    measured = {
        measurement.pod: measurement
        for measurement in caller.engine.pods.list_usages(caller.elevated)
        if measurement.usage is not None
    }
    return [(pod, measured.get(pod.name)) for pod in caller.engine.pods.list_pods(caller.elevated, **page)]


# --- bindings ---

_BINDING: Final = (
    Column("pod", formats.Optional, schema=nullable(NAME)),
    Column("zone", formats.Optional, lambda binding: binding.availability_zone, nullable(NAME), "availability_zone"),
    Column("affinity", tags_text, lambda binding: binding.resource_affinity, arguments.TAGS),
    Column("starts_at", formats.timestamp, schema=TIME, rest="start"),
    Column("reason", schema=described(TEXT, "Why the binding began, for example first or maintenance.")),
)
_PROJECT: Final = Column("project_id", schema=NAME)
_HISTORY: Final = (
    Column("id", value=itemgetter(0), schema=INTEGER),
    *part(
        1,
        (
            _PROJECT,
            *_BINDING[:-1],
            Column("ends_at", formats.timestamp, schema=nullable(TIME), rest="end"),
            _BINDING[-1],
        ),
    ),
)
"""The columns of (id, Binding)."""
_SELECTED: Final = (_PROJECT._replace(cell=None), *_BINDING, *_POD[-2:])
_TAGS: Final = "a tag that the pod must have; may be repeated (default: a pod without tags)"


def _end(caller: Any, project_id: str | None, zone: str | None, affinity: Any, in_pod: str | None) -> None:
    if in_pod is not None and project_id is None:
        if zone is not None or affinity:
            raise exceptions.InvalidRequest("A pod is given: the bindings of all zones and tags end. Give neither.")
        caller.notice = f"bindings ended: {caller.engine.pods.end_bindings(caller.elevated, in_pod)}"
    elif project_id is not None and in_pod is None:
        caller.engine.pods.end_binding(caller.elevated, project_id, zone, affinity)
    else:
        raise exceptions.InvalidRequest("Give either a project or a pod.")


OPERATIONS: Final = (
    Operation(
        "Add a pod: an OpenStack deployment of an availability zone.",
        "cyborg-quota pod create pod1 --zone az1 --affinity purpose=CAD --threshold 90",
        lambda caller, **given: caller.engine.pods.add(caller.elevated, **given),
        (
            _NAME,
            Argument("--zone", rest="availability_zone", metavar="ZONE", help="its availability zone"),
            affinity("a tag, for requests that ask for it; a pod with tags serves no request without tags"),
            Argument("--weight", type=_INTEGER, default=0, metavar="N", help="higher is preferred (default: 0)"),
            Argument(
                "--threshold",
                type=_PERCENT,
                default=100,
                metavar="PERCENT",
                help="the percentage of its capacity at which it counts as full (default: 100)",
            ),
            Argument("--endpoint", metavar="CLOUD", help=_ENDPOINT),
            Argument("--region", metavar="REGION", help=_REGION),
        ),
        _POD,
        is_list=False,
        words="pod create",
        route=Route("POST", _PATH, policy.CHANGE_PODS, "pod", "Pod", status=201, errors=(409,)),
    ),
    Operation(
        """List all pods, in the order in which they were added, with their last measurements.

        usage is what is in use of the capacity, as in gpu=3/8. A pod that was never
        measured does not count as full.
        """,
        "cyborg-quota pod list",
        _list,
        (paging.LIMIT, paging.marker("POD", "start after the pod with this name")),
        _LISTED,
        words="pod list",
        route=Route("GET", _PATH, policy.PODS, "pods", "MeasuredPod", lambda pair: pair[0].name),
    ),
    Operation(
        "Show one pod.",
        "cyborg-quota pod show pod1",
        lambda caller, name: caller.engine.pods.show(caller.elevated, name),
        (_NAME,),
        _POD,
        is_list=False,
        words="pod show",
        route=Route("GET", f"{_PATH}/{{name}}", policy.PODS, "pod", "Pod", errors=(404,)),
    ),
    Operation(
        """Change a pod. What is not given stays as it is.

        The tags that are given replace all tags of the pod. In maintenance, it gets no
        new bindings, and its present bindings move to other pods when they are selected
        the next time. What projects hold in the pod stays there.
        """,
        "cyborg-quota pod set pod1 --weight 10 --threshold 85\n  cyborg-quota pod set pod1 --state maintenance",
        _change,
        (
            _NAME,
            Argument("--state", choices=POD_STATES, help="maintenance, disabled: it gets no new bindings"),
            OneOf(
                affinity("a tag; may be repeated"),
                Argument("--no-affinity", action="store_true", help="remove all tags"),
            ),
            Argument("--weight", type=_INTEGER, metavar="N", help="higher is preferred"),
            Argument("--threshold", type=_PERCENT, metavar="PERCENT", help="the use at which it counts as full"),
            OneOf(
                Argument("--endpoint", metavar="CLOUD", help=_ENDPOINT),
                Argument("--no-endpoint", action="store_true", help="measure it by the inventories of its providers"),
            ),
            Argument("--region", metavar="REGION", help=_REGION),
        ),
        _POD,
        is_list=False,
        words="pod set",
        route=Route("PUT", f"{_PATH}/{{name}}", policy.CHANGE_PODS, "pod", "Pod", errors=(404,)),
    ),
    Operation(
        """Remove a pod to which no project is bound and no provider belongs.

        The history of its bindings stays.
        """,
        "cyborg-quota pod delete pod1",
        lambda caller, name: caller.engine.pods.remove(caller.elevated, name),
        (_NAME,),
        words="pod delete",
        route=Route("DELETE", f"{_PATH}/{{name}}", policy.CHANGE_PODS, status=204, errors=(404, 409)),
    ),
    Operation(
        """Print the pod of a project; bind the project to a pod if needed.

        Without a zone, it is the pod of the oldest binding with these tags. Of all
        extra specs of a flavor, those are compared that some pod has as a tag.
        The present binding stays unless its pod is full, in maintenance or disabled,
        and another pod passes the filters ([pods] filters). Amounts say which
        resources are needed: without them, a pod counts as full if any of its
        resources is.
        """,
        "cyborg-quota pod select --project film --zone az1 gpu=2",
        lambda caller, project_id, zone, affinity, deltas: caller.engine.pods.select(
            caller.elevated, zone, affinity, deltas or None, project_id
        ),
        (
            arguments.project(required=True, rest="select.project_id"),
            Argument(
                "--zone",
                rest="select.availability_zone",
                metavar="ZONE",
                help="the availability zone (default: any)",
            ),
            affinity(
                _TAGS,
                rest="select.affinity",
                schema={"type": "object", "maxProperties": validation.MAX_EXTRA_SPECS, "additionalProperties": TEXT},
            ),
            arguments.pairs(
                "deltas", "the amount of a resource that is needed, as in gpu=2", nargs="*", rest="select.quota"
            ),
        ),
        _SELECTED,
        is_list=False,
        words="pod select",
        route=Route("POST", f"{_PATH}/select", policy.SELECT_POD, "binding", "PodBinding", errors=(409,)),
    ),
    Operation(
        "List the current bindings of projects to pods, the oldest first.",
        "cyborg-quota pod binding list --project film --history",
        lambda caller, **given: caller.engine.pods.list_bindings(caller.elevated, **given),
        (
            arguments.project(),
            Argument("--pod", metavar="POD", help="only those to this pod"),
            Argument("--history", action="store_true", help="also those that ended"),
            paging.LIMIT,
            paging.marker("ID", "start after the binding with this id", type=arguments.at_least_zero, default=0),
        ),
        _HISTORY,
        words="pod binding list",
        route=Route("GET", _BINDINGS, policy.PODS, "bindings", "StoredPodBinding", lambda pair: str(pair[0])),
    ),
    Operation(
        "Bind a project to another pod. What the project holds stays where it is.",
        "cyborg-quota pod binding set pod2 --project film --zone az1",
        lambda caller, name, **given: caller.engine.pods.move_binding(caller.elevated, pod=name, **given),
        (
            Argument("name", rest="pod", metavar="POD", help="the name of the pod"),
            arguments.project(required=True),
            Argument(
                "--zone",
                rest="availability_zone",
                metavar="ZONE",
                help="that of the pod; bindings in other zones stay (default: they end)",
            ),
            affinity(_TAGS),
        ),
        _SELECTED,
        is_list=False,
        words="pod binding set",
        route=Route("PUT", _BINDINGS, policy.CHANGE_PODS, "binding", "PodBinding", errors=(404, 409)),
    ),
    Operation(
        """End the current binding of a project, or all current bindings to a pod.

        The next selection of each project creates another. To empty a pod before it is
        removed, run `pod set --state maintenance` first: while the pod is available,
        projects can be bound to it again.
        """,
        "cyborg-quota pod binding delete --project film --zone az1",
        _end,
        (
            arguments.project(),
            Argument(
                "--zone",
                rest="availability_zone",
                metavar="ZONE",
                help="only the binding in this zone (default: in each zone)",
            ),
            affinity(_TAGS, **_TAGS_IN_QUERY),
            Argument(
                "--pod",
                dest="in_pod",
                rest="pod",
                metavar="POD",
                help="end all bindings to this pod (on the host, prints their number)",
            ),
        ),
        words="pod binding delete",
        route=Route("DELETE", _BINDINGS, policy.CHANGE_PODS, status=204, errors=(404,)),
    ),
)
