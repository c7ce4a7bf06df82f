# SPDX-License-Identifier: Apache-2.0
"""The options --limit, --marker (``after``) and --resource of commands that print lists."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from cyborg_quota.exceptions import InvalidRequest
from cyborg_quota.surface.arguments import positive
from cyborg_quota.surface.operations import NAME, Argument, Schema
from cyborg_quota.types import MAX_NAME_BYTES, TOTAL

Row = TypeVar("Row")

_TOO_MANY: Final = "--marker takes the project or provider of a row, and its resource if the rows have one."

DEFAULT_MARKER: Final = "(default)"
"""Names the rows without a project: the default limits."""

TOTAL_MARKER: Final = "(total)"
"""Names the rows of all projects together, as tables show them."""


LIMIT: Final = Argument("--limit", type=positive, metavar="N", help="print at most N rows")
RESOURCE: Final = Argument("--resource", metavar="NAME", help="only this resource")


def marker(metavar: str | tuple[str, str], text: str, **details: Any) -> Argument:
    """--marker, with the value ``after``."""
    return Argument("--marker", dest="after", rest="marker", metavar=metavar, help=text, **details)


WORDS: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 6 * MAX_NAME_BYTES + 10}
"""Two names, of which each byte may be percent-encoded, and a month."""


def in_one_word(words: Iterable[str]) -> str:
    """The words of a marker as one text: a slash in a word is written as %2F, and a slash separates them."""
    return "/".join(urllib.parse.quote(word, safe="") for word in words)


def in_words(text: str) -> list[str]:
    """The words of such a text."""
    return [urllib.parse.unquote(word) for word in text.split("/")]


def paging(owner: str = "project", metavar: str = "ID") -> tuple[Argument, ...]:
    """The options for rows that are sorted by ``owner`` and by resource."""
    text = (
        f"start after the last row of this {owner}, or of this {owner} and resource: those of the last row of the "
        "previous page"
    )
    option = marker((metavar, "RESOURCE"), text, nargs="+", schema=WORDS, load=in_words)
    return LIMIT, option, RESOURCE


BY_RESOURCE: Final = (
    LIMIT,
    marker("NAME", "start after the row of this resource", nargs="+", schema=NAME, load=lambda name: [name]),
    RESOURCE,
)
"""The options for rows that are sorted by resource."""


def position(after: list[str] | None, default: str | None = DEFAULT_MARKER) -> tuple[str | None, str | None] | None:
    """The argument ``after`` of a call that returns a page. ``default``: names no owner. Raises InvalidRequest."""
    if after is None:
        return None
    if len(after) > 2:
        raise InvalidRequest(_TOO_MANY)
    return None if after[0] == default else after[0], after[1] if len(after) == 2 else None


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

    Raises InvalidRequest if no row has the marker: an empty page would mean that the list has ended.
    """
    selected = [row for row in rows if resource in (None, key(row)[-1])]
    if after is not None:
        if len(after) > (len(columns) or 2):
            raise InvalidRequest(f"--marker takes the {', '.join(columns)} of a row." if columns else _TOO_MANY)
        indexes = [index for index, row in enumerate(selected) if _is_at(key(row), after)]
        if not indexes:
            raise InvalidRequest(f"--marker {' '.join(map(ascii, after))}: the list has no such row.")
        selected = selected[indexes[-1] + 1 :]
    return selected if limit is None else selected[:limit]


def _is_at(key: tuple[str | None, ...], marker: list[str]) -> bool:
    names = {None: (DEFAULT_MARKER,), TOTAL: (TOTAL, TOTAL_MARKER)}.get(key[0], (key[0],))
    return marker[0] in names and list(key[1 : len(marker)]) == marker[1:]
