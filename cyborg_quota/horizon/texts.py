# SPDX-License-Identifier: Apache-2.0
"""What the panels say about limits, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.translation import gettext
from horizon.utils import filters

from cyborg_quota.horizon.rows import Row
from cyborg_quota.types import UNLIMITED


def _(text: str) -> str:
    """The text in the language of the user."""
    return str(gettext(text))


def limit(value: int | None) -> str:
    """A limit."""
    if value is None:
        return _("Not set")
    return _("Unlimited") if value == UNLIMITED else str(value)


def moment(text: str | None) -> str | None:
    """A time of the service, in the time zone of the user."""
    return text and str(timezone.localtime(filters.parse_isotime(text)).strftime("%Y-%m-%d %H:%M:%S"))


def hours(name: str) -> Callable[[Row], str | None]:
    """What shows this number of hours of a budget."""
    return lambda budget: None if budget[name] is None else f"{budget[name]:.1f}"


def when_spent(budget: Row) -> str:
    """What happens when a budget is spent."""
    return _("Requests are refused") if budget["enforce"] == "refuse" else _("Notices only")


def limit_in_force(usage: Row) -> str:
    """The limit of a resource, with the override that determines it."""
    if usage["override"] is None:
        return limit(usage["limit"])
    until, otherwise = moment(usage["override"]["until"]), limit(usage["override"]["otherwise"])
    text = _("%(limit)s (override until %(until)s, otherwise %(otherwise)s)")
    return text % {"limit": limit(usage["limit"]), "until": until, "otherwise": otherwise}


def changed(value: int | str | Mapping[str, Any] | None) -> str | None:
    """A limit, the parent of a project, or a budget, before or after a change; None: there was none."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {member}" for name, member in value.items())
    return limit(value) if isinstance(value, int) else value


def fits(usage: Row) -> str:
    """How much can be reserved now."""
    return _("Unlimited") if usage["bounded_fits"] is None else str(usage["fits"])


def bound_by(usage: Row) -> str:
    """What determines how much fits."""
    bound = usage["bound_by"]
    if bound is None:
        if usage["limit"] is None:
            return _("No limit is set: nothing can be reserved")
        own = _("The override of the project") if usage["override"] else _("The limit of the project")
        return _("Nothing") if usage["limit"] == UNLIMITED else own
    texts = {
        "subtree": _("The limit %(limit)s of project %(project)s and all projects below it"),
        "total": _("The limit %(limit)s over all projects"),
        "budget": _("The budget of project %(project)s and all projects below it"),
        "counter": _("The largest number that can be counted"),
        "not_registered": _("The resource cannot be reserved any more"),
    }
    text = texts.get(bound["scope"], _("%(scope)s: the limit %(limit)s"))
    return text % {"limit": limit(bound["limit"]), "project": bound["project_id"], "scope": bound["scope"]}


def most_held(project: Any) -> str:
    """The largest share of a limit that the project holds, in percent. The browser sorts a page by it."""
    return f"{max((usage['used_percent'] + usage['reserved_percent'] for usage in project['usages']), default=0)} %"


def bars(project: Any) -> str:
    """A line for each resource of a project, for a cell of a table."""
    return str(render_to_string("accelerator_quota/_bars.html", {"usages": project["usages"], "is_cell": True}))
