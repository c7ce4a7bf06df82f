# SPDX-License-Identifier: Apache-2.0
"""The options --limit, --marker (``after``) and --resource of commands that print lists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from cyborg_quota.cli.errors import BadUsage
from cyborg_quota.surface.operations import Argument
from cyborg_quota.surface.parsing import integer, positive
from cyborg_quota.types import TOTAL

Row = TypeVar("Row")

_TOO_MANY: Final = "--marker takes the project or provider of a row, and its resource if the rows have one."

DEFAULT_MARKER: Final = "(default)"
"""Names the rows without a project: the default limits."""

TOTAL_MARKER: Final = "(total)"
"""Names the rows of all projects together, as tables show them."""


at_least_zero: Final = functools.partial(integer, least=0)

LIMIT: Final = Argument("--limit", type=positive, metavar="N", help="print at most N rows")
RESOURCE: Final = Argument("--resource", metavar="NAME", help="only this resource")


def marker(metavar: str, text: str, **details: Any) -> Argument:
    """--marker, with the value ``after``."""
    return Argument("--marker", dest="after", metavar=metavar, help=text, **details)


def paging(owner: str = "project", metavar: str = "ID") -> tuple[Argument, ...]:
    """The options for rows that are sorted by ``owner`` and by resource."""
    text = (
        f"start after the last row of this {owner}, or of this {owner} and resource: those of the last row of the "
        "previous page"
    )
    option = Argument("--marker", nargs="+", dest="after", metavar=(metavar, "RESOURCE"), help=text)
    return LIMIT, option, RESOURCE


def position(after: list[str] | None) -> tuple[str | None, str | None] | None:
    """The argument ``after`` of a call that returns a page. Raises BadUsage."""
    if after is None:
        return None
    if len(after) > 2:
        raise BadUsage(_TOO_MANY)
    return None if after[0] == DEFAULT_MARKER else after[0], after[1] if len(after) == 2 else None


def page(
    rows: Iterable[Row],
    key: Callable[[Row], tuple[str | None, ...]],
    columns: Sequence[str] = (),
    *,
    limit: int | None,
    after: list[str] | None,
    resource: str | None,
) -> list[Row]:
    """The rows that the options select. ``key`` gives what the marker of a row consists of; its last part is the
    resource. ``columns``: the names of these parts, if they are not those of a project or provider and a resource.

    Raises BadUsage if no row has the marker: an empty page would mean that the list has ended.
    """
    selected = [row for row in rows if resource in (None, key(row)[-1])]
    if after is not None:
        if len(after) > (len(columns) or 2):
            raise BadUsage(f"--marker takes the {', '.join(columns)} of a row." if columns else _TOO_MANY)
        found = [index for index, row in enumerate(selected) if _is_at(key(row), after)]
        if not found:
            raise BadUsage(f"--marker {' '.join(map(ascii, after))}: the list has no such row.")
        selected = selected[found[-1] + 1 :]
    return selected if limit is None else selected[:limit]


def _is_at(key: tuple[str | None, ...], marker: list[str]) -> bool:
    names = {None: (DEFAULT_MARKER,), TOTAL: (TOTAL, TOTAL_MARKER)}.get(key[0], (key[0],))
    return marker[0] in names and list(key[1 : len(marker)]) == marker[1:]
