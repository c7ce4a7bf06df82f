# SPDX-License-Identifier: Apache-2.0
"""What the panels show of a resource, which projects are on a page, and errors. Imports nothing of Horizon."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cyborg_quota.types import UNLIMITED, is_unbounded

Row = dict[str, Any]


def usage(resource: str, detail: Mapping[str, Any]) -> Row:
    """A resource of the answer of ``GET /v2/quotas/{project_id}/detail``, with what its bar shows.

    ``is_limited``: there is a limit, so that a bar can show a share of it; its parts ``used_percent`` and
    ``reserved_percent`` are together at most 100. ``is_over``: the project holds more than its limit, which a lowered
    limit or an override that ended can cause. ``is_full``: nothing more fits. ``bounded_fits``: what fits; None if no
    limit bounds it, but only the width of the counters.
    """
    limit, fits, bound = detail["limit"], detail["fits"], detail["bound_by"]
    in_use, amount = detail["in_use"], detail["in_use"] + detail["reserved"]
    is_limited = limit is not None and limit != UNLIMITED
    used_percent = _percent(in_use, limit) if is_limited else 0
    return {
        **detail,
        "resource": resource,
        "is_limited": is_limited,
        "is_over": is_limited and amount > limit,
        "is_full": fits == 0,
        "bounded_fits": None if is_unbounded(fits, bound and bound["scope"]) else fits,
        "used_percent": used_percent,
        "reserved_percent": (_percent(amount, limit) if is_limited else 0) - used_percent,
    }


def _percent(amount: int, limit: int) -> int:
    """A share of the limit: what is not nothing is visible; only what reaches the limit fills the bar."""
    if amount == 0:
        return 0
    return 100 if amount >= limit else max(1, amount * 100 // limit)


def select_projects(names: Mapping[str, str], field: str, text: str) -> list[Row]:
    """The projects that agree with the filter, ordered by name: a part of the name in any case, or the whole id.

    ``names`` are the names by id. An empty text selects all projects. A row has the id and the name.
    """
    text = text.strip()
    projects = ({"id": project_id, "name": name} for project_id, name in names.items())
    if text and field == "id":
        projects = (project for project in projects if project["id"] == text)
    elif text:
        projects = (project for project in projects if text.casefold() in project["name"].casefold())
    return sorted(projects, key=lambda project: (project["name"].casefold(), project["id"]))


def replace_words(text: str, words: Mapping[str, str]) -> str:
    """The text, with other words in the place of those that are keys of ``words``."""
    return re.sub(r"[\w-]+", lambda match: words.get(match[0], match[0]), text)


def page_of(
    items: Sequence[Row], size: int, after: str | None = None, before: str | None = None
) -> tuple[Sequence[Row], bool, bool]:
    """The page after the item with the id ``after``, or before that with the id ``before``.

    Returns the page, and whether there are items before and after it. An id that is not in the list (the project was
    deleted meanwhile) gives the first page.
    """
    ids = [item["id"] for item in items]
    start = 0
    if after in ids:
        start = ids.index(after) + 1
    elif before in ids:
        start = max(0, ids.index(before) - size)
    end = start + size
    return items[start:end], start > 0, end < len(items)


class QuotaAPIError(Exception):
    """The REST API refused a call, or could not be reached. Horizon shows the message.

    ``detail`` is the reason in words, as the service gave it; the message has the id of the request, too.
    """

    def __init__(self, detail: str, request_id: str | None = None) -> None:
        super().__init__(f"{detail} ({request_id})" if request_id else detail)
        self.detail = detail


class QuotaNotFound(QuotaAPIError):
    """There is no such object, or the user may not see it."""


class QuotaUnauthorized(QuotaAPIError):
    """The token is no longer valid. Horizon asks the user to log in again."""


BY_STATUS: Final = {401: QuotaUnauthorized, 404: QuotaNotFound}

BY_CATEGORY: Final[dict[str, tuple[type[Exception], ...]]] = {
    "recoverable": (QuotaAPIError,),
    "not_found": (QuotaNotFound,),
    "unauthorized": (QuotaUnauthorized,),
}
"""For ADD_EXCEPTIONS in the settings of Horizon."""
