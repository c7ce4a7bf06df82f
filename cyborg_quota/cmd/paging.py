# SPDX-License-Identifier: Apache-2.0
"""The options --limit, --marker and --resource of commands that print lists."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from cyborg_quota.cmd import arguments
from cyborg_quota.cmd.errors import BadUsage
from cyborg_quota.types import TOTAL

Row = TypeVar("Row")

_TOO_MANY: Final = "--marker takes the project or provider of a row, and its resource if the rows have one."

DEFAULT_MARKER: Final = "(default)"
"""Names the rows without a project: the default limits."""

TOTAL_MARKER: Final = "(total)"
"""Names the rows of all projects together, as tables show them."""


at_least_one: Final = functools.partial(arguments.integer, least=1)
at_least_zero: Final = functools.partial(arguments.integer, least=0)


def add_paging(
    parser: argparse.ArgumentParser, *, owner: str = "project", metavar: str = "ID", resources: bool = True
) -> None:
    """Add the options for rows that are sorted by ``owner`` and, if ``resources``, by resource."""
    add_limit(parser)
    parser.add_argument(
        "--marker",
        nargs="+",
        metavar=(metavar, "RESOURCE") if resources else metavar,
        help=f"start after the last row of this {owner}"
        + (f", or of this {owner} and resource: those of the last row of the previous page" if resources else ""),
    )
    if resources:
        add_resource(parser)


def add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=at_least_one, metavar="N", help="print at most N rows")


def add_resource(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--resource", metavar="NAME", help="only this resource")


def options(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """The arguments ``limit``, ``after`` and ``resource`` of a call that returns a page. Raises BadUsage."""
    marker = parsed_args.marker
    if marker is None:
        after = None
    elif len(marker) > 2:
        raise BadUsage(_TOO_MANY)
    else:
        after = (None if marker[0] == DEFAULT_MARKER else marker[0], marker[1] if len(marker) == 2 else None)
    return {"limit": parsed_args.limit, "after": after, "resource": parsed_args.resource}


def page(
    parsed_args: argparse.Namespace,
    rows: Iterable[Row],
    key: Callable[[Row], tuple[str | None, ...]],
    columns: Sequence[str] = (),
) -> list[Row]:
    """The rows that the options select. ``key`` gives what the marker of a row consists of; its last part is the
    resource. ``columns``: the names of these parts, if they are not those of a project or provider and a resource.

    Raises BadUsage if no row has the marker: an empty page would mean that the list has ended.
    """
    selected = list(rows)
    resource = getattr(parsed_args, "resource", None)
    if resource is not None:
        selected = [row for row in selected if key(row)[-1] == resource]
    marker = parsed_args.marker
    if marker is not None:
        if len(marker) > (len(columns) or 2 if "resource" in parsed_args else 1):
            raise BadUsage(f"--marker takes the {', '.join(columns)} of a row." if columns else _TOO_MANY)
        after = [index for index, row in enumerate(selected) if _is_at(key(row), marker)]
        if not after:
            raise BadUsage(f"--marker {' '.join(map(ascii, marker))}: the list has no such row.")
        selected = selected[after[-1] + 1 :]
    return selected if parsed_args.limit is None else selected[: parsed_args.limit]


def _is_at(key: tuple[str | None, ...], marker: list[str]) -> bool:
    names = {None: (DEFAULT_MARKER,), TOTAL: (TOTAL, TOTAL_MARKER)}.get(key[0], (key[0],))
    return marker[0] in names and list(key[1 : len(marker)]) == marker[1:]
