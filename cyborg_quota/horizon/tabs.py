# SPDX-License-Identifier: Apache-2.0
"""The tabs of the panel: those of the cloud, and those of one project."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _
from horizon import tabs
from horizon.utils import functions
from openstack_dashboard.api import keystone

from cyborg_quota.horizon import client, rows, tables


class _Tab(tabs.TableTab):
    """A tab with one table. ``path``: the call of the REST API that lists its rows.

    ``is_optional``: it is shown only where the service has what it shows.
    """

    template_name = "accelerator_quota/_table.html"
    preload = False
    path = ""
    is_optional = False
    _has_more = False
    _has_prev = False
    _is_unknown = False

    def __init_subclass__(cls) -> None:
        """Name the method that returns the rows as Horizon expects it, by the table."""
        for table in cls.table_classes:
            setattr(cls, f"get_{table._meta.name}_data", cls.rows_or_none)

    def read(self, limit: int | None = None) -> list[Any]:
        """The rows of the page that the request asks for, or at most ``limit`` rows."""
        [table] = self.table_classes
        page: tuple[Any, ...] = ()
        if table.tab:
            size = limit or functions.get_page_size(self.request)
            page = (size, self.request.GET.get(table._meta.pagination_param))
        records, self._has_more = client.of(self.request).listed(
            table._meta.name, self.path, self.tab_group.kwargs, *page
        )
        return records

    def rows_or_none(self) -> list[Any]:
        """The rows; none, with a message, if the service refuses."""
        records = client.attempt(self.request, self.read)
        self._is_unknown = records is None
        return records or []

    def has_prev_data(self, table: Any) -> bool:  # noqa: ARG002
        """Whether there is a page before."""
        return self._has_prev

    def has_more_data(self, table: Any) -> bool:  # noqa: ARG002
        """Whether there is a next page."""
        return self._has_more

    def allowed(self, request: Any) -> bool:
        """Whether there is anything to show."""
        return not self.is_optional or bool(client.attempt(request, lambda: self.read(limit=1), None))


def _tab(table: Any, path: str, base: type[_Tab] = _Tab, **options: Any) -> Any:
    """A tab with the name of its table, unless ``options`` give another one."""
    meta = table._meta
    named = {"name": meta.verbose_name, "slug": meta.name, "table_classes": (table,), "path": path}
    return type(meta.name, (base,), {**named, **options})


class ProjectsTab(_Tab):
    """Every project, with filter and paging. The usage is read for the projects of the page only."""

    name = _("Projects")
    slug = "projects"
    table_classes = (tables.ProjectsTable,)
    preload = True

    def read(self, limit: int | None = None) -> list[Any]:  # noqa: ARG002
        """The rows."""
        table = self._tables[tables.ProjectsTable._meta.name]
        action = table._meta._filter_action
        action.filter_string, action.filter_field = table.get_filter_string(), table.get_filter_field()
        listed = rows.select_projects(client.project_names(self.request), action.filter_field, action.filter_string)
        query, meta = self.request.GET, table._meta
        page, self._has_prev, self._has_more = rows.page_of(
            listed,
            functions.get_page_size(self.request),
            query.get(meta.pagination_param),
            query.get(meta.prev_pagination_param),
        )
        domains = client.domains(self.request)
        return [
            {**project, "domain": domains.get(project["id"]), "usages": client.of(self.request).usage(project["id"])}
            for project in page
        ]


class _ByResource(_Tab):
    """A tab whose rows are the resources; of each, the service says the limit, or more."""

    def read(self, limit: int | None = None) -> list[Any]:  # noqa: ARG002
        """The rows."""
        quota = client.of(self.request).quota(self.path)
        return [
            {"resource": name, **(detail if isinstance(detail, dict) else {"limit": detail})}
            for name, detail in quota.items()
        ]


class _NamedTab(_Tab):
    """A tab whose rows have the names of their projects."""

    def read(self, limit: int | None = None) -> list[Any]:
        """The rows."""
        records = super().read(limit)
        names = client.attempt(self.request, lambda: client.project_names(self.request)) or {}
        return [{**row, "name": names.get(row["project_id"], row["project_id"])} for row in records]


class QuotasTabs(tabs.TabGroup):
    """The tabs of the cloud."""

    slug = "quotas"
    tabs = (
        ProjectsTab,
        _tab(tables.DefaultsTable, client.DEFAULTS, _ByResource, name=_("Defaults")),
        _tab(tables.TotalsTable, "/quota_totals", _ByResource, name=_("Totals"), is_optional=True),
        _tab(tables.CloudBudgetsTable, "/quota_budgets", _NamedTab, is_optional=True),
        *(_tab(table, path, is_optional=True) for table, path in tables.OPTIONAL),
    )
    sticky = True


class UsageTab(_Tab):
    """The limits and the usage of the project."""

    name = _("Usage")
    slug = "usage"
    table_classes = (tables.ProjectResourcesTable,)
    template_name = "accelerator_quota/_usage_tab.html"
    preload = True

    def read(self, limit: int | None = None) -> list[Any]:  # noqa: ARG002
        """The rows."""
        return client.of(self.request).usage(self.tab_group.kwargs["project_id"])

    def get_context_data(self, request: Any, **kwargs: Any) -> Any:
        """The table, and the figures of the bars."""
        context = super().get_context_data(request, **kwargs)
        usages, where = context["table"].data, client.read_only(request)
        return {**context, "usages": usages, "is_unknown": self._is_unknown, "read_only": where}


class _TreeTab(_NamedTab):
    """The project and the projects below it: a row for each resource."""

    def read(self, limit: int | None = None) -> list[Any]:
        """The rows."""
        return [
            {**node, "resource": resource, **figures}
            for node in super().read(limit)
            for resource, figures in sorted(node["quota"].items())
        ]


class _HistoryTab(_Tab):
    """The changes, with the names of the users."""

    def read(self, limit: int | None = None) -> list[Any]:
        """The changes of the page."""
        changes = super().read(limit)
        user_ids = {change["user_id"] for change in changes} - {None}  # (Not each change has a user.)
        names = {user_id: client.name_of(self.request, keystone.user_get, user_id) for user_id in user_ids}
        return [{**change, "user": names.get(change["user_id"])} for change in changes]


class ProjectTabs(tabs.DetailTabsGroup):
    """The tabs of one project."""

    slug = "quota"
    tabs = (
        UsageTab,
        _tab(tables.BudgetsTable, f"{client.PROJECT}/budgets", is_optional=True),
        _tab(tables.OverridesTable, f"{client.PROJECT}/overrides"),
        _tab(tables.ProjectReservationsTable, client.IN_FLIGHT),
        _tab(tables.HistoryTable, f"{client.PROJECT}/history", _HistoryTab),
        _tab(tables.TreeTable, f"{client.PROJECT}/tree", _TreeTab),
    )
    sticky = True
