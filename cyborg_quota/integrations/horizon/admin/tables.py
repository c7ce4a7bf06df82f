# SPDX-License-Identifier: Apache-2.0
"""The tables of the panel."""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from horizon import tables

from cyborg_quota.integrations.horizon import client, texts
from cyborg_quota.integrations.horizon.tables import (
    JsonTable,
    LimitsTable,
    PagedTable,
    ReservationsTable,
    ResourcesTable,
    time_column,
)

INDEX = "horizon:admin:accelerator_quotas:index"
DETAIL = "horizon:admin:accelerator_quotas:detail"
SET = "horizon:admin:accelerator_quotas:set"
SET_DEFAULTS = "horizon:admin:accelerator_quotas:set_defaults"
UNSET = "horizon:admin:accelerator_quotas:unset"
OVERRIDE = "horizon:admin:accelerator_quotas:override"
CANCEL_OVERRIDE = "horizon:admin:accelerator_quotas:cancel_override"


class _ProjectLink(tables.LinkAction):
    """A link to a form of a project: that of the row, or that of the page."""

    classes = ("ajax-modal",)

    def get_link_url(self, datum: Any = None) -> str:
        """The URL of the form."""
        project_id = self.table.kwargs["project_id"] if datum is None else datum.id
        return str(reverse(self.url, args=[project_id]))


class SetLimits(_ProjectLink):
    name = "set"
    verbose_name = _("Set Limits")
    url = SET
    icon = "pencil"


class AddOverride(_ProjectLink):
    name = "override"
    verbose_name = _("Add Override")
    url = OVERRIDE
    icon = "plus"


class UnsetLimits(_ProjectLink):
    name = "unset"
    verbose_name = _("Return to Defaults")
    url = UNSET


class ProjectFilter(tables.FilterAction):
    """Keystone has all projects, so the list of them is filtered and cut into pages here."""

    filter_type = "server"
    filter_choices = (
        ("name", _("Project Name contains"), True),
        ("id", _("Project ID ="), True),
    )


class ProjectsTable(tables.DataTable):
    """Every project."""

    name = tables.WrappingColumn("name", verbose_name=_("Project"), link=DETAIL)
    quota = tables.Column(texts.bars, verbose_name=_("Quota"), sortable=False)
    id = tables.WrappingColumn("id", verbose_name=_("Project ID"), classes=("hidden-xs",))

    class Meta:
        name = "projects"
        verbose_name = _("Projects")
        pagination_param = "project_marker"
        prev_pagination_param = "prev_project_marker"
        table_actions = (ProjectFilter,)
        row_actions = (SetLimits, AddOverride, UnsetLimits)
        row_actions_dropdown_template = "accelerator_quota/_row_actions.html"
        table_actions_template = "accelerator_quota/_filter.html"
        multi_select = False


class SetDefaults(tables.LinkAction):
    name = "set_defaults"
    verbose_name = _("Set Default Limits")
    url = SET_DEFAULTS
    classes = ("ajax-modal",)
    icon = "pencil"


class DefaultsTable(LimitsTable):
    """The limits of projects without limits of their own."""

    class Meta:
        name = "defaults"
        verbose_name = _("Default Limits")
        table_actions = (SetDefaults,)
        multi_select = False


class TotalsTable(LimitsTable):
    """The total limits over all projects."""

    held = tables.Column("held", verbose_name=_("Held by All Projects"))

    class Meta:
        name = "totals"
        verbose_name = _("Total Limits")


class CapacityTable(PagedTable):
    """The inventories of the providers."""

    tab = "quotas__capacity"
    provider = tables.WrappingColumn("provider", verbose_name=_("Provider"))
    resource = tables.Column("resource", verbose_name=_("Resource"))
    total = tables.Column("total", verbose_name=_("Total"))
    held_back = tables.Column("reserved", verbose_name=_("Held Back"))
    capacity = tables.Column("capacity", verbose_name=_("Capacity"))
    in_use = tables.Column("in_use", verbose_name=_("In Use"))
    free = tables.Column("free", verbose_name=_("Free"))

    def get_object_id(self, datum: Any) -> str:
        """The id of a row: the marker of the page after it."""
        return client.capacity_marker(datum)

    class Meta:
        name = "capacity"
        verbose_name = _("Capacity")
        pagination_param = "capacity_marker"


