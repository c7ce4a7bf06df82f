# SPDX-License-Identifier: Apache-2.0
"""capacity import: providers and inventories from a CSV file."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import decimal
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, TextIO

from cyborg_quota import exceptions, units, validation
from cyborg_quota.capacity_types import Inventory, InventoryRecord
from cyborg_quota.cmd import base, formats
from cyborg_quota.cmd.errors import BadUsage

COLUMNS = ("change", "provider", "resource", "before", "after")
_REQUIRED: Final = ("provider", "resource", "total")
_INTEGERS: Final = ("reserved", "min_unit", "max_unit", "step_size")
_OF_PROVIDERS: Final = ("uuid", "parent", "pod")
_ALL: Final = (*_REQUIRED, *_INTEGERS, "allocation_ratio", *_OF_PROVIDERS)


@dataclasses.dataclass
class _Provider:
    line: int
    details: dict[str, str | None]
    inventories: dict[str, Inventory] = dataclasses.field(default_factory=dict)


class Import(base.Lister):
    """Add providers and set inventories from a CSV file.

    The first line names the columns: provider, resource and total, and if needed
    reserved, min_unit, max_unit, step_size, allocation_ratio, uuid, parent and
    pod. An empty cell means the default. The whole file is checked before anything
    is written. A repeat changes only what differs. Providers and inventories that
    the file does not name stay unchanged. Prints the changes.
    """

    example = "cyborg-quota capacity import inventory.csv"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("file", metavar="FILE", help="the CSV file; - is stdin")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        providers = _read(parsed_args.file)
        unknown = {resource for one in providers.values() for resource in one.inventories} - set(self.engine.resources)
        if unknown:
            raise exceptions.UnknownResource(unknown, self.engine.resources)
        capacity = self.engine.capacity
        present = {provider.name for provider in capacity.list_providers(self.context)}
        known = present | {provider.uuid for provider in capacity.list_providers(self.context)}
        for name, wanted in providers.items():
            parent = wanted.details["parent"]
            if parent is not None and parent not in known:
                raise BadUsage(f"line {wanted.line}: the parent {parent!a} is not known; put it before its children.")
            known.add(name)
        stored = {(record.provider, record.resource): record for record in capacity.list_inventories(self.context)}
        changes: list[tuple[Any, ...]] = []
        with base.progress_bar(len(providers), "providers") as progress:
            for name, wanted in providers.items():
                if name not in present:
                    uuid, parent, pod = (wanted.details[column] for column in _OF_PROVIDERS)
                    capacity.add_provider(self.context, name, uuid=uuid, parent=parent, pod=pod)
                    changes.append(("add provider", name, formats.Optional(None), formats.Optional(None), name))
                differing = {
                    resource: inventory
                    for resource, inventory in wanted.inventories.items()
                    if not _is_equal(stored.get((name, resource)), inventory)
                }
                if differing:
                    capacity.set_inventories(self.context, name, differing)
                for resource, inventory in differing.items():
                    before = stored.get((name, resource))
                    total = formats.Optional(None if before is None else before.total)
                    changes.append(("set inventory", name, resource, total, inventory.total))
                progress(1)
        return COLUMNS, changes


def _is_equal(record: InventoryRecord | None, wanted: Inventory) -> bool:
    return record is not None and (
        (record.total, record.reserved, record.min_unit, record.max_unit, record.step_size, record.allocation_ratio)
        == (
            wanted.total,
            wanted.reserved,
            wanted.min_unit,
            units.max_unit_of(wanted),
            wanted.step_size,
            wanted.allocation_ratio,
        )
    )


def _read(name: str) -> dict[str, _Provider]:
    """The providers of the file, in its order. Raises BadUsage, which names the line."""
    try:
        if name == "-":
            return _parse(sys.stdin)
        with open(name, encoding="utf-8-sig", newline="") as file:
            return _parse(file)
    except OSError as error:
        raise BadUsage(f"{name!a} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadUsage(f"{name!a} is no CSV file in UTF-8: {error}.") from None


def _parse(file: TextIO) -> dict[str, _Provider]:
    reader = csv.DictReader(file, strict=True)
    columns = list(reader.fieldnames or [])
    missing = [column for column in _REQUIRED if column not in columns]
    wrong = [column for column in columns if column not in _ALL]
    if missing or wrong or len(set(columns)) < len(columns):
        raise BadUsage(
            f"The first line must name the columns {', '.join(_REQUIRED)}, and may name {', '.join(_ALL[3:])}, each "
            f"once; it has {', '.join(ascii(column) for column in columns) or 'none'}."
        )
    providers: dict[str, _Provider] = {}
    for row in reader:
        line = reader.line_num
        if None in row or None in row.values():
            raise BadUsage(f"line {line}: it does not have {len(columns)} cells.")
        details = {column: row.get(column) or None for column in _OF_PROVIDERS}
        provider = providers.setdefault(row["provider"], _Provider(line, details))
        if provider.details != details:
            raise BadUsage(f"line {line}: {', '.join(_OF_PROVIDERS)} differ from those of line {provider.line}.")
        if row["resource"] in provider.inventories:
            raise BadUsage(f"line {line}: {row['provider']!a} has two inventories of {row['resource']!a}.")
        try:
            _check_names(details, row["provider"])
            provider.inventories[row["resource"]] = _inventory(row)
        except exceptions.InvalidRequest as error:
            raise BadUsage(f"line {line}: {error}") from None
    return providers


def _check_names(details: dict[str, str | None], name: str) -> None:
    """Raise InvalidName for what ``add_provider`` would refuse."""
    validation.provider_name(name)
    if details["uuid"] is not None:
        validation.provider_uuid(details["uuid"])
    validation.optional_name("provider", details["parent"])
    validation.optional_name("pod", details["pod"])


def _inventory(row: dict[str, str]) -> Inventory:
    """One line as an inventory. Raises InvalidInventory."""

    def number(column: str) -> int:
        text = row[column].strip()
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 100:
            raise exceptions.InvalidInventory(row["resource"], column, row[column], "it must be an integer")
        return int(text)

    values: dict[str, Any] = {column: number(column) for column in _INTEGERS if row.get(column)}
    ratio: Any = row.get("allocation_ratio") or decimal.Decimal(1)
    return units.check_inventory(row["resource"], Inventory(number("total"), allocation_ratio=ratio, **values))
