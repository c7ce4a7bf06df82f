# SPDX-License-Identifier: Apache-2.0
"""Pages of lists that are sorted by project (or provider) and resource: checks arguments, pages a short list.

The database selects the pages of long lists (db/paging.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from cyborg_quota import exceptions, validation
from cyborg_quota.safe_repr import safe_repr
from cyborg_quota.types import LimitRecord, Page


def check(limit: int | None, after: object, resource: str | None, *, owner: str = "project") -> Page:
    """The part of a list to read. ``after``: see types.Marker, with this kind of owner. Raises InvalidRequest."""
    marker = None
    if after is not None:
        if not isinstance(after, (tuple, list)) or len(after) != 2:
            raise exceptions.InvalidRequest(f"A marker must be a {owner} and a resource, not {safe_repr(after)}.")
        marker = (validation.optional_name("marker", after[0]), validation.optional_name("marker", after[1]))
    return Page(validation.row_limit(limit), marker, validation.optional_name("resource", resource))


def select(records: Sequence[LimitRecord], page: Page) -> list[LimitRecord]:
    """The page of the limits of one project, or of the defaults, sorted by resource. Raises MarkerNotFound."""
    found = [record for record in records if page.resource in (None, record.resource)]
    if page.after is not None:
        if not any(page.after in ((one.project_id, one.resource), (one.project_id, None)) for one in records):
            raise exceptions.MarkerNotFound(page.after)
        last = page.after[1]
        found = [] if last is None else [record for record in found if record.resource > last]
    return found[: page.limit]
