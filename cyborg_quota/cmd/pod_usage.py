# SPDX-License-Identifier: Apache-2.0
"""Commands on the measurements of pods."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota.cmd import base, formats
from cyborg_quota.pod_types import PodUsage

COLUMNS = ("pod", "resource", "capacity", "used", "measured_at", "age_seconds")


def _rows(usage: PodUsage) -> list[tuple[Any, ...]]:
    age = None if usage.age is None else int(usage.age.total_seconds())
    measured = (formats.timestamp(usage.measured_at), formats.Optional(age))
    if not usage.usage:
        empty = formats.Optional(None)
        return [(usage.pod, empty, empty, empty, *measured)]
    return [
        (usage.pod, formats.Optional(resource), formats.Optional(use.capacity), formats.Optional(use.used), *measured)
        for resource, use in sorted(usage.usage.items())
    ]


class Show(base.Lister):
    """Show the last measurement of each pod, or of one, and how old it is.

    A pod without a measurement does not count as full.
    """

    example = "cyborg-quota pod usage show pod1"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", nargs="?", metavar="POD", help="only this pod")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        usages = self.engine.pods.list_usages(self.context, parsed_args.name)
        return COLUMNS, [row for usage in usages for row in _rows(usage)]
