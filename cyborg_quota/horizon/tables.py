# SPDX-License-Identifier: Apache-2.0
"""The tables of the panels, each described by its columns, and their links to forms."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote_plus

from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from horizon import tables

from cyborg_quota.horizon import client, texts


class QuotaTable(tables.DataTable):
    """A table whose rows are objects of an answer of the service.

    ``key`` gives the id of a row, which the path of a form has as ``id_name``. ``tab``: if the service returns pages,
    the tab that the link to the next page opens.
    """

    key: Callable[[Any], Any]
    id_name = "project_id"
    marker = ""
    tab = ""

    def get_object_id(self, datum: Any) -> str:
        """The id of a row."""
        return str(self.key(datum))

    get_object_display = get_object_id

    def get_marker(self) -> str:
        """The marker of the next page: the project of the last row, if a project has several rows."""
        return quote_plus(self.data[-1][self.marker]) if self.marker and self.data else str(super().get_marker())

    def get_pagination_string(self) -> str:
        """The parameters of the next page."""
        return "&".join([f"tab={self.tab}"] * bool(self.tab) + [super().get_pagination_string()])


def column(title: Any, value: Any = None, kind: Any = tables.Column, **options: Any) -> Callable[[str], Any]:
    """A column; ``value``: the name or the function of what it shows, if that is not the name of the column."""
    return lambda name: kind(value or name, verbose_name=title, **options)


def time_column(title: Any) -> Callable[[str], Any]:
    """A column with a time of the service, shown in the time zone of the user."""
    return lambda name: column(title, lambda row: texts.moment(row[name]))(name)


def make_table(
    name: str,
    title: Any,
    columns: Mapping[str, Any],
    *,
    key: Callable[[Any], Any] = operator.itemgetter("id"),
    id_name: str = "project_id",
    tab: str = "",
    marker: str = "",
    **options: Any,
) -> Any:
    """A table. ``columns``: by name, the title or what ``column`` returned. ``options``: as in Horizon's class Meta."""
    made = {
        name: (definition if callable(definition) else column(definition))(name) for name, definition in columns.items()
    }
    meta = types.SimpleNamespace(name=name, verbose_name=title, multi_select=False, **options)
    return type(
        name, (QuotaTable,), dict(made, key=staticmethod(key), id_name=id_name, tab=tab, marker=marker, Meta=meta)
    )


URLS: Final = "horizon:admin:accelerator_quotas:"
INDEX: Final = f"{URLS}index"
DETAIL: Final = f"{URLS}detail"


LIMIT_COLUMNS = {"resource": _("Resource"), "limit": column(_("Limit"), lambda row: texts.limit(row["limit"]))}


def resources_table(**options: Any) -> Any:
    """The limits and the usage of one project."""
    columns = {
        "resource": _("Resource"),
        "limit": column(_("Limit"), texts.limit_in_force),
        # On a narrow screen, only the text above the bars says these.
        "in_use": column(_("In Use"), classes=("hidden-xs",)),
        "reserved": column(_("Reserved"), classes=("hidden-xs",)),
        "fits": column(_("Fits"), texts.fits),
        "bound_by": column(_("Bound By"), texts.bound_by),
        "minimum": column(_("Minimum"), lambda row: row.get("minimum"), classes=("hidden-xs",)),
    }
    return make_table(
        "resources", _("Resources"), columns, key=operator.itemgetter("resource"), footer=False, **options
    )


