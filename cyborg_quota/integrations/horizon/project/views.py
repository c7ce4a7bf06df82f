# SPDX-License-Identifier: Apache-2.0
"""The page of the panel: the usage of the project to which the user's token belongs."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _
from horizon import exceptions, tables
from horizon.utils import functions

from cyborg_quota.integrations.horizon import client
from cyborg_quota.integrations.horizon.rows import ResourceUsage
from cyborg_quota.integrations.horizon.tables import ReservationsTable, ResourcesTable


class IndexView(tables.MultiTableView):
    """Bars, what fits and what binds, and the reservations in flight."""

    table_classes = (ResourcesTable, ReservationsTable)
    template_name = "accelerator_quota/project.html"
    page_title = _("Accelerator Quota")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._has_more = False

    def get_resources_data(self) -> list[ResourceUsage]:
        """The rows of the table of resources."""
        try:
            return client.of(self.request).usage(self.request.user.project_id)
        except Exception:
            exceptions.handle(self.request, _("Unable to retrieve the accelerator quota: %(exc)s"))
        return []

    def get_reservations_data(self) -> list[client.Json]:
        """The rows of the table of reservations."""
        marker = self.request.GET.get(ReservationsTable._meta.pagination_param)
        size = functions.get_page_size(self.request)
        # The project is named: without it, an admin would get the reservations of all projects.
        project_id = self.request.user.project_id
        try:
            found, self._has_more = client.of(self.request).in_flight(project_id, size, marker)
            return found
        except Exception:
            exceptions.handle(self.request, _("Unable to retrieve the reservations: %(exc)s"))
        return []

    def has_more_data(self, table: Any) -> bool:
        """Whether the table has a next page."""
        return self._has_more and table.name == ReservationsTable._meta.name

    def get_context_data(self, **kwargs: Any) -> Any:
        """The tables, and the figures of the bars."""
        context = super().get_context_data(**kwargs)
        context["usages"] = context["resources_table"].data
        return context
