# SPDX-License-Identifier: Apache-2.0
"""The table of all calls of the API: method, path, policy rule, schemas and handler.

Most are generated from the operations (surface/table.py); by hand are those whose answers nest.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from cyborg_quota import policy
from cyborg_quota.api import schemas
from cyborg_quota.api.call import Call, render_columns
from cyborg_quota.api.errors import Refused
from cyborg_quota.api.handlers import history, lists, minimums, overrides, quotas, totals, tree
from cyborg_quota.surface import arguments, paging, table
from cyborg_quota.surface import operations as surface
from cyborg_quota.surface.operations import Route, Schema, described

_NO_QUERY: Final[Mapping[str, Schema]] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """A call of the API.

    ``rule`` is the policy rule; None: every user may make the call, and the handler checks what the user may see.
    ``body`` and ``answer`` are names of schemas.COMPONENTS; ``errors`` the statuses besides those that every call has.
    """

    method: str
    path: str
    name: str
    summary: str
    rule: str | None
    handler: Callable[[Call], Any]
    body: str | None = None
    answer: str | None = None
    query: Mapping[str, Schema] = dataclasses.field(default_factory=lambda: _NO_QUERY)
    status: int = 200
    errors: tuple[int, ...] = ()


_PROJECT: Final = "/v2/quotas/{project_id}"
_REASON: Final = {"reason": schemas.COMPONENTS["SetLimits"]["properties"]["reason"]}

_BY_HAND: Final = (
    Operation(
        "GET",
        "/v2/quotas",
        "list_quotas",
        "List the projects that hold something or have limits of their own; or those that have limits in one pod.",
        policy.LIST,
        quotas.list_quotas,
        answer="ProjectQuotas",
        query={**schemas.PROJECT, **schemas.POD, **schemas.PAGE},
        errors=(404, 409),
    ),
    Operation(
        "GET",
        _PROJECT,
        "get_quota",
        "Show the limits of a project, or its limits in one pod.",
        policy.GET,
        quotas.get_limits,
        answer="Quota",
        query=schemas.POD,
        errors=(409,),
    ),
    Operation(
        "PUT",
        _PROJECT,
        "set_quota",
        "Set limits of a project, or its limits in one pod. The limits of resources that are not named stay.",
        policy.RULE,
        quotas.set_limits,
        body="SetLimits",
        answer="Quota",
        errors=(409, 412),
    ),
    Operation(
        "PUT",
        f"{_PROJECT}/minimums",
        "set_quota_minimums",
        "Set minimums of a project: what it, with all below it, can always reach, whatever its siblings do. Those of "
        "resources that are not named stay.",
        policy.RULE,
        minimums.set_minimums,
        body="SetMinimums",
        answer="MinimumChanges",
        errors=(409,),
    ),
    Operation(
        "DELETE",
        _PROJECT,
        "delete_quota",
        "Remove all limits of a project, so that the defaults apply. Its overrides and its limits in pods stay. With a "
        "pod: remove its limits in this pod only.",
        policy.RULE,
        quotas.unset_limits,
        query={**schemas.POD, **_REASON},
        status=204,
        errors=(409,),
    ),
    Operation(
        "GET",
        f"{_PROJECT}/detail",
        "get_quota_detail",
        "Show the limits of a project, what it has in use and reserved, and what fits; in all pods or in one.",
        policy.GET,
        quotas.get_detail,
        answer="QuotaDetail",
        query=schemas.POD,
    ),
    Operation(
        "GET",
        f"{_PROJECT}/defaults",
        "get_quota_defaults",
        "Show the limits that a project would have without limits of its own.",
        policy.GET,
        quotas.get_defaults,
        answer="Quota",
        errors=(409,),
    ),
    Operation(
        "GET",
        f"{_PROJECT}/tree",
        "get_quota_tree",
        "Show a project and, as far as the policy allows it, the projects below it. Parents come before children.",
        policy.GET,
        tree.get_tree,
        answer="Tree",
        query=schemas.PAGE,
        errors=(409,),
    ),
    Operation(
        "PUT",
        f"{_PROJECT}/tree",
        "place_project",
        "Add a project to the project tree, or move it with all that is below it.",
        policy.SET_PARENT,
        tree.set_parent,
        body="Parent",
        answer="Tree",
        errors=(409,),
    ),
    Operation(
        "GET",
        f"{_PROJECT}/history",
        "get_quota_history",
        "List the changes of the limits of a project, newest first.",
        policy.GET,
        history.get_history,
        answer="History",
        query={**schemas.HISTORY_FILTERS, **schemas.PAGE},
    ),
    Operation(
        "POST",
        f"{_PROJECT}/overrides",
        "set_quota_override",
        "Set limits of a project for a span of time.",
        policy.RULE,
        overrides.set_override,
        body="SetOverride",
        answer="Overrides",
        status=201,
        errors=(409,),
    ),
    Operation(
        "GET",
        f"{_PROJECT}/overrides/{{override_id}}",
        "get_quota_override",
        "Show an override that has not ended.",
        policy.GET,
        overrides.get_override,
        answer="OneOverride",
        errors=(409,),
    ),
    Operation(
        "POST",
        f"{_PROJECT}/check",
        "check_quota",
        "Tell whether a request would be granted now, and which limits would refuse it. Nothing is reserved.",
        policy.GET,
        quotas.check,
        body="Check",
        answer="CheckResult",
    ),
    Operation(
        "GET",
        "/v2/quota_defaults",
        "get_default_quota",
        "Show the default limits. Initial limits ([limits] root_initial_limit and child_initial_limit) are not shown.",
        policy.DEFAULTS,
        quotas.get_defaults,
        answer="Quota",
        errors=(409,),
    ),
    Operation(
        "PUT",
        "/v2/quota_defaults",
        "set_default_quota",
        "Set default limits. Those of resources that are not named stay.",
        policy.DEFAULTS,
        quotas.set_defaults,
        body="SetDefaults",
        answer="Quota",
        errors=(409,),
    ),
    Operation(
        "GET",
        "/v2/quota_over",
        "list_over",
        "List what exceeds a limit, after it was lowered.",
        policy.OVER,
        quotas.list_over,
        answer="OverList",
        query={**schemas.PAGE, "marker": described(paging.WORDS, "Start after this entry.")},
        errors=(409,),
    ),
    Operation(
        "POST",
        "/v2/quota_preview",
        "preview_limits",
        "Tell what setting limits would change, and why the enforcement model would refuse it. Nothing is written. (A "
        "limit below what the project holds also needs force.)",
        policy.PREVIEW,
        quotas.preview,
        body="Preview",
        answer="PlannedChanges",
        errors=(404, 409),
    ),
    Operation(
        "GET",
        "/v2/quota_totals",
        "get_total_quota",
        "Show the total limits over all projects, and what all projects hold.",
        policy.TOTALS,
        totals.get_totals,
        answer="Totals",
        query=schemas.PAGE,
        errors=(409,),
    ),
    Operation(
        "PUT",
        "/v2/quota_totals",
        "set_total_quota",
        "Set total limits over all projects. Those of resources that are not named stay. When the answer "
        "is sent, the limits are enforced.",
        policy.TOTALS,
        totals.set_totals,
        body="SetTotals",
        answer="Totals",
        errors=(409,),
    ),
    Operation(
        "DELETE",
        "/v2/quota_totals/{resource}",
        "delete_total_quota",
        "Remove the total limit of a resource. If the call is interrupted, repeat it.",
        policy.TOTALS,
        totals.unset_total,
        query=_REASON,
        status=204,
        errors=(404, 409),
    ),
    Operation(
        "GET",
        "/v2/quota_reservations",
        "list_quota_reservations",
        "List reservations, oldest first: those of the project of the token or, for an admin, of all projects.",
        None,
        lists.list_reservations,
        answer="Reservations",
        query={**schemas.RESERVATION_FILTERS, **schemas.PAGE},
        errors=(404,),
    ),
)


def _generated(of: surface.Operation, route: Route) -> Operation:
    """The call of an operation that has a route, and its schemas."""
    in_path = re.findall(r"\{(\w+)\}", route.path)
    sent = [argument for argument in surface.flat(of.arguments) if argument.rest and argument.name not in in_path]
    name = of.words.replace(" ", "_")
    component = "".join(map(str.capitalize, of.words.split()))  # the first part of the names of the schemas
    has_query = route.method in ("GET", "DELETE")
    page = {"limit": schemas.PAGE["limit"]} if route.marker else {}
    if not has_query:
        schemas.COMPONENTS[component] = _body((str(argument.rest), argument) for argument in sent)
    return Operation(
        route.method,
        route.path,
        name,
        of.summary.partition("\n")[0],
        route.rule,
        functools.partial(_handle, of, route),
        None if has_query else component,
        _answer(of, route, component),
        {**{str(argument.rest): argument.schema for argument in sent}, **page} if has_query else _NO_QUERY,
        route.status,
        route.errors,
    )


def _body(members: Iterable[tuple[str, surface.Argument]]) -> Schema:
    """The schema of a body. The member ``select.quota`` is the member ``quota`` of its member ``select``."""
    nested: dict[str, list[tuple[str, surface.Argument]]] = {}
    properties: dict[str, Schema] = {}
    optional: list[str] = []
    for name, argument in members:
        outer, dot, inner = name.partition(".")
        if dot:
            nested.setdefault(outer, []).append((inner, argument))
            continue
        properties[outer] = argument.schema
        if not argument.is_required:
            optional.append(outer)
    return schemas.object_of({**properties, **{name: _body(inner) for name, inner in nested.items()}}, tuple(optional))


def _answer(of: surface.Operation, route: Route, component: str) -> str | None:
    """The name of the schema of the answer."""
    if route.member is None or of.columns is None:
        return None
    record = str(route.record)
    fields = {column.member: column.schema for column in of.columns if column.schema is not None}
    schemas.COMPONENTS.setdefault(record, schemas.object_of(fields))
    name, reference = f"{component}Answer", schemas.ref(record)
    schemas.COMPONENTS[name] = (
        schemas.list_of(route.member, reference, paged=route.marker is not None)
        if of.is_list
        else schemas.object_of({route.member: reference})
    )
    return name


def _handle(of: surface.Operation, route: Route, call: Call) -> Any:
    """Make the call of an operation with the values of a request, and render what it returns."""
    values = _values(of, call)
    if values.pop(arguments.FORCE_PROJECT.name, None) is not None:
        call.require_project(values.get("child_id") or call.project_id)
    if route.marker is not None:
        values["limit"] = call.limit + 1
    result = of.call(call, **values)
    if of.columns is None or route.member is None:
        return None
    shown, records = result if isinstance(result, surface.Table) else (of.columns, result)
    render = functools.partial(render_columns, [column for column in shown if column.schema is not None])
    if route.marker is not None:
        return call.page(route.member, records, render, route.marker)
    return {route.member: [render(record) for record in records] if of.is_list else render(records)}


def _values(of: surface.Operation, call: Call) -> dict[str, Any]:
    """The values of the arguments, by name. Raises Refused (400)."""
    values: dict[str, Any] = {}
    try:
        for argument in surface.flat(of.arguments):
            given = _given(argument, call)
            if given is not None:
                values[argument.name] = argument.load(given)
            else:  # (of several arguments with one name, another one may be given)
                values.setdefault(argument.name, argument.collect(argument.default))
    except argparse.ArgumentTypeError as error:
        raise Refused(400, f"Invalid value: {error}.") from None
    for either in of.arguments:
        if not isinstance(either, surface.OneOf):
            continue
        if sum(_given(argument, call) not in (None, argument.default) for argument in either.arguments) > 1:
            names = (str(argument.rest) for argument in either.arguments if argument.rest)
            raise Refused(400, f"Give only one of {', '.join(names)}.")
    return values


def _given(argument: surface.Argument, call: Call) -> Any:
    """What the path, the query or the body has for an argument; None: nothing, or the argument is for the host only."""
    value: Any = call.path.get(argument.name)
    if value is None and argument.rest is not None:
        value = call.query if call.body is None else call.body
        for part in str(argument.rest).split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


_KNOWN: Final = {(operation.method, operation.path) for operation in _BY_HAND}
OPERATIONS: Final = (
    *_BY_HAND,
    *[
        _generated(operation, operation.route)
        for operation in table.operations().values()
        if operation.route is not None and operation.route[:2] not in _KNOWN
    ],
)