def budgets_table(columns: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Budgets of accelerator-hours. ``columns``: more of them, before the others."""
    hours = {"hours": _("Hours"), "spent": _("Spent"), "left": _("Left")}
    shown = {
        **(columns or {}),
        "resource": _("Resource"),
        **{name: column(title, texts.hours(name)) for name, title in hours.items()},
        "held": column(_("Held"), classes=("hidden-xs",)),
        "lasts_until": time_column(_("Lasts Until")),
        "period_ends": time_column(_("Period Ends")),
        "enforce": column(_("When Spent"), texts.when_spent, classes=("hidden-xs",)),
    }
    return make_table("budgets", _("Budgets"), shown, key=client.marker_of("project_id", "resource"), **options)


def reservations_table(**options: Any) -> Any:
    """Reservations in flight."""
    columns = {
        "resource": _("Resource"),
        "amount": _("Amount"),
        "consumer": _("Consumer"),
        "group": _("Group"),
        "created_at": time_column(_("Since")),
        "expire": time_column(_("Expires")),
    }
    return make_table(
        "reservations",
        _("Reservations in Flight"),
        columns,
        key=operator.itemgetter("uuid"),
        pagination_param="reservation_marker",
        **options,
    )


class _FormLink(tables.LinkAction):
    """A link to a form, which is about what the page is about, and about the row if it is in one.

    It is hidden where limits are not set by the service.
    """

    classes = ("ajax-modal",)

    def allowed(self, request: Any, datum: Any = None) -> bool:  # noqa: ARG002
        """Whether the service sets limits."""
        return client.read_only(request) is None

    def get_link_url(self, datum: Any = None) -> str:
        """The URL of the form, which has the name of the link."""
        row = {} if datum is None else {self.table.id_name: self.table.get_object_id(datum)}
        return str(reverse(f"{URLS}{self.name}", kwargs={**self.table.kwargs, **row}))


def _form_link(name: str, title: Any, **options: Any) -> Any:
    return type(name, (_FormLink,), {"name": name, "verbose_name": title, **options})


SetLimits = _form_link("set", _("Set Limits"), icon="pencil")
AddOverride = _form_link("override", _("Add Override"), icon="plus")
UnsetLimits = _form_link("unset", _("Return to Defaults"))
SetDefaults = _form_link("set_defaults", _("Set Default Limits"), icon="pencil")
CancelOverride = _form_link("cancel_override", _("Cancel Override"), classes=("ajax-modal", "btn-danger"))


class ProjectFilter(tables.FilterAction):
    """Keystone has all projects, so the list of them is filtered and cut into pages here."""

    filter_type = "server"
    filter_choices = (
        ("name", _("Project Name contains"), True),
        ("id", _("Project ID ="), True),
    )


def _pod_usage(pod: Any) -> str:
    usage = pod["usage"] or {}
    return ", ".join(f"{name}: {use['in_use']} / {use['capacity']}" for name, use in sorted(usage.items())) or "-"


def _node_url(node: Any) -> str:
    return str(reverse(DETAIL, args=[node["project_id"]]))


# --- of the cloud ---

ProjectsTable = make_table(
    "projects",
    _("Projects"),
    {
        "name": column(_("Project"), kind=tables.WrappingColumn, link=DETAIL),
        "domain": column(_("Domain"), classes=("hidden-xs",)),
        "quota": column(_("Quota"), texts.bars, sortable=False),
        "held": column(_("Held"), texts.most_held, classes=("hidden-xs",)),
        "id": column(_("Project ID"), kind=tables.WrappingColumn, classes=("hidden-xs",)),
    },
    pagination_param="project_marker",
    prev_pagination_param="prev_project_marker",
    table_actions=(ProjectFilter,),
    row_actions=(SetLimits, AddOverride, UnsetLimits),
    row_actions_dropdown_template="accelerator_quota/_row_actions.html",
    table_actions_template="accelerator_quota/_filter.html",
)
DefaultsTable = make_table(
    "defaults",
    _("Default Limits"),
    LIMIT_COLUMNS,
    key=operator.itemgetter("resource"),
    table_actions=(SetDefaults,),
)
TotalsTable = make_table(
    "totals",
    _("Total Limits"),
    {**LIMIT_COLUMNS, "held": _("Held by All Projects")},
    key=operator.itemgetter("resource"),
)
CapacityTable = make_table(
    "capacity",
    _("Capacity"),
    {
        "provider": column(_("Provider"), kind=tables.WrappingColumn),
        "resource": _("Resource"),
        "total": _("Total"),
        "reserved": _("Held Back"),
        "capacity": _("Capacity"),
        "in_use": _("In Use"),
        "free": _("Free"),
    },
    key=client.marker_of("provider", "resource"),
    tab="quotas__capacity",
    pagination_param="capacity_marker",
)
PodsTable = make_table(
    "pods",
    _("Pods"),
    {
        "name": _("Pod"),
        "availability_zone": _("Availability Zone"),
        "state": _("State"),
        "usage": column(_("In Use / Capacity"), _pod_usage),
        "measured_at": time_column(_("Measured")),
    },
    key=operator.itemgetter("name"),
)

CloudBudgetsTable = budgets_table(
    {"name": column(_("Project"), kind=tables.WrappingColumn, link=_node_url)},
    tab="quotas__budgets",
    pagination_param="budget_marker",
)
OPTIONAL: Final = ((CapacityTable, "/quota_capacity"), (PodsTable, "/quota_pods"))
"""The tables that are shown only where they have rows, each with the call of the REST API that lists these."""

# --- of one project ---

ProjectResourcesTable = resources_table(table_actions=(SetLimits, AddOverride))
BudgetsTable = budgets_table()
OverridesTable = make_table(
    "overrides",
    _("Overrides"),
    {**LIMIT_COLUMNS, "start": time_column(_("From")), "until": time_column(_("Until")), "reason": _("Reason")},
    id_name="override_id",
    table_actions=(AddOverride,),
    row_actions=(CancelOverride,),
)
ProjectReservationsTable = reservations_table(tab="quota__reservations")
HistoryTable = make_table(
    "history",
    _("History"),
    {
        "at": time_column(_("At")),
        "action": _("Change"),
        "resource": _("Resource"),
        # (Empty: the service hides its name.)
        "pod": column(_("Pod"), lambda change: _("(hidden)") if change["pod"] == "" else change["pod"]),
        "before": column(_("Before"), lambda change: texts.changed(change["before"])),
        "after": column(_("After"), lambda change: texts.changed(change["after"])),
        "start": time_column(_("From")),
        "until": time_column(_("Until")),
        "reason": _("Reason"),
        "user": column(_("User"), kind=tables.WrappingColumn),
    },
    tab="quota__history",
    pagination_param="history_marker",
)
TreeTable = make_table(
    "tree",
    _("Project Tree"),
    {
        "name": column(
            _("Project"),
            lambda node: "\u2007\u2007\u2007" * int(node["depth"]) + str(node["name"]),
            link=_node_url,
            sortable=False,
        ),
        "resource": column(_("Resource"), sortable=False),
        "limit": column(_("Limit"), lambda row: texts.limit(row["limit"]), sortable=False),
        "in_use": column(_("In Use"), sortable=False),
        "hierarchical_usage": column(_("Held Below"), sortable=False),
        "subtree": column(_("Held Together"), sortable=False),
        "minimum": column(_("Minimum"), lambda row: row.get("minimum"), sortable=False),
        "promised": column(_("Promised"), lambda row: row.get("promised"), sortable=False),
    },
    key=lambda row: f"{row['project_id']}/{row['resource']}",
    tab="quota__tree",
    marker="project_id",
    pagination_param="tree_marker",
)