def _pod_usage(pod: Any) -> str:
    usage = pod["usage"] or {}
    return ", ".join(f"{name}: {use['in_use']} / {use['capacity']}" for name, use in sorted(usage.items())) or "-"


class PodsTable(JsonTable):
    """The pods, with their last measurements."""

    key = "name"
    name = tables.Column("name", verbose_name=_("Pod"))
    zone = tables.Column("availability_zone", verbose_name=_("Availability Zone"))
    state = tables.Column("state", verbose_name=_("State"))
    usage = tables.Column(_pod_usage, verbose_name=_("In Use / Capacity"))
    measured_at = time_column("measured_at", _("Measured"))

    class Meta:
        name = "pods"
        verbose_name = _("Pods")


class ProjectResourcesTable(ResourcesTable):
    """The table of the project's own panel, with the actions of an admin."""

    class Meta(ResourcesTable.Meta):
        table_actions = (SetLimits, AddOverride)
        multi_select = False


class CancelOverride(tables.LinkAction):
    """A link to the form that cancels the override of the row."""

    name = "cancel"
    verbose_name = _("Cancel Override")
    classes = ("ajax-modal", "btn-danger")

    def get_link_url(self, datum: Any) -> str:
        """The URL of the form."""
        return str(reverse(CANCEL_OVERRIDE, args=[self.table.kwargs["project_id"], datum["id"]]))


class OverridesTable(LimitsTable):
    """The overrides of a project that have not ended."""

    key = "id"
    start = time_column("start", _("From"))
    until = time_column("until", _("Until"))
    reason = tables.Column("reason", verbose_name=_("Reason"))

    class Meta:
        name = "overrides"
        verbose_name = _("Overrides")
        table_actions = (AddOverride,)
        row_actions = (CancelOverride,)
        multi_select = False


class HistoryTable(PagedTable):
    """The changes of the limits of a project, newest first."""

    tab = "quota__history"
    at = time_column("at", _("At"))
    action = tables.Column("action", verbose_name=_("Change"))
    resource = tables.Column(texts.resource_in_pod, verbose_name=_("Resource"))
    before = tables.Column(lambda change: texts.changed(change["before"]), verbose_name=_("Before"))
    after = tables.Column(lambda change: texts.changed(change["after"]), verbose_name=_("After"))
    start = time_column("start", _("From"))
    until = time_column("until", _("Until"))
    reason = tables.Column("reason", verbose_name=_("Reason"))
    user = tables.WrappingColumn("user_id", verbose_name=_("User"))

    class Meta:
        name = "history"
        verbose_name = _("History")
        pagination_param = "history_marker"


def _indented(node: Any) -> str:
    depth: int = node["depth"]
    return "\u2007\u2007\u2007" * depth + str(node["name"])


def _node_url(node: Any) -> str:
    return str(reverse(DETAIL, args=[node["project_id"]]))


def _node_quota(node: Any) -> str:
    figures = [
        _("%(resource)s: limit %(limit)s, %(in_use)s in use, %(subtree)s with the projects below it")
        % {
            "resource": resource,
            "in_use": one["in_use"],
            "subtree": one.get("subtree", "-"),
            "limit": texts.limit(one["limit"]),
        }
        for resource, one in sorted(node["quota"].items())
    ]
    return "; ".join(map(str, figures)) or "-"


class TreeTable(PagedTable):
    """The project and the projects below it. Parents come before children."""

    tab = "quota__tree"
    key = "project_id"
    name = tables.Column(_indented, verbose_name=_("Project"), link=_node_url, sortable=False)
    quota = tables.Column(_node_quota, verbose_name=_("Quota"), sortable=False)

    class Meta:
        name = "tree"
        verbose_name = _("Project Tree")
        pagination_param = "tree_marker"


class ProjectReservationsTable(ReservationsTable):
    """The table of the project's own panel, in a tab."""

    tab = "quota__reservations"

    Meta = ReservationsTable.Meta
