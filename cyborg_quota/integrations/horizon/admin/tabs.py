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
"""How long Horizon remembers that there is capacity, and that there are pods. It asks each time if there are none."""
TEMPLATE: Final = "accelerator_quota/_table.html"


class _Tab(tabs.TableTab):
    """A tab with one table, of which the service returns pages."""

    template_name = TEMPLATE
    preload = False

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

    def attempt(self, load: Callable[[], Any]) -> Any:
        """The rows; none, with a message, if the service refuses."""
        try:
            return load()
        except Exception:
            exceptions.handle(self.request, _("Unable to retrieve the accelerator quota: %(exc)s"))
        return []

    def attempt_page(self, load: Callable[..., tuple[list[client.Json], bool]], parameter: str) -> list[client.Json]:
        """The rows of the page that the request asks for."""

        def read() -> list[client.Json]:
            size = functions.get_page_size(self.request)
            found, self._has_more = load(self.project_id, size, self.request.GET.get(parameter))
            return found

        found: list[client.Json] = self.attempt(read)
        return found

    def has_prev_data(self, table: Any) -> bool:  # noqa: ARG002
        """Whether there is a page before."""
        return self._has_prev

    def has_more_data(self, table: Any) -> bool:  # noqa: ARG002
        """Whether there is a next page."""
        return self._has_more


class ProjectsTab(_Tab):
    """Every project, with filter and paging. The usage is read for the projects of the page only."""

    name = _("Projects")
    slug = "projects"
    table_classes = (tables.ProjectsTable,)
    preload = True

    def get_projects_data(self) -> list[rows.ProjectUsage]:
        """The rows."""
        found: list[rows.ProjectUsage] = self.attempt(self._read)
        return found

    def _read(self) -> list[rows.ProjectUsage]:
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
        return [rows.ProjectUsage(one.id, one.name, self.quota_api.usage(one.id)) for one in page]


class DefaultsTab(_Tab):
    """The default limits."""

    name = _("Defaults")
    slug = "defaults"
    table_classes = (tables.DefaultsTable,)

    def get_defaults_data(self) -> list[client.Json]:
        """The rows."""
        limits = self.attempt(self.quota_api.default_limits) or {}
        return [{"resource": resource, "limit": limit} for resource, limit in limits.items()]


class _OptionalTab(_Tab):
    """A tab that is shown only where the service has what it shows."""

    def read(self) -> list[client.Json]:
        """What the tab shows."""
        raise NotImplementedError

    def allowed(self, request: Any) -> bool:
        """Whether there is anything to show."""
        key = f"cyborg_quota_has_{self.slug}"
        if cache.get(key):
            return True
        try:
            found = bool(self.read())
        except Exception:
            exceptions.handle(request, ignore=True)
            return False
        if found:
            cache.set(key, True, CONFIGURED_SECONDS)
        return found


class CapacityTab(_OptionalTab):
    """The inventories of the providers."""

    name = _("Capacity")
    slug = "capacity"
    table_classes = (tables.CapacityTable,)

    def read(self) -> list[client.Json]:
        """The inventories."""
        return self.quota_api.capacity()

    def get_capacity_data(self) -> list[client.Json]:
        """The rows."""
        found: list[client.Json] = self.attempt(self.read)
        return found


class PodsTab(_OptionalTab):
    """The pods."""

    name = _("Pods")
    slug = "pods"
    table_classes = (tables.PodsTable,)

    def read(self) -> list[client.Json]:
        """The pods."""
        return self.quota_api.pods()

    def get_pods_data(self) -> list[client.Json]:
        """The rows."""
        found: list[client.Json] = self.attempt(self.read)
        return found


class QuotasTabs(tabs.TabGroup):
    """The tabs of the cloud."""

    slug = "quotas"
    tabs = (ProjectsTab, DefaultsTab, CapacityTab, PodsTab)
    sticky = True


class UsageTab(_Tab):
    """The limits and the usage of the project."""

    name = _("Usage")
    slug = "usage"
    table_classes = (tables.ProjectResourcesTable,)
    template_name = "accelerator_quota/_usage_tab.html"
    preload = True

    def get_resources_data(self) -> list[rows.ResourceUsage]:
        """The rows."""
        found: list[rows.ResourceUsage] = self.attempt(lambda: self.quota_api.usage(self.project_id))
        return found

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

    def get_overrides_data(self) -> list[client.Json]:
        """The rows."""
        found: list[client.Json] = self.attempt(lambda: self.quota_api.overrides(self.project_id))
        return found


class ReservationsTab(_Tab):
    """The reservations in flight of the project."""

    name = _("Reservations in Flight")
    slug = "reservations"
    table_classes = (tables.ProjectReservationsTable,)

    def get_reservations_data(self) -> list[client.Json]:
        """The rows."""
        return self.attempt_page(self.quota_api.in_flight, tables.ProjectReservationsTable._meta.pagination_param)


class HistoryTab(_Tab):
    """The changes of the limits."""

    name = _("History")
    slug = "history"
    table_classes = (tables.HistoryTable,)

    def get_history_data(self) -> list[client.Json]:
        """The rows."""
        return self.attempt_page(self.quota_api.history, tables.HistoryTable._meta.pagination_param)


class TreeTab(_Tab):
    """The project and the projects below it."""

    name = _("Project Tree")
    slug = "tree"
    table_classes = (tables.TreeTable,)

    def get_tree_data(self) -> list[client.Json]:
        """The rows, with the names of the projects."""
        nodes = self.attempt_page(self.quota_api.tree, tables.TreeTable._meta.pagination_param)
        names = self.attempt(lambda: projects.names(self.request)) or {}
        return [{**node, "name": names.get(node["project_id"], node["project_id"])} for node in nodes]


class ProjectTabs(tabs.DetailTabsGroup):
    """The tabs of one project."""

    slug = "quota"
    tabs = (UsageTab, OverridesTab, ReservationsTab, HistoryTab, TreeTab)
    sticky = True
