# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands take, and how their text is read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from typing import Any

from cyborg_quota.cmd.errors import BadUsage
from cyborg_quota.types import MAX_AMOUNT

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)


def amount(text: str) -> tuple[str, int]:
    """``gpu.A100=2`` as (resource, integer); the last ``=`` is the one that counts."""
    resource, equals, number = text.rpartition("=")
    if not equals or not resource or not _INTEGER.fullmatch(number):
        raise argparse.ArgumentTypeError(f"{_shown(text)}: write RESOURCE=AMOUNT, as in gpu=2")
    if abs(int(number)) > MAX_AMOUNT:
        raise argparse.ArgumentTypeError(f"{_shown(text)}: at most {MAX_AMOUNT}")
    return resource, int(number)


def limit(text: str) -> tuple[str, int]:
    """``gpu=50`` as (resource, limit): -1 is unlimited, 0 allows nothing."""
    resource, number = amount(text)
    if number < -1:
        raise argparse.ArgumentTypeError(f"{_shown(text)}: -1 is unlimited, 0 allows nothing")
    return resource, number


def once_each(pairs: Iterable[tuple[str, int]], what: str) -> dict[str, int]:
    """The pairs as a dict. Raises BadUsage where a resource comes twice."""
    found: dict[str, int] = {}
    for resource, number in pairs:
        if resource in found:
            raise BadUsage(f"{_shown(resource)} has two {what}; give it one.")
        found[resource] = number
    return found


def add_amounts(parser: argparse.ArgumentParser) -> None:
    """What is asked for: ``deltas``."""
    parser.add_argument(
        "deltas",
        nargs="+",
        type=amount,
        metavar="RESOURCE=AMOUNT",
        help="how much of a resource, as in gpu=2; a negative amount frees",
    )


def add_project(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument("--project", required=required, metavar="ID", help="the project that is meant")


def add_consumer_and_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--consumer", metavar="NAME", help="who holds it: an ARQ's UUID")
    parser.add_argument("--group", metavar="NAME", help="what consumers belong to: an instance's UUID")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Which reservations: UUIDs, or one of --consumer and --group with their --project."""
    parser.add_argument("reservations", nargs="*", metavar="UUID", help="reservations, by UUID")
    add_project(parser)
    add_consumer_and_group(parser)


def selection(parsed: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of a settling call. Raises BadUsage."""
    ways = [name for name in ("reservations", "consumer", "group") if getattr(parsed, name) not in (None, [])]
    if len(ways) != 1:
        raise BadUsage("Name the reservations by UUIDs, by --consumer or by --group.")
    if ways != ["reservations"] and parsed.project is None:
        raise BadUsage(f"--{ways[0]} needs --project: names are a project's own.")
    return {ways[0]: getattr(parsed, ways[0]), "project_id": parsed.project}


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")
