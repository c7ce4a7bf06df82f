# SPDX-License-Identifier: Apache-2.0
"""The page of the panel: the usage of the project to which the user's token belongs."""

from __future__ import annotations

from typing import Any

from django.urls import re_path
from django.utils.translation import gettext_lazy as _
from horizon import tables
from horizon.utils import functions

from cyborg_quota.horizon import client
from cyborg_quota.horizon.tables import budgets_table, reservations_table, resources_table

ReservationsTable = reservations_table()


class IndexView(tables.MultiTableView):
    """Bars, what fits and what binds, the budgets, and the reservations in flight."""

    table_classes = (resources_table(), budgets_table(), ReservationsTable)
    template_name = "accelerator_quota/project.html"
    page_title = _("Accelerator Quota")
    _has_more = False
    _is_unknown = False

    def get_resources_data(self) -> list[client.Json]:
        """The rows of the table of resources."""
        project_id = self.request.user.project_id
        resources = client.attempt(self.request, lambda: client.of(self.request).usage(project_id))
        self._is_unknown = resources is None
        return resources or []

    def get_budgets_data(self) -> list[client.Json]:
        """The rows of the table of budgets."""
        ids = {"project_id": self.request.user.project_id}
        budgets, _more = client.attempt(
            self.request,
            lambda: client.of(self.request).listed("budgets", f"{client.PROJECT}/budgets", ids),
            _("Unable to retrieve the budgets: %(exc)s"),
        ) or ([], False)
        return budgets

    def get_reservations_data(self) -> list[client.Json]:
        """The rows of the table of reservations."""
        marker = self.request.GET.get(ReservationsTable._meta.pagination_param)
        page = {"limit": functions.get_page_size(self.request), "marker": marker}
        ids = {"project_id": self.request.user.project_id}
        reservations, self._has_more = client.attempt(
            self.request,
            lambda: client.of(self.request).listed("reservations", client.IN_FLIGHT, ids, **page),
            _("Unable to retrieve the reservations: %(exc)s"),
        ) or ([], False)
        return reservations

    def has_more_data(self, table: Any) -> bool:
        """Whether the table has a next page."""
        return self._has_more and table.name == ReservationsTable._meta.name

    def get_context_data(self, **kwargs: Any) -> Any:
        """The tables, and the figures of the bars."""
        context = super().get_context_data(**kwargs)
        shown = [table for table in self.get_tables().values() if table.data or table.name != "budgets"]
        return {**context, "shown": shown, "usages": context["resources_table"].data, "is_unknown": self._is_unknown}


urlpatterns = [re_path(r"^$", IndexView.as_view(), name="index")]
