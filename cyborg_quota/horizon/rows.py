# SPDX-License-Identifier: Apache-2.0
"""What the panels show of a resource, which projects are on a page, and errors. Imports nothing of Horizon."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cyborg_quota.types import UNLIMITED


@dataclasses.dataclass(frozen=True)
class ResourceUsage:
    """The state of a resource in a project, as in the answer of ``GET /v2/quotas/{project_id}/detail``.

    ``limit`` is None if none is set, so that nothing fits. ``bound_by`` is None if the project's own limit determines
    ``fits``.
    """

    resource: str
    limit: int | None
    in_use: int
    reserved: int
    fits: int
    bound_by: Mapping[str, Any] | None

    @classmethod
    def read(cls, resource: str, detail: Mapping[str, Any]) -> ResourceUsage:
        """The state, from the answer of the service."""
        names = ("limit", "in_use", "reserved", "fits", "bound_by")
        return cls(resource, **{name: detail[name] for name in names})

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit, so that a bar can show a share of it."""
        return self.limit is not None and self.limit != UNLIMITED

    @property
    def is_over(self) -> bool:
        """Whether the project holds more than its limit, which a lowered limit or an override that ended can cause."""
        return self.is_limited and self.in_use + self.reserved > (self.limit or 0)

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits."""
        return self.fits == 0

    @property
    def bounded_fits(self) -> int | None:
        """What fits, for the text of the bar; None if no limit bounds it, but only the width of the counters."""
        is_unbounded = self.fits == UNLIMITED or (self.bound_by is not None and self.bound_by["scope"] == "counter")
        return None if is_unbounded else self.fits

    @property
    def used_percent(self) -> int:
        """The part of the bar for what is in use: 0 to 100."""
        return self._percent(self.in_use)

    @property
    def reserved_percent(self) -> int:
        """The part of the bar for what is reserved; with used_percent at most 100."""
        return self._percent(self.in_use + self.reserved) - self.used_percent

    def _percent(self, amount: int) -> int:
        if not self.is_limited or amount == 0:
            return 0
        # What is not nothing is visible; only what reaches the limit fills the bar.
        return 100 if amount >= (self.limit or 0) else max(1, amount * 100 // (self.limit or 1))


@dataclasses.dataclass(frozen=True)
class Project:
    """A project of Keystone, in the list of all projects."""

    id: str
    name: str
    usages: Sequence[ResourceUsage] = ()


def select_projects(names: Mapping[str, str], field: str, text: str) -> list[Project]:
    """The projects that agree with the filter, ordered by name: a part of the name in any case, or the whole id.

    ``names`` are the names by id. An empty text selects all projects.
    """
    text = text.strip()
    found = (Project(project_id, name) for project_id, name in names.items())
    if text and field == "id":
        found = (one for one in found if one.id == text)
    elif text:
        found = (one for one in found if text.casefold() in one.name.casefold())
    return sorted(found, key=lambda one: (one.name.casefold(), one.id))


def replace_words(text: str, words: Mapping[str, str]) -> str:
    """The text, with other words in the place of those that are keys of ``words``."""
    return re.sub(r"[\w-]+", lambda found: words.get(found[0], found[0]), text)


def page_of(
    items: Sequence[Project], size: int, after: str | None = None, before: str | None = None
) -> tuple[Sequence[Project], bool, bool]:
    """The page after the item with the id ``after``, or before that with the id ``before``.

    Returns the page, and whether there are items before and after it. An id that is not in the list (the project was
    deleted meanwhile) gives the first page.
    """
    ids = [item.id for item in items]
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
