# SPDX-License-Identifier: Apache-2.0
"""The tabs of the panel: those of the cloud, and those of one project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.core.cache import cache
from django.utils.translation import gettext_lazy as _
from horizon import exceptions, tabs
from horizon.utils import functions

from cyborg_quota.integrations.horizon import client, rows
from cyborg_quota.integrations.horizon.admin import projects, tables

CONFIGURED_SECONDS: Final = 300
"""How long Horizon remembers that there are totals, capacity or pods. It asks each time if there are none."""
TEMPLATE: Final = "accelerator_quota/_table.html"


class _Tab(tabs.TableTab):
    """A tab with one table, whose rows are those of ``read``."""

    template_name = TEMPLATE
    preload = False

    def __init_subclass__(cls) -> None:
        """Name the method that returns the rows as Horizon expects it, by the table."""
        for table in cls.table_classes:
            setattr(cls, f"get_{table._meta.name}_data", cls.rows_or_none)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._has_more = False
        self._has_prev = False

    @property
    def project_id(self) -> str:
        """The project of the page."""
        return str(self.tab_group.kwargs["project_id"])

    @property
    def quota_api(self) -> client.QuotaClient:
        """The REST API."""
        return client.of(self.request)

    def read(self) -> list[Any]:
        """The rows."""
        raise NotImplementedError

    def rows_or_none(self) -> list[Any]:
        """The rows; none, with a message, if the service refuses."""
        return list(self.attempt(self.read))

    def attempt(self, load: Callable[[], Any]) -> Any:
        """The result of ``load``; an empty list, with a message, if the service refuses."""
        try:
            return load()
        except Exception:
            exceptions.handle(self.request, _("Unable to retrieve the accelerator quota: %(exc)s"))
        return []

    def has_prev_data(self, table: Any) -> bool:  # noqa: ARG002
        """Whether there is a page before."""
        return self._has_prev

    def has_more_data(self, table: Any) -> bool:  # noqa: ARG002
        """Whether there is a next page."""
        return self._has_more


class _PagedTab(_Tab):
    """A tab with a table of which the service returns pages."""

    def read_page(self, limit: int, marker: str | None) -> tuple[list[client.Json], bool]:
        """The rows after the marker, and whether there are more."""
        raise NotImplementedError

    def read(self) -> list[Any]:
        """The rows of the page that the request asks for."""
        [table] = self.table_classes
        marker = self.request.GET.get(table._meta.pagination_param)
        found, self._has_more = self.read_page(functions.get_page_size(self.request), marker)
        return found


class ProjectsTab(_Tab):
    """Every project, with filter and paging. The usage is read for the projects of the page only."""

    name = _("Projects")
    slug = "projects"
    table_classes = (tables.ProjectsTable,)
    preload = True

    def read(self) -> list[Any]:
        """The rows."""
        table = self._tables[tables.ProjectsTable._meta.name]
        action = table._meta._filter_action
        action.filter_string, action.filter_field = table.get_filter_string(), table.get_filter_field()
        listed = rows.select_projects(projects.names(self.request), action.filter_field, action.filter_string)
        query, meta = self.request.GET, table._meta
        page, self._has_prev, self._has_more = rows.page_of(
            listed,
            functions.get_page_size(self.request),
            query.get(meta.pagination_param),
            query.get(meta.prev_pagination_param),
        )
        return [rows.Project(one.id, one.name, self.quota_api.usage(one.id)) for one in page]


class DefaultsTab(_Tab):
    """The default limits."""

    name = _("Defaults")
    slug = "defaults"
    table_classes = (tables.DefaultsTable,)

    def read(self) -> list[Any]:
        """The rows."""
        return [{"resource": name, "limit": limit} for name, limit in self.quota_api.default_limits().items()]


class _OptionalTab(_Tab):
    """A tab that is shown only where the service has what it shows."""

    def has_rows(self) -> bool:
        """Whether the service has any."""
        return bool(self.read())

    def allowed(self, request: Any) -> bool:
        """Whether there is anything to show, in the region of the user."""
        key = f"cyborg_quota_has_{self.slug}_{request.user.services_region}"
        if cache.get(key):
            return True
        try:
            found = self.has_rows()
        except Exception:
            exceptions.handle(request, ignore=True)
            return False
        if found:
            cache.set(key, True, CONFIGURED_SECONDS)
        return found


class TotalsTab(_OptionalTab):
    """The total limits over all projects."""

    name = _("Totals")
    slug = "totals"
    table_classes = (tables.TotalsTable,)

    def read(self) -> list[Any]:
        """The rows."""
        return self.quota_api.totals()


class CapacityTab(_PagedTab, _OptionalTab):
    """The inventories of the providers."""

    name = _("Capacity")
    slug = "capacity"
    table_classes = (tables.CapacityTable,)

    def has_rows(self) -> bool:
        """Whether there is an inventory."""
        return bool(self.read_page(1, None)[0])

    def read_page(self, limit: int, marker: str | None) -> tuple[list[client.Json], bool]:
        """The inventories."""
        return self.quota_api.capacity(limit, marker)


class PodsTab(_OptionalTab):
    """The pods."""

    name = _("Pods")
    slug = "pods"
    table_classes = (tables.PodsTable,)

    def read(self) -> list[Any]:
        """The rows."""
        return self.quota_api.pods()


class QuotasTabs(tabs.TabGroup):
    """The tabs of the cloud."""

    slug = "quotas"
    tabs = (ProjectsTab, DefaultsTab, TotalsTab, CapacityTab, PodsTab)
    sticky = True


class UsageTab(_Tab):
    """The limits and the usage of the project."""

    name = _("Usage")
    slug = "usage"
    table_classes = (tables.ProjectResourcesTable,)
    template_name = "accelerator_quota/_usage_tab.html"
    preload = True

    def read(self) -> list[Any]:
        """The rows."""
        return self.quota_api.usage(self.project_id)

    def get_context_data(self, request: Any, **kwargs: Any) -> Any:
        """The table, and the figures of the bars."""
        context = super().get_context_data(request, **kwargs)
        context["usages"] = context["table"].data
        return context


class OverridesTab(_Tab):
    """The overrides of the project."""

    name = _("Overrides")
    slug = "overrides"
    table_classes = (tables.OverridesTable,)

    def read(self) -> list[Any]:
        """The rows."""
        return self.quota_api.overrides(self.project_id)


class ReservationsTab(_PagedTab):
    """The reservations in flight of the project."""

    name = _("Reservations in Flight")
    slug = "reservations"
    table_classes = (tables.ProjectReservationsTable,)

    def read_page(self, limit: int, marker: str | None) -> tuple[list[client.Json], bool]:
        """The reservations."""
        return self.quota_api.in_flight(self.project_id, limit, marker)


class HistoryTab(_PagedTab):
    """The changes of the limits."""

    name = _("History")
    slug = "history"
    table_classes = (tables.HistoryTable,)

    def read_page(self, limit: int, marker: str | None) -> tuple[list[client.Json], bool]:
        """The changes."""
        return self.quota_api.history(self.project_id, limit, marker)


class TreeTab(_PagedTab):
    """The project and the projects below it."""

    name = _("Project Tree")
    slug = "tree"
    table_classes = (tables.TreeTable,)

    def read_page(self, limit: int, marker: str | None) -> tuple[list[client.Json], bool]:
        """The projects, with their names."""
        nodes, has_more = self.quota_api.tree(self.project_id, limit, marker)
        names = self.attempt(lambda: projects.names(self.request)) or {}
        return [{**node, "name": names.get(node["project_id"], node["project_id"])} for node in nodes], has_more


class ProjectTabs(tabs.DetailTabsGroup):
    """The tabs of one project."""

    slug = "quota"
    tabs = (UsageTab, OverridesTab, ReservationsTab, HistoryTab, TreeTab)
    sticky = True
