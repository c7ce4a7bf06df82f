# SPDX-License-Identifier: Apache-2.0
"""Tables, each described by its columns; and those that both panels use."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _
from horizon import tables
from horizon.utils import filters

from cyborg_quota.horizon import texts


class QuotaTable(tables.DataTable):
    """A table whose rows are objects of an answer of the service.

    ``key`` gives the id of a row, which the path of a form has as ``id_name``. ``tab``: if the service returns pages,
    the tab that the link to the next page opens.
    """

    key: Callable[[Any], Any]
    id_name = "project_id"
    tab = ""

    def get_object_id(self, datum: Any) -> str:
        """The id of a row."""
        return str(self.key(datum))

    get_object_display = get_object_id

    def get_pagination_string(self) -> str:
        """The parameters of the next page."""
        return "&".join([f"tab={self.tab}"] * bool(self.tab) + [super().get_pagination_string()])


def column(title: Any, value: Any = None, kind: Any = tables.Column, **options: Any) -> Callable[[str], Any]:
    """A column; ``value``: the name or the function of what it shows, if that is not the name of the column."""
    return lambda name: kind(value or name, verbose_name=title, **options)


def time_column(title: Any) -> Callable[[str], Any]:
    """A column with a time of the service, shown in the time zone of the user."""
    return column(title, filters=(filters.parse_isotime,))


def make_table(
    name: str,
    title: Any,
    columns: Mapping[str, Any],
    *,
    key: Callable[[Any], Any] = operator.itemgetter("id"),
    id_name: str = "project_id",
    tab: str = "",
    **options: Any,
) -> Any:
    """A table. ``columns``: by name, the title or what ``column`` returned. ``options``: as in Horizon's class Meta."""
    made = {name: (one if callable(one) else column(one))(name) for name, one in columns.items()}
    meta = types.SimpleNamespace(name=name, verbose_name=title, multi_select=False, **options)
    return type(name, (QuotaTable,), dict(made, key=staticmethod(key), id_name=id_name, tab=tab, Meta=meta))


LIMIT_COLUMNS = {"resource": _("Resource"), "limit": column(_("Limit"), lambda row: texts.limit(row["limit"]))}


def resources_table(**options: Any) -> Any:
    """The limits and the usage of one project."""
    columns = {
        "resource": _("Resource"),
        "limit": column(_("Limit"), lambda usage: texts.limit(usage.limit)),
        # On a narrow screen, only the text above the bars says these.
        "in_use": column(_("In Use"), classes=("hidden-xs",)),
        "reserved": column(_("Reserved"), classes=("hidden-xs",)),
        "fits": column(_("Fits"), texts.fits),
        "bound_by": column(_("Bound By"), texts.bound_by),
    }
    key = operator.attrgetter("resource")
    return make_table("resources", _("Resources"), columns, key=key, footer=False, **options)


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
