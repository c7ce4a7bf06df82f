# SPDX-License-Identifier: Apache-2.0
"""The operations on providers, inventories and allocations."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from cyborg_quota import exceptions, policy
from cyborg_quota.surface import arguments, formats, paging
from cyborg_quota.surface.arguments import at_least_zero
from cyborg_quota.surface.operations import (
    BOOLEAN,
    COUNT,
    INTEGER,
    NAME,
    TEXT,
    Argument,
    Column,
    OneOf,
    Operation,
    Route,
    by_name,
    columns,
    described,
    nullable,
)
from cyborg_quota.types.capacity import Inventory

_PROVIDER_COLUMNS: Final = (
    *columns("name", "uuid", schema=NAME),
    Column("parent", formats.Optional, schema=nullable(NAME)),
    Column("can_host", schema=BOOLEAN),
    Column("pod", formats.Optional, schema=nullable(NAME)),
    Column("served_by", formats.Optional, schema=nullable(NAME)),
    Column("generation", schema=COUNT),
)
INVENTORY_COLUMNS: Final = (
    *columns("provider", "resource", schema=NAME),
    *columns("total", "reserved", "min_unit", "max_unit", "step_size", schema=COUNT),
    Column("allocation_ratio", str, schema=TEXT),
    Column("capacity", None, schema=COUNT),
    Column("used", schema=COUNT, rest="in_use"),
    Column("free", schema=described(INTEGER, "Negative if the inventory was lowered below its use.")),
    *columns("generation", "used_elsewhere", schema=COUNT),
)
_ALLOCATION_COLUMNS: Final = (
    *columns("provider", "project_id", schema=NAME),
    Column("consumer", formats.Optional, schema=nullable(NAME)),
    Column("resource", schema=NAME),
    Column("used", schema=COUNT),
    Column("reservation", schema=NAME),
)
_REPORT_COLUMNS: Final = (
    Column("resource", schema=NAME),
    *columns("providers", "total", "reserved", "capacity", schema=COUNT),
    Column("claimed", value=lambda report: report.used, schema=COUNT),
    *columns("used_elsewhere", "free", "largest_free", schema=INTEGER),
    Column("promised", formats.Limit, schema=nullable(INTEGER)),
    Column("oversubscription", formats.Optional, schema=nullable({"type": "number"})),
    Column("not_served", len, schema={"type": "array", "items": {"type": "object"}}),
)

_PROVIDER: Final = Argument("provider", metavar="PROVIDER", help="the provider's name or UUID")
_OF_PROVIDER: Final = Argument("--provider", metavar="PROVIDER", help="only of this provider: a name or UUID")

_SERVED: Final[dict[str, Any]] = {
    "action": "append",
    "metavar": "PROVIDER",
    "schema": {"type": "array", "items": NAME},
}


_PROVIDERS: Final = "/v2/quota_providers"
_CAPACITY: Final = "/v2/quota_capacity"
_ONE: Final = f"{_PROVIDERS}/{{provider}}"
_OF_ONE: Final = f"{_ONE}/inventories"


def _set_provider(
    caller: Any,
    provider: str,
    pod: str | None,
    *,
    no_pod: bool,
    can_host: bool | None,
    serves: list[str] | None,
    stop_serving: list[str] | None,
    reason: str | None,
) -> Any:
    has_pod, has_served, capacity = no_pod or pod is not None, bool(serves or stop_serving), caller.engine.capacity
    if has_pod + has_served + (can_host is not None) != 1:
        raise exceptions.InvalidRequest(
            "Change either the pod of the provider, or whether it is shared, or which providers it serves."
        )
    if has_served:
        given = {"add": serves or (), "remove": stop_serving or ()}
        return capacity.set_served(caller.elevated, provider, **given, reason=reason)
    change: dict[str, Any] = {"pod": pod} if has_pod else {"can_host": can_host}
    return capacity.set_provider(caller.elevated, provider, **change, reason=reason)


def _set_inventories(
    caller: Any, provider: str, totals: dict[str, int], generation: int | None, reason: str | None, **units: Any
) -> Any:
    inventories = {resource: Inventory(total=total, **units) for resource, total in totals.items()}
    return caller.engine.capacity.set_inventories(
        caller.elevated, provider, inventories, generation=generation, reason=reason
    )


def _remove_inventory(caller: Any, provider: str, resource: str, reason: str | None) -> None:
    capacity = caller.engine.capacity
    if resource not in {record.resource for record in capacity.list_inventories(caller.elevated, provider)}:
        raise exceptions.NotFound(f"Provider {provider} has no inventory of {resource}. Nothing was changed.")
    capacity.remove_inventory(caller.elevated, provider, resource, reason=reason)


REPORT: Final = Operation(
    """Show what exists of each resource, what of it is in use, and what is promised.

    total and reserved are the sums over all providers; capacity is what they can
    give out; claimed is taken by reservations that name a provider; used_elsewhere
    is taken by others, as Placement reports it; free is the rest, and largest_free
    is the largest amount that is free at one provider. promised is the sum of the limits at the
    top of the project tree, and oversubscription is promised / capacity.
    not_served is the number of those projects whose limit still permits more than
    is free.
    """,
    "cyborg-quota capacity show",
    lambda caller, **page: paging.page(
        caller.engine.capacity.report(caller.elevated), lambda report: (report.resource,), ("resource",), **page
    ),
    paging.BY_RESOURCE,
    columns=_REPORT_COLUMNS,
    words="capacity show",
    route=Route(
        "GET",
        f"{_CAPACITY}/report",
        policy.CAPACITY,
        "resources",
        "ResourceReport",
        attrgetter("resource"),
        errors=(409,),
    ),
)

OPERATIONS: Final = (
    REPORT,
    Operation(
        """Add a provider: a node, a device of a node, or a shared pool.

        It has no inventory yet: see `inventory set`.
        """,
        "cyborg-quota provider create node1",
        lambda caller, **given: caller.engine.capacity.add_provider(caller.elevated, **given),
        (
            Argument("name", metavar="NAME", help="the name of the provider"),
            Argument("--uuid", metavar="UUID", help="its UUID (default: a random one)"),
            Argument("--parent", metavar="PROVIDER", help="the provider that contains it: a name or UUID"),
            Argument("--pod", metavar="POD", help="the pod to which it belongs"),
            Argument(
                "--shared",
                action="store_false",
                dest="can_host",
                default=True,
                help="a shared pool: only claims that name it use its capacity",
            ),
            arguments.CAPACITY_REASON,
        ),
        _PROVIDER_COLUMNS,
        is_list=False,
        words="provider create",
        route=Route("POST", _PROVIDERS, policy.CHANGE_CAPACITY, "provider", "Provider", status=201, errors=(404, 409)),
    ),
    Operation(
        "List all providers.",
        "cyborg-quota provider list -f csv",
        lambda caller, **given: caller.engine.capacity.list_providers(caller.elevated, **given),
        (paging.LIMIT, paging.marker("NAME", "start after the provider with this name")),
        _PROVIDER_COLUMNS,
        words="provider list",
        route=Route("GET", _PROVIDERS, policy.CAPACITY, "providers", "Provider", by_name),
    ),
    Operation(
        "Show one provider.",
        "cyborg-quota provider show node1",
        lambda caller, provider: caller.engine.capacity.show_provider(caller.elevated, provider),
        (_PROVIDER,),
        _PROVIDER_COLUMNS,
        is_list=False,
        words="provider show",
        route=Route("GET", _ONE, policy.CAPACITY, "provider", "Provider", errors=(404,)),
    ),
    Operation(
        """Put a provider into a pod, make it a shared pool, or say which providers a pool serves.

        A provider that has claims stays in its pod. --provider any chooses no shared
        pool alone. If the provider that it chooses has no inventory of a resource, the
        claim takes the resource from the pool that serves this provider. A provider is
        served by one pool, of its own pod. A provider that becomes a shared pool keeps
        its claims.
        """,
        "cyborg-quota provider set node1 --pod pod1\n  cyborg-quota provider set pool1 --serves node1 --serves node2",
        _set_provider,
        (
            _PROVIDER,
            OneOf(
                Argument("--pod", metavar="POD", help="the pod to which it belongs"),
                Argument("--no-pod", action="store_true", help="it belongs to no pod"),
            ),
            OneOf(
                Argument(
                    "--shared",
                    action="store_false",
                    dest="can_host",
                    default=None,
                    help="a shared pool: for claims that name it, or are at a provider that it serves",
                ),
                Argument(
                    "--no-shared",
                    rest=None,
                    action="store_true",
                    dest="can_host",
                    default=None,
                    help="no shared pool",
                ),
            ),
            Argument("--serves", help="a provider that this shared pool serves; may be repeated", **_SERVED),
            Argument("--stop-serving", help="a provider that it serves no longer; may be repeated", **_SERVED),
            arguments.CAPACITY_REASON,
        ),
        _PROVIDER_COLUMNS,
        is_list=False,
        words="provider set",
        route=Route("PUT", _ONE, policy.CHANGE_CAPACITY, "provider", "Provider", errors=(404, 409)),
    ),
    Operation(
        "Remove a provider that has no claims, together with its inventories.",
        "cyborg-quota provider delete node1",
        lambda caller, **given: caller.engine.capacity.remove_provider(caller.elevated, **given),
        (_PROVIDER, arguments.CAPACITY_REASON),
        words="provider delete",
        route=Route("DELETE", _ONE, policy.CHANGE_CAPACITY, status=204, errors=(404, 409)),
    ),
    Operation(
        """Set how many of each resource a provider has, and in which units.

        The options apply to all resources of the command; a value that is not given
        is reset to its default. Other inventories of the provider stay unchanged. A
        claim takes the smallest unit, or a multiple of the step size above it up to
        the largest unit. The total may be lower than what is in use: claims are then
        refused until the use is below the capacity again.
        With --generation, nothing is changed if the provider has another generation.
        """,
        "cyborg-quota inventory set node1 gpu=8 fpga=2 --reserved 1",
        _set_inventories,
        (
            _PROVIDER,
            arguments.pairs(
                "totals",
                "the total, as in gpu=8",
                metavar="RESOURCE=TOTAL",
                schema=arguments.by_resource(COUNT),
            ),
            Argument("--reserved", type=at_least_zero, default=0, metavar="N", help="set aside (default: 0)"),
            Argument(
                "--min-unit",
                type=at_least_zero,
                default=1,
                metavar="N",
                help="the smallest claim (default: 1)",
            ),
            Argument("--max-unit", type=at_least_zero, metavar="N", help="the largest claim (default: the total)"),
            Argument(
                "--step-size",
                type=at_least_zero,
                default=1,
                metavar="N",
                help="the step of claims (default: 1)",
            ),
            Argument(
                "--allocation-ratio",
                default="1",
                metavar="RATIO",
                help="the capacity is (total - reserved) * RATIO, rounded down (default: 1)",
            ),
            Argument("--generation", type=at_least_zero, metavar="N", help="the generation in `inventory list`"),
            arguments.CAPACITY_REASON,
        ),
        INVENTORY_COLUMNS,
        words="inventory set",
        route=Route("PUT", _OF_ONE, policy.CHANGE_CAPACITY, "inventories", "Inventory", errors=(404, 409)),
    ),
    Operation(
        "List the inventories: what exists, what is in use, and what is free.",
        "cyborg-quota inventory list --provider node1",
        lambda caller, after, **given: caller.engine.capacity.list_inventories(
            caller.elevated, after=paging.position(after, None), **given
        ),
        (_OF_PROVIDER, *paging.paging("provider", "PROVIDER")),
        INVENTORY_COLUMNS,
        words="inventory list",
        route=Route(
            "GET",
            _CAPACITY,
            policy.CAPACITY,
            "capacity",
            "Inventory",
            lambda record: paging.in_one_word((record.provider, record.resource)),
            errors=(404,),
        ),
    ),
    Operation(
        """Remove an inventory that has no claims.

        Exits with 1 if the provider has no such inventory.
        """,
        "cyborg-quota inventory delete node1 fpga",
        _remove_inventory,
        (_PROVIDER, Argument("resource", metavar="RESOURCE", help="the resource"), arguments.CAPACITY_REASON),
        words="inventory delete",
        route=Route("DELETE", f"{_OF_ONE}/{{resource}}", policy.CHANGE_CAPACITY, status=204, errors=(404, 409)),
    ),
    Operation(
        "List the live claims that take capacity of a provider.",
        "cyborg-quota allocation list --provider node1",
        lambda caller, **given: caller.engine.capacity.list_allocations(caller.elevated, **given),
        (
            _OF_PROVIDER,
            paging.LIMIT,
            paging.marker("UUID", "start after the claim with this reservation"),
            paging.RESOURCE,
        ),
        _ALLOCATION_COLUMNS,
        words="allocation list",
        route=Route(
            "GET",
            "/v2/quota_allocations",
            policy.ALL_RESERVATIONS,
            "allocations",
            "Allocation",
            lambda allocation: str(allocation.reservation),
            errors=(404,),
        ),
    ),
)
