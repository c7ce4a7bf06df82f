# SPDX-License-Identifier: Apache-2.0
"""Columns and tables that both panels use."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _
from horizon import tables
from horizon.utils import filters

from cyborg_quota.integrations.horizon import texts


class JsonTable(tables.DataTable):
    """A table whose rows are objects of an answer of the service. ``key`` is the name of the id."""

    key = "id"

    def get_object_id(self, datum: Any) -> str:
        """The id of a row."""
        return str(datum[self.key])

    def get_object_display(self, datum: Any) -> str:
        """The name of a row in messages."""
        return self.get_object_id(datum)


class LimitsTable(JsonTable):
    """A table of limits, by resource."""

    key = "resource"
    resource = tables.Column("resource", verbose_name=_("Resource"))
    limit = tables.Column(lambda row: texts.limit(row["limit"]), verbose_name=_("Limit"))


class PagedTable(JsonTable):
    """A table in a tab of which the service returns pages. ``tab``: the tab that the link to the next page opens."""

    tab: str | None = None

    def get_pagination_string(self) -> str:
        """The parameters of the next page."""
        parameters = super().get_pagination_string()
        return parameters if self.tab is None else f"tab={self.tab}&{parameters}"


def time_column(name: str, title: Any) -> Any:
    """A column with a time of the service, shown in the time zone of the user."""
    return tables.Column(name, verbose_name=title, filters=(filters.parse_isotime,))


class ResourcesTable(tables.DataTable):
    """The limits and the usage of one project."""

    resource = tables.Column("resource", verbose_name=_("Resource"))
    limit = tables.Column(lambda usage: texts.limit(usage.limit), verbose_name=_("Limit"))
    # On a narrow screen, only the text above the bars says these.
    in_use = tables.Column("in_use", verbose_name=_("In Use"), classes=("hidden-xs",))
    reserved = tables.Column("reserved", verbose_name=_("Reserved"), classes=("hidden-xs",))
    fits = tables.Column(texts.fits, verbose_name=_("Fits"))
    bound_by = tables.Column(texts.bound_by, verbose_name=_("Bound By"))

    class Meta:
        name = "resources"
        verbose_name = _("Resources")
        footer = False


class ReservationsTable(PagedTable):
    """Reservations in flight."""

    key = "uuid"
    resource = tables.Column("resource", verbose_name=_("Resource"))
    amount = tables.Column("amount", verbose_name=_("Amount"))
    consumer = tables.Column("consumer", verbose_name=_("Consumer"))
    group = tables.Column("group", verbose_name=_("Group"))
    created_at = time_column("created_at", _("Since"))
    expire = time_column("expire", _("Expires"))

    class Meta:
        name = "reservations"
        verbose_name = _("Reservations in Flight")
        pagination_param = "reservation_marker"
